"""Compares a compiled step with the eager step it stands for.

The program runs on copies, the eager step is the one that counts. Per tensor, `max|a - b| <= tolerance * max|a|` in
the tolerance of the precision. An optimizer that normalizes (Adam) turns a gradient that is nothing but rounding, such
as that of a bias in front of a normalization, into a full step of either sign; where the two gradients disagree by
more than rounding, relative to the element, the parameter may differ by as much as the steps moved any of its elements.

Rounding can do more: one of a million activations lies so near zero that it is below it here and above it there, and a
gradient is larger by its part. So before a step is called wrong, the program runs on weights and other state that are
changed by their own rounding: twice what that changes is allowed as well. So do the operations that it was compiled of:
of a gradient that is zero by mathematics they give the rounding of its terms, and a compiler may know that it is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import copy_of, refill
from lightning_sink.engine.failures import AssumptionFailedError
from lightning_sink.engine.private import pytree
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.step import Result, Sink, Step, Tape
from lightning_sink.engine.waits import may_wait
from lightning_sink.engine.watch import Hazard
from lightning_sink.errors import VerificationError

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
"""By the least exact type that the step computes in: a float64 loss of a float32 network is no more exact."""

_NO_MEMORY = Hazard(
    "there is no memory to run a compiled step on copies of what it works on, and compare it",
    way_out="have it not compared (`verify=0`)",
)

_GRADIENT_OF = "gradient of "

_ROUNDINGS = (4, 4, 4, 4, 16, 16, 16, 64, 64, 64)
"""By how many units in the last place the inputs are changed, run by run: a sum of some hundred terms is no more exact,
and what is divided by its own spread (a normalization) still less. Something at the edge falls to the other side in
about half of the runs that change it enough.
"""

_MOST_SPREAD, _MOST_OF_LARGEST = 0.25, 1e-3
"""Part of a tensor's largest element that rounding may explain: more than that is the work of a wrong program.

A gradient may differ by that part of the largest one of all, too: of a bias in front of a normalization it is rounding
and nothing else.
"""


@dataclass
class _Pair:
    """A tensor as the eager step left it and as the program did, on the host.

    Attributes:
        place: Where the program's is: among its outputs from 0 up, among its inputs from -1 down.
        before: What it was before the step; None for what the step made.
        spread: How far it moves when the inputs are changed by rounding.
    """

    name: str
    eager: Tensor
    compiled: Tensor
    place: int
    before: Tensor | None = None
    spread: float = 0.0


class _EagerTape(Tape):
    """Keeps, on the host, what the user's part of a step leaves, for the owner's callbacks may change it afterwards.

    Attributes:
        written: The program's inputs after the step.
        filled: What the step left in the slots that the program fills.
        output: What the step returned, as it was before any callback got it.
        disturbed: Whether somebody changed a tensor between two spans, so that nothing can be compared.
    """

    def __init__(self, program: Program, arguments: list[Tensor]) -> None:
        self._slots, self._fill = program.filled, program.fill
        # The tensors themselves where they stay in place: a step may give them other memory.
        stay = [binding.tensor for binding in program.bindings]
        self._inputs = [own if own is not None else given for own, given in zip(stay, arguments, strict=True)]
        self.written: list[Tensor] = []
        self.filled: list[Tensor | None] = []
        self.disturbed = False
        self.output: Any = None

    def span(self, body: Callable[[], Any], rewind: Callable[[], None]) -> Any:
        """Runs `body` and keeps what it left."""
        # A write through `.data` counts no version.
        self._fill()
        with may_wait():
            left = [*self.written, *self.filled]
            if self.written and not all(map(_same, [*self._inputs, *self._contents()], left)):
                self.disturbed = True
        out = body()
        if self.output is None:
            self.output = pytree.tree_map(lambda leaf: leaf, out)
        self._fill()
        with may_wait():
            self.written = [_kept(tensor) for tensor in self._inputs]
            self.filled = [None if tensor is None else _kept(tensor) for tensor in self._contents()]
        return out

    def _contents(self) -> list[Tensor | None]:
        return [slot.get() for slot in self._slots]


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _same(present: Tensor | None, second: Tensor | None) -> bool:
    if present is None or second is None:
        return present is second
    first = present.detach().cpu()
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    wide = first.is_floating_point() or first.is_complex()
    return torch.equal(first, second) or (wide and torch.allclose(first, second, 0.0, 0.0, equal_nan=True))


def verify_step(
    sink: Sink, step: Step, program: Program, arguments: list[Tensor], count: int, generators: Generators
) -> bool | Hazard:
    """Runs a step eagerly, for the training, and compiled, on copies of its arguments; compares everything.

    So many compiled steps (`count`) were verified before this one. True also where a callback changed what the step
    works on in its middle, and nothing was compared. False where the program has found out that the step goes another
    way, and a hazard where a device has no memory for the copies; the step has been run eagerly then, and that is all.

    Raises:
        VerificationError: Names the tensor, the step and the size of the difference.
    """
    generated = generators.state()
    found: _Compiled | None = None
    try:
        found = _run_on_copies(program, arguments)
    except AssumptionFailedError:
        generators.restore(generated)
        sink.run(step, Tape())
        return False
    except torch.OutOfMemoryError:
        pass  # the copies are there as long as the error is
    except Exception:
        generators.restore(generated)
        sink.run(step, Tape())  # raises what is wrong with the batch, in its own words
        raise
    generators.restore(generated)
    if found is None:
        sink.run(step, Tape())
        return _NO_MEMORY
    tape = _EagerTape(program, arguments)
    result = sink.run(step, tape)
    if tape.disturbed:
        return True
    with may_wait():
        pairs = _pairs(program, result, tape, found)
        least = max(_TOLERANCE.get(dtype, 0.0) for dtype in {torch.float64, *program.dtypes})
        rounding = program.function.rounding
        try:
            _check(pairs, least, rounding, count)
        except VerificationError:
            present = generators.state()
            try:
                _see_spread(pairs, program, found.before, arguments, lambda: generators.restore(generated))
            except torch.OutOfMemoryError:
                return _NO_MEMORY
            finally:
                generators.restore(present)
            _check(pairs, least, rounding, count)
    return True


class _Compiled(NamedTuple):
    """A program's run on copies, on the host.

    Attributes:
        before: What was in the arguments.
        made: What it gave.
        left: What it left in the copies.
    """

    before: list[Tensor]
    made: list[Tensor]
    left: list[Tensor]


def _pairs(program: Program, result: Result, tape: _EagerTape, compiled: _Compiled) -> list[_Pair]:
    """Returns all that a step gave and left, eager and compiled."""
    before, made, left = compiled
    expected = [*program.returned(result, tape.output), *result.logged, *program.appends.last()]
    names = ["loss" if i == program.loss else f"value {i} returned, logged or kept" for i in range(len(expected))]
    known = enumerate(zip(names, expected, strict=True))
    pairs = [_Pair(name, eager.cpu(), made[i], i) for i, (name, eager) in known if eager is not None]
    for index, (slot, eager) in enumerate(zip(program.filled, tape.filled, strict=True), start=program.num_given):
        if eager is not None:
            pairs.append(_Pair(slot.name, eager, made[index], index))
    for index, (binding, eager) in enumerate(zip(program.bindings, tape.written, strict=True)):
        if binding.leaf is None:
            pairs.append(_Pair(binding.name, eager, left[index], -1 - index, before[index]))
    return pairs


def _run_on_copies(program: Program, arguments: list[Tensor]) -> _Compiled:
    """Runs a program on copies of its arguments.

    A device may have memory for these copies and not for others beside them, or beside the eager step.
    """
    with may_wait():
        before = [copy_of(tensor).cpu() for tensor in arguments]
    copies = [copy_of(tensor) for tensor in arguments]
    outputs = program(copies)
    with may_wait():
        return _Compiled(before, [tensor.cpu() for tensor in outputs], [tensor.cpu() for tensor in copies])


def _see_spread(
    pairs: list[_Pair],
    program: Program,
    before: list[Tensor],
    arguments: list[Tensor],
    draw_again: Callable[[], None],
) -> None:
    """Runs the program on state that is changed by rounding, and notes for each pair how far that moves it."""
    noise, compiled = torch.Generator().manual_seed(0), {pair.place: pair.compiled for pair in pairs}
    uncompiled, plain = program.uncompiled(), dict[int, Tensor]()
    if uncompiled is not None:
        _move(pairs, uncompiled, before, arguments, draw_again, plain)
    for units in _ROUNDINGS:
        changed = [
            tensor if binding.leaf is not None else _round_otherwise(tensor, noise, units)
            for binding, tensor in zip(program.bindings, before, strict=True)
        ]
        _move(pairs, program, changed, arguments, draw_again, compiled)
        if uncompiled is not None:
            _move(pairs, uncompiled, changed, arguments, draw_again, plain)


def _move(
    pairs: list[_Pair],
    run: Callable[[list[Tensor]], tuple[Tensor, ...]],
    changed: list[Tensor],
    arguments: list[Tensor],
    draw_again: Callable[[], None],
    first: dict[int, Tensor],
) -> None:
    """Runs a step once more, and notes how far what it gives is from what a first run gave, which is kept here."""
    copies = [refill(copy_of(like), tensor) for tensor, like in zip(changed, arguments, strict=True)]
    draw_again()
    try:
        outputs = run(copies)
    except torch.OutOfMemoryError:
        raise
    except (AssumptionFailedError, RuntimeError):  # so changed, it goes another way, or its values are refused
        return
    for pair in pairs:
        moved = (outputs[pair.place] if pair.place >= 0 else copies[-1 - pair.place]).cpu()
        known = first.setdefault(pair.place, moved)
        if moved.is_floating_point() and known is not moved:
            pair.spread = max(pair.spread, _size(moved.double() - known.double()))


def _round_otherwise(tensor: Tensor, generator: torch.Generator, units: int) -> Tensor:
    # Whole numbers are exact: masks and counts.
    if not tensor.is_floating_point() or tensor.dim() == 0:
        return tensor
    signs = torch.randint(-1, 2, tensor.shape, generator=generator, device="cpu")
    signs *= tensor != tensor.round()  # whole numbers stay
    return tensor + tensor * signs * (units * torch.finfo(tensor.dtype).eps)


def _check(pairs: list[_Pair], least: float, rounding: float, count: int) -> None:
    gradients = {pair.name[len(_GRADIENT_OF) :]: pair for pair in pairs if pair.name.startswith(_GRADIENT_OF)}
    largest = max((_size(pair.eager) for pair in gradients.values()), default=0.0)
    for pair in pairs:
        if pair.eager.shape != pair.compiled.shape or pair.eager.dtype != pair.compiled.dtype:
            raise VerificationError(_message(pair, count, "its shape or dtype", "nothing"))
        if not pair.eager.is_floating_point() and not pair.eager.is_complex():
            difference, allowed = _size(pair.eager.long() - pair.compiled.long()), torch.zeros((), device="cpu")
        else:
            exact = max(least, _TOLERANCE.get(pair.eager.dtype, 1e-4))
            # What is no state may be made of gradients, but for the loss.
            tolerance = exact if pair.name == "loss" or pair.before is not None else max(exact, rounding)
            allowed = torch.full(pair.eager.shape, tolerance * _size(pair.eager), dtype=torch.float64, device="cpu")
            # A gradient that is zero by mathematics, or of a model that has learned all there is, is the rounding of
            # terms as large as the other gradients' or as probabilities near 1.
            moves = pair.before is not None or pair.name.startswith(_GRADIENT_OF)
            most = _MOST_SPREAD * _size(pair.eager)
            if pair.name.startswith(_GRADIENT_OF):
                most = max(most, _MOST_OF_LARGEST * largest)
            allowed += tolerance * (0.01 + (0.1 * largest if moves else 0.0)) + min(2.0 * pair.spread, most)
            if pair.before is not None:  # what the step added to it is made of gradients
                allowed += 2.0 * rounding * _size(pair.eager - pair.before)
                allowed += _slack(pair, gradients.get(pair.name), max(exact, rounding))
            wide = torch.complex128 if pair.eager.is_complex() else torch.float64
            gap = (pair.eager.detach().to(wide) - pair.compiled.detach().to(wide)).abs()
            gap[torch.isclose(pair.eager, pair.compiled, rtol=0.0, atol=0.0, equal_nan=True)] = 0.0
            bad = ~(gap <= allowed)
            if not bool(bad.any()):
                continue
            difference, allowed = float(gap[bad].max()), allowed[bad].min()
        if difference > float(allowed) or difference != difference:
            raise VerificationError(_message(pair, count, f"{difference:.3g}", f"{float(allowed):.3g}"))


def _slack(pair: _Pair, gradient: _Pair | None, tolerance: float) -> Tensor | float:
    """How far elements may differ whose gradient is lost in rounding: as far as both steps moved any element."""
    if gradient is None or pair.before is None or gradient.eager.shape != pair.eager.shape:
        return 0.0
    noise = (gradient.eager - gradient.compiled).abs() > tolerance * gradient.eager.abs()
    return noise.double() * 2.0 * max(_size(pair.eager - pair.before), _size(pair.compiled - pair.before))


def _size(tensor: Tensor) -> float:
    """Returns the largest absolute value that is finite; 0 where there is none."""
    sizes = tensor.detach().abs()
    largest = float(sizes.max()) if sizes.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = sizes[torch.isfinite(sizes)]
    return float(finite.max()) if finite.numel() else 0.0


def _message(pair: _Pair, count: int, difference: str, allowed: str) -> str:
    return (
        f"Compiled step {count + 1} does not give what the eager step gives: {pair.name} differs by {difference},"
        f" allowed is {allowed}. The eager step has been kept, the training state is right. Train with"
        ' `engine="eager"`, or find the cause with `engine="traced"`, which runs the same graph'
        " uncompiled: if that agrees, the compiler is at fault. `verify=0` turns this check off."
    )
