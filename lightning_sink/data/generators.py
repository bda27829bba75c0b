"""The random generators that an order of batches may come from: as they are, as they were, and put back for a while.

`Draws` keeps them so that the same order can be had again, in this process or out of a checkpoint.
"""

from __future__ import annotations

import ctypes
import pickle
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lightning_sink.data.order import is_repeatable

_BYTES_OF_MERSENNE = 625 * 4
"""624 numbers and the place among them."""

Saved = dict[str, Any]
"""States of generators as strings and numbers, fit for a checkpoint."""


class Draws:
    """The generators that an order may come from, as they are now.

    Args:
        loaders: Their own generators are kept too, and those of numpy and Python where a sampler is not one of torch's.
    """

    def __init__(self, loaders: list[Any]) -> None:
        self._torch = torch.get_rng_state()
        self._own = [generator.get_state() for generator in _own_generators(loaders)]
        others = not all(map(is_repeatable, loaders))
        self._python = random.getstate() if others else None
        self._numpy = np.random.get_state() if others else None

    def saved(self) -> Saved:
        """Returns the states as strings and numbers."""
        saved: Saved = {"torch": _text(self._torch.tolist()), "own": [_text(state.tolist()) for state in self._own]}
        if self._python is not None:
            version, numbers, gauss = self._python
            saved["python"] = [version, _text(numbers), gauss]
        if isinstance(self._numpy, tuple):  # another kind of generator than the usual one has a dictionary
            name, keys, *rest = self._numpy
            saved["numpy"] = [name, _text(keys.tolist()), *rest]
        return saved


@contextmanager
def drawing_from(saved: Saved, loaders: list[Any]) -> Iterator[None]:
    """Puts the process's generators where they stood, for a while; loaders' own generators stay there."""
    if not saved:
        yield
        return
    restore = keep_states()
    torch.set_rng_state(_tensor(saved["torch"]))
    for generator, state in zip(_own_generators(loaders), saved["own"], strict=False):
        generator.set_state(_tensor(state))
    if "python" in saved:
        version, numbers, gauss = saved["python"]
        random.setstate((version, tuple(_numbers(numbers)), gauss))
    if "numpy" in saved:
        name, keys, *rest = saved["numpy"]
        np.random.set_state((name, _numbers(keys), *rest))
    try:
        yield
    finally:
        restore()


def global_states() -> tuple[Any, ...]:
    """Returns what moves when torch's, Python's or numpy's global generator is drawn from.

    Those of GPUs, too, where these are in use: their states lie on the host, and nothing waits.
    """
    devices = [generator.get_state().numpy().tobytes() for generator in _of_devices()]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), _numpys_as_bytes(), *devices


def watch_states() -> Callable[[], bool]:
    """Returns what tells whether one of the global generators has been drawn from since."""
    before = global_states()
    return lambda: global_states() != before


def keep_states() -> Callable[[], None]:
    """Returns what puts the global generators back to where they are now."""
    devices = [(generator, generator.get_state()) for generator in _of_devices()]
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)

    def restore() -> None:
        torch.set_rng_state(torch_state)
        for generator, state in devices:
            generator.set_state(state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    return restore


def _of_devices() -> tuple[torch.Generator, ...]:
    """Returns the default generators of GPUs that are in use."""
    return tuple(torch.cuda.default_generators) if torch.cuda.is_initialized() else ()


def _own_generators(loaders: list[Any]) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        for owner in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and not any(generator is other for other in found):
                found.append(generator)
    return found


def _numpys_as_bytes() -> bytes:
    """What moves when numpy's global generator is drawn from.

    The usual one's memory is read: its state as numpy gives it takes 40 us, of a row of steps that takes 400. A normal
    number that was drawn with the one before it and kept moves nothing, and is noticed with the one behind it.
    """
    generator = np.random.mtrand.get_bit_generator()
    if isinstance(generator, np.random.MT19937):  # the one whose draws wait for their turn, too
        return ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MERSENNE)
    return pickle.dumps(np.random.get_state(legacy=False))


def _text(numbers: Sequence[int]) -> str:
    return array("I", numbers).tobytes().hex()


def _numbers(text: str) -> list[int]:
    numbers = array("I")
    numbers.frombytes(bytes.fromhex(text))
    return numbers.tolist()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(_numbers(text), dtype=torch.uint8)
