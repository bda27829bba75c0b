"""Everything of PyTorch's that is not public and that this room uses, with the reason.

Torch 2.11 to 2.15. `tests/data/test_private_names.py` fails with the name when an upgrade removes
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor

# By which Dynamo sees whether compiled code is for some tensors.
from torch._C._dynamo.guards import TensorGuards

# Goes through every container that torch knows, users' own that are registered among them; there is no public one.
from torch.utils import _pytree as pytree

# A mode is the one way to see the operations of one thread; documented, though the module's name is private.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, default_collate

# What `default_collate` does for each type; its documentation lets users change it, and gives no other name for it.
from torch.utils.data._utils.collate import default_collate_fn_map

__all__ = ["TorchDispatchMode", "default_collate_fn_map", "pytree"]
"""What others import from here under PyTorch's own name."""


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


def likeness(tensors: list[Tensor]) -> Callable[..., bool]:
    """Returns what tells whether as many others, none of them a nested tensor, are tensors like these.

    That is of the same type, shape, strides and device, as lazily conjugated or negated, and asking for gradients where
    these do. Python would ask for nine attributes of each, 1 us; this takes 0.1.
    """
    if len({*map(id, tensors)}) < len(tensors):  # of one that comes twice it says that it is another
        checks = [likeness([tensor]) for tensor in tensors]
        return lambda *others: all(check(other) for check, other in zip(checks, others, strict=True))
    # Both are optional by the signature, and read all the same.
    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    make: Any = TensorGuards  # which torch describes otherwise
    check: Callable[..., bool] = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def is_default_generator(generator: torch.Generator) -> bool:
    """Tells whether a generator is the process's own, for the CPU or a GPU.

    Operations hand on another Python object for the same generator; `Generator._cdata` alone says which it is.
    """
    own: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
    return any(generator._cdata == default._cdata for default in own)  # type: ignore[attr-defined]


def worker_processes(iterator: Any) -> list[Any]:
    """Returns the processes of a DataLoader's iterator. A hung one can only be ended through them."""
    return list(getattr(iterator, "_workers", ()))


def has_workers(loader: Any) -> bool:
    """Tells whether a DataLoader keeps an iterator, whose workers persist. Only `DataLoader._iterator` knows."""
    return loader._iterator is not None


def is_default(loader: Any) -> bool:
    """Tells whether a loader batches and collates by default. `DataLoader._get_iterator` makes its iterators."""
    is_torchs = type(loader) is DataLoader and "_get_iterator" not in vars(loader)
    return is_torchs and loader.batch_sampler is not None and loader.collate_fn is default_collate


def stacks() -> bool:
    """Tells whether `default_collate` has only torch's own functions to call, each of which makes tensors anew."""
    own = default_collate.__code__.co_filename  # `functools.wraps` gives a function the name of another one's module
    codes = [getattr(function, "__code__", None) for function in default_collate_fn_map.values()]
    return all(code is not None and code.co_filename == own for code in codes)


def versions(tensors: list[Tensor]) -> list[int]:
    """Returns how often each was written to in place; `Tensor._version` alone counts that."""
    return [tensor._version for tensor in tensors]


def apart(loader: Any) -> Any:
    """Returns a loader to be traversed beside a traversal of this one.

    One with `persistent_workers` keeps its only iterator in `_iterator`, and begins it anew for whoever asks.
    """
    if getattr(loader, "persistent_workers", False) and hasattr(loader, "_iterator"):
        loader = copy(loader)
        loader._iterator = None
    return loader
