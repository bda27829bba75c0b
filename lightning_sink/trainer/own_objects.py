"""Small objects of the user's that a LightningModule keeps as attributes: what counts, anneals, or averages for it.

They take part in its steps as a callback does that belongs to them, each attribute by itself: `self.annealer.weight`
may then be carried from step to step, as `self.weight` is. Elsewhere an object is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any

from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from lightning_sink.engine.state.attributes import CONTAINERS, SCALARS, is_a
from lightning_sink.trainer.reads import machinery
from lightning_sink.whose import is_users, module_of

_OTHERS = (nn.Module, Tensor, Optimizer, LRScheduler, Dataset, DataLoader, Sampler, LightningDataModule, Enum, type)
_OF_THEIR_OWN = ("__getattr__", "__getattribute__", "__setattr__", "__slots__", "__get__")

_MOST = 50
"""Attributes, and items of a container in one: what has more is data, which is looked at as a whole."""


def own_objects(module: Any, callbacks: Collection[Any]) -> list[Any]:
    """Returns those of a module in which there is a number, each once; not its Trainer, nor that one's callbacks."""
    known, of_lightning = {*map(id, callbacks)}, machinery()
    held = [value for name, value in vars(module).items() if name not in of_lightning]
    found = {id(value): value for value in held if id(value) not in known and _is_small(value)}
    return [*found.values()]


def _is_small(value: Any) -> bool:
    kind = type(value)
    if not is_users(module_of(kind)) or is_a(value, *_OTHERS, *CONTAINERS):
        return False
    if kind.__dictoffset__ == 0 or kind.__weakrefoffset__ == 0:
        return False
    users = [vars(base) for base in kind.__mro__ if is_users(module_of(base))]
    if any(name in names for names in users for name in _OF_THEIR_OWN):
        return False
    held = [*vars(value).values()]
    sizes = [len(item) for item in held if type(item) in CONTAINERS]
    has_number = any(type(item) in SCALARS and isinstance(item, (int, float)) for item in held)
    return has_number and max([len(held), *sizes]) <= _MOST
