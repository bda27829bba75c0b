"""What tests that need a GPU share: the one decorator, which skips them where there is none."""

import pytest
import torch


def needs_gpu(test):
    """Marks a test, and skips it without a CUDA device."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))
