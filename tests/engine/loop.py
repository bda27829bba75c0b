"""An ordinary training loop as an engine sees it: the smallest `Sink`, and one run plain beside one on programs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sink.data.batch import flatten, values_in
from lightning_sink.engine.compiled import CompiledEngine
from lightning_sink.engine.compiler.inductor import compile_traced
from lightning_sink.engine.eager import EagerEngine
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.step import Column, Engine, Result, Sink, Step, Tape
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.watch import Hazard

Batch = Any
TrainingStep = Callable[[Any, Any], Tensor]


@dataclass
class Training:
    """A user's training: a module, its optimizer, and what is done with each batch.

    Attributes:
        module: The module.
        optimizer: The optimizer; its `step` gets a closure.
        step: Called with a batch and its index, returns the loss.
        between: Called with the training and the number of the sink that comes next.
        after: Called after each step, with the number of steps done: what a schedule does.
        set_to_none: How gradients are cleared; None leaves them.
        extra: Other tensors to compare, by name.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    step: TrainingStep
    between: Callable[[Training, int], None] = lambda training, sink: None
    after: Callable[[int], None] = lambda done: None
    set_to_none: bool | None = True
    extra: Callable[[], dict[str, Any]] = dict
    index: int = 0
    losses: list[Tensor] = field(default_factory=list)

    def run(self, batch: Batch, batch_idx: Any) -> Tensor:
        """One step of plain PyTorch."""

        def closure() -> Tensor:
            loss = self.step(batch, batch_idx)
            if self.set_to_none is not None:
                self.optimizer.zero_grad(set_to_none=self.set_to_none)
            loss.backward()
            return loss

        loss: Tensor = self.optimizer.step(closure)
        return loss.detach()


class Following(list[Step]):
    """Steps that come next."""

    def columns(self) -> list[Column]:
        return [list(column) for column in zip(*(step.leaves for step in self), strict=True)]


class LoopSink(Sink):
    """A list of batches as one sink."""

    def __init__(self, training: Training, batches: list[Batch]) -> None:
        super().__init__()
        self._training = training
        self._batches = batches
        self._next = 0

    def steps(self) -> Iterator[Step]:
        while self._next < len(self._batches):
            self._next += 1
            yield self._step(self._batches[self._next - 1])

    def _step(self, batch: Batch) -> Step:
        leaves, signature = flatten(batch)
        return Step(batch, leaves, signature, "step")

    def values(self, step: Step) -> dict[str, Any]:
        return dict(values_in(step.batch))

    def place(self) -> str:
        return f"batch {self._training.index}"

    def run(self, step: Step, tape: Tape) -> Result:
        training = self._training
        loss = tape.span(lambda: training.run(step.batch, tape.watched("batch_idx", training.index)), lambda: None)
        self._done(loss)
        return Result({"loss": loss}, [], loss=loss)

    def account(self, step: Step, result: Callable[[], Result], loss: Tensor, logged: list[Tensor], note: Any) -> None:
        self._done(loss)

    def ahead(self, step: Step, note: Any, most: int, behind: int = 0) -> Following | None:
        if self._training.after is not Training.after:
            return None
        begin = self._next + behind
        following = map(self._step, self._batches[begin : begin + most])
        return Following(itertools.takewhile(lambda other: other.signature == step.signature, following)) or None

    def passing(self, steps: int, note: Any, seen: Callable[[], None]) -> Iterator[None]:
        training, present = self._training, self._training.index

        def put(index: int) -> None:
            training.index = index

        return self.passages.go(steps, lambda: put(present), lambda: put(training.index + 1), begin=seen)

    def account_chunk(
        self, steps: int, result: Callable[[], Result], loss: Tensor, logged: list[Tensor], note: Any
    ) -> None:
        assert loss.shape == (steps,)
        self._next += steps
        counted = 0 if self.passages.end() else 1
        for value in loss:
            self._done(value, counted)

    def _done(self, loss: Tensor, counted: int = 1) -> None:
        training = self._training
        training.losses.append(loss.detach().clone())
        training.index += counted
        training.after(training.index)


@dataclass
class Outcome:
    """What a training left behind."""

    training: Training
    engine: Engine
    hazards: list[Hazard]
    tensors: dict[str, Any]

    @property
    def reasons(self) -> str:
        return "; ".join(map(str, self.hazards))

    @property
    def compiled(self) -> int:
        """Steps that a program ran."""
        return getattr(self.engine, "compiled_steps", 0)


def engine_for(training: Training, hazards: list[Hazard], **options: Any) -> CompiledEngine:
    counters = {"batch_idx": lambda: training.index}
    chosen = {"compiler": compile_traced, "costly": False, "verify": 2, **options}
    parts = Parts(training.module, [training.optimizer], counters=counters)
    return CompiledEngine("traced", parts, fallback=lambda hazard, partly: hazards.append(hazard), **chosen)


def train(make: Callable[[], Training], sinks: list[list[Batch]], compiled: bool, **options: Any) -> Outcome:
    """Trains on lists of batches, one sink each, from a seed."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    training, hazards = make(), []
    engine = engine_for(training, hazards, **options) if compiled else EagerEngine()
    try:
        for number, batches in enumerate(sinks):
            training.between(training, number)
            engine.run(LoopSink(training, batches))
        return Outcome(training, engine, hazards, _tensors(training))
    finally:
        engine.close()


def both(make: Callable[[], Training], sinks: list[list[Batch]] | None = None, **options: Any) -> tuple[Outcome, ...]:
    """Trains plain and on programs; asserts that both left the same and returns both."""
    plain = train(make, deepcopy(sinks or _SINKS), compiled=False)
    sink = train(make, deepcopy(sinks or _SINKS), compiled=True, **options)
    assert_same(plain, sink)
    return plain, sink


def batches(count: int, size: int = 8, features: int = 4, classes: int = 3) -> list[Batch]:
    """Batches of inputs and classes; the same ones at each call."""
    generator = torch.Generator().manual_seed(count)
    return [
        (torch.randn(size, features, generator=generator), torch.randint(0, classes, (size,), generator=generator))
        for _ in range(count)
    ]


_SINKS = [batches(6), batches(6), batches(6)]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def loss_of(module: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def _tensors(training: Training) -> dict[str, Any]:
    found: dict[str, Any] = {f"loss {i}": loss for i, loss in enumerate(training.losses)}
    found |= {f"weight {name}": tensor for name, tensor in training.module.state_dict().items()}
    parameters = [p for group in training.optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        found[f"gradient {index}"] = parameter.grad
        found[f"parameter {index}"] = parameter.detach()
        for key, value in training.optimizer.state.get(parameter, {}).items():
            found[f"state {key} {index}"] = value
    found |= {f"extra {name}": value for name, value in training.extra().items()}
    found["random state"] = torch.get_rng_state()
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in found.items()}


def assert_same(plain: Outcome, sink: Outcome, tolerance: float = 1e-4) -> None:
    """Asserts that two trainings left the same losses, weights, gradients, optimizer state and random state."""
    assert set(plain.tensors) == set(sink.tensors)
    gradients = [t for name, t in plain.tensors.items() if "gradient" in name and isinstance(t, Tensor)]
    largest = max((float(t.abs().max()) for t in gradients if t.numel() and not t.is_sparse), default=0.0)
    for name, expected in plain.tensors.items():
        found = sink.tensors[name]
        if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
            assert type(expected) is type(found), name
            assert isinstance(expected, (dict, list)) or expected == found, (name, expected, found)
            continue
        assert expected.dtype == found.dtype, name
        assert expected.shape == found.shape, name
        if expected.layout is torch.sparse_coo:
            expected, found = expected.to_dense(), found.to_dense()
        if not (expected.is_floating_point() or expected.is_complex()):
            assert torch.equal(expected, found), name
            continue
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        gap = float((expected - found).abs().max()) if expected.numel() else 0.0
        # A gradient that is nothing but rounding (of a bias in front of a normalization) has no scale of its own.
        allowed = tolerance * scale + (1e-6 * largest if "gradient" in name else 0.0) + 1e-9
        assert gap <= allowed, (name, gap, scale)


def with_layouts(recording: Recording) -> Recording:
    """Notes what the inputs of a graph written by hand look like, as a recorder does."""
    placeholders = (node for node in recording.graph.nodes if node.op == "placeholder")
    for node, tensor in zip(placeholders, recording.inputs, strict=True):
        node.meta["layout"] = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
    return recording


def record(step: Callable[..., Tensor], *leaves: Tensor) -> Recording:
    """Records a function of tensors."""
    module = nn.Linear(1, 1).to(leaves[0].device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    recorder = Recorder(Hyperparameters([optimizer]), Counts({}), Snapshot(Parts(module, [optimizer])), leaves)
    output = recorder.span(lambda: step(*leaves), lambda: None)
    return recorder.finish([output])
