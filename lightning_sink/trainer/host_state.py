"""What a callback can change on the host so that a training goes on differently."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from ctypes import string_at
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from lightning_sink.data.batch import flatten
from lightning_sink.data.generators import global_states
from lightning_sink.engine.private import own_tensors, pytree, version
from lightning_sink.engine.state.attributes import fingerprint, is_a, items_of
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.holders import python_state
from lightning_sink.engine.state.slots import PLAIN_TENSORS, Parts, place_of
from lightning_sink.engine.waits import may_wait
from lightning_sink.held import held_by, slots_of
from lightning_sink.trainer.metrics import is_metric
from lightning_sink.trainer.reach import parts_of_precision
from lightning_sink.trainer.reads import machinery
from lightning_sink.whose import is_library, is_users, module_of

_OF_LIGHTNING = machinery()

_CACHES = frozenset(["_computed", "_forward_cache", "_cache"])
"""Private names of torchmetrics (1.x): where a metric keeps what it has computed, for whoever asks again."""

_SMALL = 1 << 16
"""Elements of a tensor that is compared as a whole."""

_MOST_LEAVES = 200
"""Values looked at in one attribute of a callback: an average has changed in its first ones too, a log only grows."""

_MANY = 500
"""Values at either end of a container of a module's that are looked at: losses in a list are as many as steps."""


class HostState:
    """What a training depends on, at one moment; with what callbacks keep, and the batch that their hook gets.

    A tensor or module that a user's callback keeps belongs to it while it is changed in place (an average of the
    weights is a step behind for each call that is missed); what callbacks count and collect does not. Without
    `contents` a write to memory counts where PyTorch counts it, and not through `tensor.data` or numpy.
    """

    def __init__(self, trainer: Any, callbacks: list[Any], batch: Any, contents: bool) -> None:
        module = trainer.lightning_module
        parts = list(module.modules())
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        kept_states = (kept for optimizer in trainer.optimizers for kept in optimizer.state.values())
        states = [kept for kept in kept_states if isinstance(kept, dict)]
        trained = [*own_tensors(parts), *(parameter for group in groups for parameter in group["params"])]
        tensors = [*{id(parameter): parameter for parameter in trained}.values()]
        options = [value for group in groups for key, value in group.items() if key != "params"]
        tensors += [value for value in options if isinstance(value, Tensor)]
        tensors += [value for kept in states for value in kept.values() if isinstance(value, Tensor)]
        tensors += _hidden(parts)
        tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
        tensors += [*flatten(batch)[0]]
        self._values = [
            [*map(id, tensors)],
            [fingerprint(value) for value in options],
            [_numbers_in(config.scheduler) for config in trainer.lr_scheduler_configs],
            [(version(tensor), tensor.requires_grad) for tensor in tensors],
            _contents(tensors) if contents else [*map(place_of, tensors)],
            trainer.accumulate_grad_batches,
            global_states(),
            [state.tolist() for state in Generators(trainer.strategy.root_device).state()[1:]],
            python_state(Parts(module, (), parts_of_precision(trainer), is_metric, _OF_LIGHTNING)),
        ]
        self._held = tensors  # so that nothing else gets their identities
        self._kept = [tensor for item in callbacks for tensor in _held_by(item)]
        self._averages = [tensor for item in callbacks for tensor in _held_in_objects_of(item)]
        self._reads = contents
        self._seen = self._look_at(self._kept)

    def differs_from(self, later: HostState) -> bool:
        """Tells whether anything has changed by a later moment."""
        return self._values != later._values or self._look_at(self._kept) != self._seen

    def _look_at(self, tensors: list[Tensor]) -> Any:
        versions = [version(tensor) for tensor in (*tensors, *self._averages)]
        return versions, _contents(tensors) if self._reads else None


def _numbers_in(scheduler: Any) -> dict[str, Any]:
    """Returns the numbers by which a scheduler counts its steps."""
    return {name: value for name, value in held_by(scheduler).items() if type(value) in (int, float)}


def _contents(tensors: list[Tensor]) -> Any:
    """Where tensors are and what is in them, in large ones sums and norms: writing to `.data` counts no version."""
    plain = [t for t in tensors if type(t) in PLAIN_TENSORS and t.layout is torch.strided and t.numel() > 0]
    plain = [t for t in plain if t.data_ptr()]  # none on `meta`, and none whose memory has been given back
    places = [tensor.data_ptr() for tensor in plain]
    contents: list[bytes] = []
    joined: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # what lies on a device is brought over in one go
    for tensor, place in zip(plain, places, strict=True):
        small = tensor.numel() <= _SMALL
        if small and tensor.is_cpu and tensor.is_contiguous():
            contents.append(string_at(place, tensor.nbytes))  # a tenth of the time of a copy by way of PyTorch
            continue
        values = tensor.detach()
        for numbers in [values.reshape(-1)] if small else _marks(values):
            joined.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    with may_wait():
        brought = [torch.cat(each).cpu() for each in joined.values()]
    for numbers in brought:
        contents.append(string_at(numbers.data_ptr(), numbers.nbytes))
    return places, contents


def _marks(tensor: Tensor) -> list[Tensor]:
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    marks = [numbers.sum(dtype=torch.float64)]
    if numbers.is_floating_point():
        marks.append(torch.linalg.vector_norm(numbers, dtype=torch.float64))
    return [mark.reshape(1) for mark in marks]


def _hidden(parts: list[nn.Module]) -> list[Tensor]:
    """Returns the tensors that modules keep in lists, dictionaries and other modules that they do not register."""
    registered, found = set(parts), []
    left_out = {part: _OF_LIGHTNING | _CACHES if is_metric(part) else _OF_LIGHTNING for part in parts}
    values = [value for part, names in left_out.items() for name, value in vars(part).items() if name not in names]
    for leaf in (leaf for value in values for leaf in _leaves(value)):
        if is_a(leaf, nn.Module) and leaf not in registered:
            found += [*leaf.parameters(), *leaf.buffers()]
        elif is_a(leaf, Tensor):
            found.append(leaf)
    return found


def _leaves(value: Any, depth: int = 8) -> Iterator[Any]:
    """Yields a value, or what the containers that it is made of hold, the first and the last ones where it is much."""
    if not is_a(value, list, tuple, dict, deque):
        yield value
    elif depth:
        items = items_of(value)  # asks nobody's code
        for item in [*items[:_MANY], *items[-_MANY:]] if len(items) > 2 * _MANY else items:
            yield from _leaves(item, depth - 1)


def _held_by(callback: Any) -> Iterator[Tensor]:
    for leaf in _leaves_of(callback):
        if is_a(leaf, Tensor):
            yield leaf
        elif is_a(leaf, nn.Module):
            yield from (*leaf.parameters(), *leaf.buffers())


def _held_in_objects_of(callback: Any) -> Iterator[Tensor]:
    """Yields the tensors of users' objects that a callback keeps: an average of `torch_ema`'s, or a whole dataset."""
    for leaf in _leaves_of(callback):
        if is_users(module_of(type(leaf))) and not is_a(leaf, Tensor, nn.Module):
            values = [*held_by(leaf).values(), *slots_of(leaf).values()]
            inside = chain.from_iterable(islice(pytree.tree_iter(value), _MOST_LEAVES) for value in values)
            yield from (item for item in inside if is_a(item, Tensor))


def _leaves_of(callback: Any) -> Iterator[Any]:
    own = is_library(module_of(type(callback)))
    values = [] if own else vars(callback).values()
    return chain.from_iterable(islice(pytree.tree_iter(value), _MOST_LEAVES) for value in values)
