"""One case of the gallery: a small module, the Trainer it is trained by, and what a sink makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import nn

import positions
from parity import loader


class Small(L.LightningModule):
    """Two layers. A case overrides what it is there to show."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Kept:
    """A loader whose batches are made once: what a step changes in them, it finds again."""

    def __init__(self, make: Callable[..., Any] = lambda *batch: tuple(tensor.clone() for tensor in batch)) -> None:
        x, y = loader().dataset.tensors
        self.batches = [make(x[start : start + 8], y[start : start + 8]) for start in range(0, len(x), 8)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


@dataclass(frozen=True)
class Case:
    """A module and what is promised of it.

    Attributes:
        name: What the case shows, in words.
        make: Makes the module.
        eager: Part of the warning with which its steps run eagerly; None where they are compiled.
        line: The text of the line in the case's source that the warning names; None where any line may be named.
        refused: Part of the error with which training it in sinks is refused.
        raises: Part of the error that the module raises in plain Lightning and in sinks alike.
        options: Options of the Trainer; callables are called for each training.
        data: Makes the training data; batches of one size as it stands, so that few steps have to be recorded.
        inductor: Whether it is trained by Inductor too; each such case costs seconds.
        tolerance: Of the comparison, for precisions other than float32.
        size: Size of the sinks.
        warns: Part of the warning that the training is another one in sinks of several steps.
        few: Whether there are too few steps for a program or for a warning.
        ordered: Whether its hooks can be written down; another profiler takes the place of the recorder.
        loggers: Makes loggers beside the one that keeps rows.
    """

    name: str
    make: Callable[[], L.LightningModule]
    eager: str | None = None
    line: str | None = None
    refused: str | None = None
    raises: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    data: Callable[[], Any] = lambda: loader(9, last=8)
    inductor: bool = False
    tolerance: float = 1e-4
    size: int = 4
    warns: str | None = None
    few: bool = False
    ordered: bool = True
    loggers: Callable[[], list[Any]] = list

    def trainer_options(self) -> dict[str, Any]:
        """Returns fresh options for one training."""
        made = {key: value() if callable(value) else value for key, value in self.options.items()}
        return {"max_epochs": 2, **made}


CASES: list[Case] = []


def case(**about: Any) -> Callable[[Any], Any]:
    """Puts a module class, or a function that makes a module, into the gallery under its name."""

    def register(make: Any) -> Any:
        add(_words(make.__name__), make, **about)
        return make

    return register


def add(name: str, make: Callable[[], L.LightningModule], **about: Any) -> None:
    """Puts a module into the gallery that is one of many made in a loop."""
    # Where gradients accumulate, each kind of step is to be recorded, verified and then run. Every eighth case has a
    # last batch of another size.
    if "accumulate_grad_batches" in about.get("options", {}) or len(CASES) % 8 == 0:
        about.setdefault("data", loader)
    CASES.append(Case(name, make, **about))


def from_3_11(eager: str) -> dict[str, Any]:
    """What is promised where positions in code have to be known: before, steps run eagerly, and that is warned of."""
    return {} if positions.KNOWN else {"eager": eager}


def late_before_3_11() -> dict[str, Any]:
    """What is promised where steps go more ways before: too many for a program, or for a warning, in so few steps."""
    return {} if positions.KNOWN else {"few": True}


def numbers() -> dict[str, Any]:
    """What is promised where Python's numbers are logged or collected: where lines end is known from 3.11 on."""
    return from_3_11("a value of a tensor decides")


def carried() -> dict[str, Any]:
    """What is promised where steps decide by attributes that they set: likewise."""
    return from_3_11("is needed as a plain number")


def _words(name: str) -> str:
    if "_" in name or name.islower():
        return name.replace("_", " ")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
