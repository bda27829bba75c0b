"""Every name of PyTorch's that is not public and that this room uses, with the reason; torch 2.11 to 2.13.

`tests/data/test_private.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

# A mode is the one way to see the operations of one thread; documented, though the module's name is private.
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "has_workers", "versions", "worker_processes"]


def worker_processes(iterator: Any) -> list[Any]:
    """Returns the processes of a DataLoader's iterator. A hung one can only be ended through them."""
    return list(getattr(iterator, "_workers", ()))


def has_workers(loader: Any) -> bool:
    """Tells whether a DataLoader keeps an iterator, whose workers persist. Only `DataLoader._iterator` knows."""
    return loader._iterator is not None


def versions(tensors: list[Tensor]) -> list[int]:
    """Returns how often each was written to in place; `Tensor._version` alone counts that."""
    return [tensor._version for tensor in tensors]
