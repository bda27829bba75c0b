"""Every Python block of the README runs as it stands."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sink import SinkStrategy
from lightning_sink.data.options import QueueOptions

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_there_are_blocks():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(block, capsys, unhurried):
    if "pytorch_lightning" in block:  # what it does to imports stays with its process
        subprocess.run([sys.executable, "-c", block], check=True)
        return
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for line in block.splitlines():
        call, _, shown = line.partition("#")
        if call.startswith("print("):
            assert shown.strip().split(": ")[0] in printed


def test_both_commands_are_there():
    for name in ("example", "test"):
        assert re.search(rf"<!-- command: {name} -->\n```bash\n.+\n```", TEXT)


def test_every_option_is_in_a_table():
    defaults = {name: item.default for name, item in inspect.signature(SinkStrategy).parameters.items()}
    defaults |= {field.name: field.default for field in dataclasses.fields(QueueOptions)}
    for name, value in defaults.items():
        default = f'"{value}"' if isinstance(value, str) else str(value)
        assert f"| `{name}` | `{default}` |" in TEXT
