"""What is left of the speed of sinks when a module, or its Trainer, does what most do: clip, schedule, log, drop out.

    python examples/benchmarks/options.py --out options.md

The MLP of the suite, one option at a time, each in plain Lightning and in sinks, in turns; steps a second behind the
first sink, medians.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import lightning as L
import torch
import torchmetrics
from fitting import OFF, Cycle
from lightning.pytorch.utilities import grad_norm
from machine import command, machine
from models import MLP
from nets import Batch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sink import SinkStrategy

BATCHES = 50


class Dropout(MLP):
    def __init__(self) -> None:
        super().__init__()
        drops = (nn.Sequential(layer, nn.Dropout(0.1)) if isinstance(layer, nn.ReLU) else layer for layer in self.net)
        self.net = nn.Sequential(*drops)


class LogsItsLoss(MLP):
    def __init__(self) -> None:
        super().__init__(log_loss=True)


class MeasuresAccuracy(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(10)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        scores = self(x)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return nn.functional.cross_entropy(scores, y)


class Scheduled(MLP):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class OneCycle(MLP):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100_000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class LogsGradientNorms(MLP):
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.log_dict(grad_norm(self.net, norm_type=2))


class ByHand(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class AccumulatesByHand(ByHand):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        loss = MLP.training_step(self, batch, batch_idx)
        self.manual_backward(loss / 4)
        if (batch_idx + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss


class Critic(ByHand):
    """A critic that is trained at each batch, and a generator at each fifth."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(16, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        optimizers: Any = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 16))
        loss: Tensor = self.critic(made.detach()).mean() - self.critic(batch[0]).mean()
        self._descend(optimizers[0], loss, "critic")
        if batch_idx % 5 == 0:
            self._descend(optimizers[1], -self.critic(made).mean(), "generator")
        return loss

    def _descend(self, optimizer: Any, loss: Tensor, name: str) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log(name, loss)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.critic, self.generator)]


class StepsItsSchedule(ByHand):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        schedule: Any = self.lr_schedulers()
        schedule.step()
        return loss


class WarmsUp(MLP):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 100_000:
            scale = min(1.0, float(self.trainer.global_step + 1) / 100_000.0)
            for group in optimizer.param_groups:
                group["lr"] = scale * 1e-3


class KeepsItsLosses(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss


class AverageMeter:
    def __init__(self) -> None:
        self.last = self.sum = self.average = 0.0
        self.count = 0

    def update(self, value: float, count: int) -> None:
        self.last = value
        self.sum += value * count
        self.count += count
        self.average = self.sum / self.count


class MeetsAMeter(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.meter = AverageMeter()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.meter.update(loss.item(), len(batch[0]))
        return loss


class KeepsItsBest(MLP):
    """Keeps its least loss, and counts the steps since."""

    def __init__(self) -> None:
        super().__init__()
        self.best, self.waited = float("inf"), 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if loss.item() < self.best:
            self.best, self.waited = loss.item(), 0
        else:
            self.waited += 1
        return loss


class Guards(MLP):
    """Leaves out a batch whose loss is no number."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        return None if torch.isnan(loss) else loss


class Mixes(MLP):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        share = torch.distributions.Beta(0.4, 0.4).sample()
        order = torch.randperm(len(x))
        scores = self(share * x + (1 - share) * x[order])
        losses = nn.functional.cross_entropy(scores, y), nn.functional.cross_entropy(scores, y[order])
        return share * losses[0] + (1 - share) * losses[1]


class Anneals(MLP):
    """A weight that is another number in each epoch."""

    def on_train_epoch_start(self) -> None:
        self.weight = min(1.0, 0.1 * self.current_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        penalty = self.net[0].weight.square().mean()
        return super().training_step(batch, batch_idx) + self.weight * penalty


class Ramps(MLP):
    """A weight that grows with the steps that the module has counted itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.seen += 1
        return super().training_step(batch, batch_idx) * ramp(self.seen, 100_000)


def ramp(seen: int, most: int) -> float:
    return min(1.0, seen / most)


class Averages(MLP):
    """An average of the weights that forgets less and less."""

    def __init__(self) -> None:
        super().__init__()
        self.average = deepcopy(self.net).requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        self.updates += 1
        decay = min(0.999, (1 + self.updates) / (10 + self.updates))
        for own, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
            own.mul_(decay).add_(other, alpha=1 - decay)


class Penalizes(MLP):
    """A penalty at every tenth step."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss + 1e-3 * self.net[0].weight.square().sum() if batch_idx % 10 == 0 else loss


def shuffled(batches: int) -> DataLoader[Any]:
    """Gives as many batches of a dataset of tensors, in another order."""
    x, y = (torch.cat(column) for column in zip(*MLP.batches(BATCHES), strict=True))
    size = len(x) // BATCHES
    rows = torch.arange(batches * size) % len(x)
    return DataLoader(TensorDataset(x[rows], y[rows]), size, shuffle=True)


OPTIONS: dict[str, tuple[Callable[[], L.LightningModule], dict[str, Any]]] = {
    "nothing": (MLP, {}),
    "logs its loss, with a progress bar": (LogsItsLoss, {"enable_progress_bar": True}),
    "`gradient_clip_val=1.0`": (MLP, {"gradient_clip_val": 1.0}),
    "a cosine schedule at each step": (Scheduled, {}),
    "`OneCycleLR` at each step": (OneCycle, {}),
    "dropout, twice": (Dropout, {}),
    "logs `grad_norm`": (LogsGradientNorms, {}),
    "an optimizer stepped by hand": (ByHand, {}),
    "that, with `max_steps`": (ByHand, {"max_steps": 1_000_000}),
    "gradients accumulated by hand, over 4 batches": (AccumulatesByHand, {}),
    "a critic at each batch, a generator at every fifth": (Critic, {}),
    "an optimizer and a cosine schedule stepped by hand": (StepsItsSchedule, {}),
    "a warmup by hand in `optimizer_step`": (WarmsUp, {}),
    "its losses kept in a list": (KeepsItsLosses, {}),
    "its loss in an `AverageMeter`": (MeetsAMeter, {}),
    "its least loss kept, by `loss.item()`": (KeepsItsBest, {}),
    "a guard against a loss that is no number": (Guards, {}),
    "mixup by torch": (Mixes, {}),
    "a weight annealed over 6 epochs": (Anneals, {"max_epochs": 6}),
    "a weight that steps count for": (Ramps, {}),
    "an average of its weights": (Averages, {}),
    "a penalty at every tenth step": (Penalizes, {}),
    "a shuffled `TensorDataset`": (MLP, {"data": shuffled}),
    "that, and a penalty at every tenth step": (Penalizes, {"data": shuffled}),
    "accuracy by torchmetrics": (MeasuresAccuracy, {}),
    "`accumulate_grad_batches=4`": (MLP, {"accumulate_grad_batches": 4}),
    "that, and accuracy by torchmetrics": (MeasuresAccuracy, {"accumulate_grad_batches": 4}),
    '`precision="bf16-mixed"`': (MLP, {"precision": "bf16-mixed"}),
}


class Marks(L.Callback):
    """Notes the time whenever it is called."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self.marks.append((trainer.fit_loop.total_batch_idx + 1, perf_counter()))

    def speed(self, behind: int) -> float:
        """Batches a second behind the first ones."""
        first = next(mark for mark in self.marks if mark[0] >= behind)
        return (self.marks[-1][0] - first[0]) / (self.marks[-1][1] - first[1])


def speed(name: str, strategy: L.pytorch.strategies.Strategy | str, batches: int, behind: int) -> float:
    """Trains; returns batches a second."""
    L.seed_everything(0, verbose=False)
    make, options = OPTIONS[name]
    marks = Marks()
    options = {"max_epochs": 1, **OFF, **options}
    data = options.pop("data", lambda length: Cycle(MLP.batches(BATCHES), length))
    trainer = L.Trainer(accelerator="cpu", strategy=strategy, callbacks=[marks], **options)
    trainer.fit(make(), data(batches))
    return marks.speed(behind)


def measure(name: str, sink_size: int, engine: str, repeats: int) -> str:
    """One row of the table."""
    plain, sink, ratios = [], [], []
    for _ in range(repeats):
        plain.append(speed(name, "auto", sink_size, behind=sink_size // 5))
        strategy = SinkStrategy(sink_size, epoch="dataset", engine=engine, fallback="error")
        sink.append(speed(name, strategy, 6 * sink_size, behind=sink_size))
        ratios.append(sink[-1] / plain[-1])
    spread = f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"
    row = f"| {name} | {median(plain):,.0f} | {median(sink):,.0f} | {spread} |"
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Sinks beside plain Lightning, one option at a time.")
    parser.add_argument("--sink-size", type=int, default=1_000)
    parser.add_argument("--engine", default="inductor")
    parser.add_argument("--only", default="", help="options whose names have this in them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lines = ["| the MLP, with | plain, batches/s | sinks, batches/s | sinks / plain |", "|---|--:|--:|--:|"]
    about = machine()
    lines += [measure(name, args.sink_size, args.engine, args.repeats) for name in OPTIONS if args.only in name]
    lines += ["", f"* machine: {about}; {torch.get_num_threads()} threads"]
    lines += [f"* versions: torch {version('torch')}, lightning {version('lightning')}"]
    lines += [f"* command: `{command('options.py')}`"]
    print(*lines, sep="\n")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
