"""Compares a compiled step with the eager step it stands for.

The program runs on copies, the eager step is the one that counts. Per tensor, `max|a - b| <= tolerance * max|a|` in
the tolerance of the precision. An optimizer that normalizes (Adam) turns a gradient that is nothing but rounding, such
as that of a bias in front of a normalization, into a full step of either sign; where the two gradients disagree by
more than rounding, relative to the element, the parameter may differ by as much as the step moved any of its elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_sink.engine.program import Program
from lightning_sink.engine.step import PlainTape, Sink, Step
from lightning_sink.errors import VerificationError

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 2e-2}
_GRADIENT_OF = "gradient of "


@dataclass
class _Pair:
    name: str
    eager: Tensor
    compiled: Tensor
    before: Tensor | None = None


def verify_step(sink: Sink, step: Step, program: Program, count: int) -> bool:
    """Runs a step eagerly, for the training, and compiled, on copies; compares everything.

    Args:
        sink: The sink that the step belongs to.
        step: The step.
        program: The program that stands for it.
        count: How many compiled steps were verified before this one; for the message.

    Returns:
        False where the program does not fit the step, which has then not been run.

    Raises:
        VerificationError: Names the tensor, the step and the size of the difference.
    """
    arguments = program.arguments(step.leaves)
    if arguments is None:
        return False
    before = [tensor.clone() for tensor in arguments]
    copies = [tensor.clone() for tensor in arguments]
    generator = torch.get_rng_state()
    outputs = program(copies)
    torch.set_rng_state(generator)
    result = sink.run(step, PlainTape())
    expected = [*_tensors(result.output), *result.logged]
    names = ["loss" if i == program.loss else f"value {i} returned or logged" for i in range(len(expected))]
    pairs = [_Pair(name, eager, outputs[i]) for i, (name, eager) in enumerate(zip(names, expected, strict=True))]
    for slot, compiled in zip(program.filled, outputs[program.num_results :], strict=True):
        eager = slot.get()
        if eager is not None:
            pairs.append(_Pair(slot.name, eager, compiled))
    for binding, eager, compiled, old in zip(program.bindings, arguments, copies, before, strict=True):
        if binding.leaf is None:
            pairs.append(_Pair(binding.name, eager, compiled, old))
    _check(pairs, program.low_precision, count)
    return True


def _tensors(output: object) -> list[Tensor]:
    from lightning_sink.engine.private import pytree

    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _check(pairs: list[_Pair], low_precision: bool, count: int) -> None:
    gradients = {pair.name[len(_GRADIENT_OF) :]: pair for pair in pairs if pair.name.startswith(_GRADIENT_OF)}
    largest = max((_size(pair.eager) for pair in gradients.values()), default=0.0)
    for pair in pairs:
        if pair.eager.shape != pair.compiled.shape or pair.eager.dtype != pair.compiled.dtype:
            raise VerificationError(_message(pair, count, "its shape or dtype", "nothing"))
        if not pair.eager.is_floating_point() and not pair.eager.is_complex():
            difference, allowed = _size(pair.eager.long() - pair.compiled.long()), torch.zeros(())
        else:
            tolerance = 5e-2 if low_precision else _TOLERANCE.get(pair.eager.dtype, 1e-4)
            allowed = torch.full(pair.eager.shape, tolerance * _size(pair.eager), dtype=torch.float64)
            # A gradient that is zero by mathematics, or of a model that has learned all there is, is the rounding of
            # terms as large as the other gradients' or as probabilities near 1.
            moves = pair.before is not None or pair.name.startswith(_GRADIENT_OF)
            allowed += tolerance * (0.01 + (0.1 * largest if moves else 0.0))
            if pair.before is not None:
                allowed += _slack(pair, gradients.get(pair.name), tolerance)
            wide = torch.complex128 if pair.eager.is_complex() else torch.float64
            gap = (pair.eager.detach().to(wide) - pair.compiled.detach().to(wide)).abs()
            gap[_same_oddity(pair.eager, pair.compiled)] = 0.0
            bad = ~(gap <= allowed)
            if not bool(bad.any()):
                continue
            difference, allowed = float(gap[bad].max()), allowed[bad].min()
        if difference > float(allowed) or difference != difference:
            raise VerificationError(_message(pair, count, f"{difference:.3g}", f"{float(allowed):.3g}"))


def _slack(pair: _Pair, gradient: _Pair | None, tolerance: float) -> Tensor | float:
    """How far elements may differ whose gradient is lost in rounding: as far as the step moved any element."""
    if gradient is None or pair.before is None or gradient.eager.shape != pair.eager.shape:
        return 0.0
    noise = (gradient.eager - gradient.compiled).abs() > tolerance * gradient.eager.abs()
    return noise.double() * 2.0 * _size(pair.eager - pair.before)


def _same_oddity(eager: Tensor, compiled: Tensor) -> Tensor:
    return (torch.isnan(eager) & torch.isnan(compiled)) | (torch.isinf(eager) & (eager == compiled))


def _size(tensor: Tensor) -> float:
    finite = tensor.detach()[torch.isfinite(tensor.detach())].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _message(pair: _Pair, count: int, difference: str, allowed: str) -> str:
    return (
        f"Compiled step {count + 1} does not give what the eager step gives: {pair.name} differs by {difference},"
        f" allowed is {allowed}. The eager step has been kept, the training state is right. Train with"
        ' `SinkStrategy(engine="eager")`, or find the cause with `engine="traced"`, which runs the same graph'
        " uncompiled: if that agrees, the compiler is at fault. `verify=0` turns this check off."
    )
