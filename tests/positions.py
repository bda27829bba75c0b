"""Whether Python tells which operation of a line runs: from 3.11 on, code objects have `co_positions`.

Before, numbers that steps collect, or carry in attributes, make the steps eager (docs/steps.md).
"""

from types import CodeType

import pytest

KNOWN = hasattr(CodeType, "co_positions")

needed = pytest.mark.skipif(not KNOWN, reason="positions in code are known from Python 3.11 on")
