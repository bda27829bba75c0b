"""Every name of PyTorch's that is not public and that this room uses, with the reason; torch 2.11 to 2.13.

`tests/data/test_private_names.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# A mode is the one way to see the operations of one thread; documented, though the module's name is private.
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "TorchDispatchMode",
    "dispatching_here",
    "has_workers",
    "is_default_generator",
    "versions",
    "worker_processes",
]


@contextmanager
def dispatching_here(mode: TorchDispatchMode) -> Iterator[None]:
    """Activates a mode for this thread and nothing else.

    `with mode` also sets flags of the whole process (torch.utils._python_dispatch._is_in_torch_dispatch_mode and its
    like), which Dynamo reads on other threads, and puts them back as it found them: two threads that do this at a time
    would leave them set.
    """
    torch._C._push_on_torch_dispatch_stack(mode)
    try:
        yield
    finally:
        torch._C._pop_torch_dispatch_stack(None)


def is_default_generator(generator: torch.Generator) -> bool:
    """Tells whether a generator is the process's own for the CPU.

    Operations hand on another Python object for the same generator; `Generator._cdata` alone says which it is.
    """
    return bool(generator._cdata == torch.default_generator._cdata)  # type: ignore[attr-defined]


def worker_processes(iterator: Any) -> list[Any]:
    """Returns the processes of a DataLoader's iterator. A hung one can only be ended through them."""
    return list(getattr(iterator, "_workers", ()))


def has_workers(loader: Any) -> bool:
    """Tells whether a DataLoader keeps an iterator, whose workers persist. Only `DataLoader._iterator` knows."""
    return loader._iterator is not None


def versions(tensors: list[Tensor]) -> list[int]:
    """Returns how often each was written to in place; `Tensor._version` alone counts that."""
    return [tensor._version for tensor in tensors]
