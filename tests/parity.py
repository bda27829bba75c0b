"""What a training leaves behind, and how two of them are compared."""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sink import SinkStrategy
from lightning_sink.data import pace

QUIET = {
    "accelerator": "cpu",
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(L.LightningModule):
    """A module that knows nothing of sinks and uses what most modules use."""

    def __init__(self, optimizer: str = "sgd", schedule: str = "none", total_steps: int = 60) -> None:
        super().__init__()
        self.optimizer, self.schedule, self.total_steps = optimizer, schedule, total_steps
        # No bias in front of the normalization: its gradient is nothing but rounding, which Adam turns into full steps.
        self.net = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        self.unused = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log("loss_forked", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"accuracy": (logits.argmax(1) == y).float().mean()}, on_step=False, on_epoch=True)
        self.log("largest", logits.max(), on_epoch=True, on_step=False, reduce_fx="max")
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        parameters = self.parameters()
        optimizer = {
            "sgd": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
            "adam": lambda: torch.optim.Adam(parameters, lr=0.01),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
            "foreach": lambda: torch.optim.Adam(parameters, lr=0.01, foreach=True),
            "fused": lambda: torch.optim.AdamW(parameters, lr=0.01, fused=True),
        }[self.optimizer]()
        if self.schedule == "onecycle":
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=self.total_steps)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
        if self.schedule == "step":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        if self.schedule == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "accuracy"}}
        return optimizer


def loader(batches: int = 17, size: int = 8, last: int = 3, **options: Any) -> DataLoader:
    """`batches` batches of `size`, the last one smaller."""
    generator = torch.Generator().manual_seed(1)
    count = (batches - 1) * size + last
    x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=size, **options)


class ContinuedLoader:
    """Epochs of `length` batches whose iterations continue one endless traversal: the reference for `epoch="sink"`."""

    def __init__(self, inner: Any, length: int) -> None:
        self.inner, self.length, self.stream = inner, length, None

    def __len__(self) -> int:
        return self.length

    def __iter__(self):
        if self.stream is None:
            self.stream = self.endless(iter(self.inner))
        return (next(self.stream) for _ in range(self.length))

    def endless(self, first):
        while True:
            yield from first
            first = iter(self.inner)


class Rows(Logger):
    """Keeps every row that reaches a logger."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    name = version = "rows"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


class Events(L.Callback):
    """Keeps the indices that the batch hooks are called with, and the gradients that are there then."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.gradients: dict[int, dict[str, torch.Tensor | None]] = {}
        self.losses: dict[int, torch.Tensor] = {}
        self.progress: dict[int, dict[str, Any]] = {}
        self.learning_rates: dict[int, float] = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.starts.append(batch_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        total = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self.ends.append(batch_idx)
        if outputs and outputs.get("loss") is not None:
            self.losses[total] = outputs["loss"].clone()
        self.learning_rates[total] = trainer.optimizers[0].param_groups[0]["lr"]
        self.progress[total] = trainer.fit_loop.state_dict()
        self.gradients[total] = {
            name: None if p.grad is None else p.grad.clone() for name, p in pl_module.named_parameters()
        }


@dataclass
class Run:
    """What one training left behind."""

    trainer: L.Trainer
    module: L.LightningModule
    events: Events
    rows: list[tuple[int, dict[str, float]]]
    warned: list[str] = field(default_factory=list)
    generators: tuple = ()

    @property
    def engine(self) -> str:
        return self.trainer.strategy.active_engine

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        found = {f"weight {name}": tensor for name, tensor in self.module.state_dict().items()}
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        for number, optimizer in enumerate(self.trainer.optimizers):
            for parameter, state in optimizer.state.items():
                if not isinstance(state, dict):
                    continue
                kept = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
                found |= {
                    f"{key} of {names.get(parameter)} in optimizer {number}": value for key, value in kept.items()
                }
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad.to_dense()
        found |= {f"metric {name}": value for name, value in self.trainer.callback_metrics.items()}
        return found


def train(module: L.LightningModule, data: Any, strategy: Any = "auto", seed: int = 0, **options: Any) -> Run:
    """Trains and returns what is left."""
    validation = options.pop("validation", None)
    checkpoint = options.pop("checkpoint", None)
    callbacks, loggers = options.pop("callbacks", []), options.pop("loggers", [])
    events, rows = Events(), Rows()
    trainer = options.pop("kind", L.Trainer)(
        strategy=strategy,
        logger=[rows, *loggers],
        callbacks=[events, *callbacks],
        **{**QUIET, "log_every_n_steps": 3, **options},
    )
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    # While the queue measures, steps are run one by one: so short a training would see nothing else.
    brisk = mock.patch.multiple(pace, _WARM_UP=0, _TRIAL=3)
    with brisk, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category=UserWarning)
        trainer.fit(module, data, validation, ckpt_path=checkpoint)
    return Run(trainer, module, events, rows.rows, [str(item.message) for item in caught], generators())


def generators() -> tuple:
    """Returns the states of the process's generators, as values that compare."""
    numpy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (numpy[1].tolist(), *numpy[2:])


def once(
    make: Callable[[], L.LightningModule],
    data: Callable[[], Any],
    strategy: Any = "auto",
    length: int | None = None,
    **options: Any,
) -> Run:
    """Trains from a seed that module, data, callbacks and loggers are made under; `length` continues one traversal."""
    torch.manual_seed(7)
    random.seed(7)
    loaded = data() if length is None else ContinuedLoader(data(), length)
    callbacks, loggers = options.pop("callbacks", list), options.pop("loggers", list)
    return train(make(), loaded, strategy, callbacks=callbacks(), loggers=loggers(), **options)


def both(make: Callable[[], L.LightningModule], data: Callable[[], Any], strategy: SinkStrategy, **options: Any):
    """Trains plain and in sinks from the same seed; returns both runs."""
    length = strategy.sink_size if strategy.is_endless else None
    return once(make, data, length=length, **options), once(make, data, strategy, **options)


def compare(
    make: Callable[[], L.LightningModule],
    engine: str,
    sink_size: int = 4,
    eager: str | None = None,
    tolerance: float = 1e-4,
    data: Callable[[], Any] = lambda: loader(),
    **options: Any,
) -> tuple[Run, Run]:
    """Trains both ways and asserts what the user was promised; `eager` is what the warning of a fallback says."""
    strategy = SinkStrategy(sink_size, epoch="dataset", engine=engine)
    plain, sink = both(make, data, strategy, **{"max_epochs": 2, **options})
    assert_parity(plain, sink, exact=engine == "eager", tolerance=tolerance)
    warned = [text for text in sink.warned if "runs eagerly" in text]
    if engine == "eager" or eager is None:
        assert not warned, warned
        assert sink.engine == engine
    else:
        assert any(eager in text for text in warned), warned
    return plain, sink


def assert_parity(plain: Run, sink: Run, exact: bool = False, tolerance: float = 1e-4) -> None:
    """Asserts that both trainings left the same weights, state, metrics, rows and counters."""
    assert plain.trainer.global_step == sink.trainer.global_step
    assert plain.trainer.current_epoch == sink.trainer.current_epoch
    assert_tensors(plain.tensors, sink.tensors, exact, tolerance)
    assert [(step, set(row)) for step, row in plain.rows] == [(step, set(row)) for step, row in sink.rows]
    for (step, expected), (_, found) in zip(plain.rows, sink.rows, strict=True):
        assert_tensors(_numbers(expected, step), _numbers(found, step), exact, tolerance)
    assert set(sink.events.losses) <= set(plain.events.losses)
    for total, loss in sink.events.losses.items():
        assert_tensors({f"loss {total}": plain.events.losses[total]}, {f"loss {total}": loss}, exact, tolerance)
        expected, found = plain.events.gradients[total], sink.events.gradients[total]
        assert {name for name in expected if expected[name] is None} == {name for name in found if found[name] is None}
        assert_tensors(_present(expected), _present(found), exact, tolerance)
        assert plain.events.learning_rates[total] == sink.events.learning_rates[total]
        assert plain.events.progress[total] == sink.events.progress[total]


def _present(tensors):
    return {f"gradient of {name}": tensor.to_dense() for name, tensor in tensors.items() if tensor is not None}


def _numbers(row, step):
    return {f"{name} in the row of step {step}": torch.tensor(float(value)) for name, value in row.items()}


def comparable(value: Any) -> Any:
    """Returns a value as one that compares, with the types of all that is in it."""
    kind = type(value).__name__
    if kind == "Meter":
        return kind, comparable(vars(value))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return kind, str(value.dtype), value.shape, torch.as_tensor(value).detach().double().flatten().tolist()
    if isinstance(value, dict):
        return kind, [(key, comparable(item)) for key, item in value.items()]
    return (kind, [comparable(item) for item in value]) if isinstance(value, (list, tuple)) else value


def are_alike(one: Any, other: Any) -> bool:
    """Tells whether two values of `comparable` are the same, but for rounding."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if type(one) is float and type(other) is float:
        return one == pytest.approx(other, rel=1e-3, abs=1e-4)
    return type(one) is type(other) and one == other


def assert_tensors(expected, found, exact=False, tolerance=1e-4):
    assert set(expected) == set(found)
    expected, found = ({n: t.to_dense() if t.is_sparse else t for n, t in run.items()} for run in (expected, found))
    largest = max((float(t.abs().max()) for n, t in expected.items() if "gradient" in n), default=0.0)
    for name, tensor in expected.items():
        if exact or not (tensor.is_floating_point() or tensor.is_complex()):
            assert torch.equal(tensor, found[name]), name
            continue
        scale = float(tensor.abs().max()) if tensor.numel() else 0.0
        # A gradient that is nothing but rounding (of a bias in front of a normalization) has no scale of its own.
        allowed = tolerance * scale + (1e-6 * largest if "gradient" in name else 0.0) + 1e-9
        assert (tensor - found[name]).abs().max() <= allowed, (name, float((tensor - found[name]).abs().max()), scale)
