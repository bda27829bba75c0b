"""The random draws of steps in a row: one by one, or, where all of them are masks of dropout, by machine code.

`masks.cpp` draws what `bernoulli_` draws in a tenth of its time. It knows how torch's generator works and how it gives
its state, neither of which is promised, and some processors have a `bernoulli_` of their own (MKL's): so it is tried
out, and torch draws where anything differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import is_in_one_piece
from lightning_sink.engine.compiler.native import NativeLoop
from lightning_sink.engine.tracing.draws import Draw

_BYTES = 3 * 8 + 624 * 8
"""What `masks.cpp` reads and writes of a generator's state."""


class RowDraws:
    """Makes the draws of steps in a row, those of each in its order, by the loop around the steps where that can."""

    def __init__(self, draws: Sequence[Draw], loop: NativeLoop) -> None:
        self._draws, self._loop = draws, loop
        found = [(draw.layout, probability_of_ones(draw)) for draw in draws]
        masks = [(layout[0], likely) for layout, likely in found if layout is not None and likely is not None]
        self._masks = masks if masks and len(masks) == len(draws) and draws_alike(loop) else []

    def __bool__(self) -> bool:
        return bool(self._draws)

    def make(self, steps: int) -> list[list[Tensor]]:
        """Returns, for each draw of a step, what the next steps draw."""
        if self._masks:
            masks = [torch.empty((steps, *shape), dtype=torch.float32, device="cpu") for shape, _ in self._masks]
            before = torch.get_rng_state()
            state = before.clone()
            self._loop.draw_masks(state, masks, [likely for _, likely in self._masks])
            if torch.equal(torch.get_rng_state(), before):  # not where another thread has drawn meanwhile
                torch.set_rng_state(state)
                return [[*mask.unbind()] for mask in masks]
        return draw_in_a_row(self._draws, steps)


def draw_in_a_row(draws: Sequence[Draw], steps: int) -> list[list[Tensor]]:
    """Returns, for each draw of a step, what so many steps draw one after another."""
    drawn: list[list[Tensor]] = [[] for _ in draws]
    for _ in range(steps if draws else 0):
        for tensors, draw in zip(drawn, draws, strict=True):
            tensors.append(draw())
    return drawn


def probability_of_ones(draw: Draw) -> float | None:
    """Returns with what probability a draw gives ones; None where it is no mask that machine code draws."""
    if draw.target is not torch.ops.aten.bernoulli_.float or draw.layout is None or draw.options:
        return None
    shape, stride, dtype, device = draw.layout
    if not is_in_one_piece(shape, stride) or dtype != torch.float32 or device.type != "cpu" or 0 in shape:
        return None
    probability = draw.arguments[0] if draw.arguments else 0.5
    return probability if isinstance(probability, float) else None


def draws_alike(loop: NativeLoop) -> bool:
    """Tells whether machine code draws what torch draws here, and leaves the generator as torch does."""
    generator = torch.Generator("cpu").manual_seed(1)
    torch.rand(1, generator=generator, device="cpu")  # of the words, which are drawn in pairs, one is left behind
    state = generator.get_state()
    if state.nbytes < _BYTES:
        return False
    probabilities = [0.9, 0.5]
    masks = [torch.empty(2, size, device="cpu") for size in (301, 1100)]
    loop.draw_masks(state, masks, probabilities)
    expected = [
        torch.empty_like(mask[0]).bernoulli_(probability, generator=generator)
        for _ in range(2)
        for mask, probability in zip(masks, probabilities, strict=True)
    ]
    found = [mask[step] for step in range(2) for mask in masks]
    return all(map(torch.equal, found, expected)) and torch.equal(state, generator.get_state())
