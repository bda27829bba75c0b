"""Trainings of random options, callbacks, hooks and data, of kinds that people have, from a seed."""

from collections.abc import Callable
from random import Random
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

from lightning_sink import StepCallback
from parity import Net, loader

BATCHES = 23


class Hooks(Net):
    """A module with one of the things that people do in hooks."""

    def __init__(self, does: str, **options: Any) -> None:
        super().__init__(**options)
        self.does, self.seen, self.first = does, [], nn.Linear(6, 6, bias=False)

    def training_step(self, batch, batch_idx):
        if self.does == "skips" and batch_idx % 5 == 3:
            return None
        x, y = batch.values() if isinstance(batch, dict) else batch
        return super().training_step((x + 0.1 * self.first(x) if self.does == "freezes" else x, y), batch_idx)

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.does == "leaves out" and batch_idx == 6 + self.current_epoch else None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.does == "stops" and self.global_step == 23:
            self.trainer.should_stop = True

    def on_after_backward(self):
        if self.does == "dampens" and self.global_step % 4 == 1:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    def on_train_epoch_start(self):
        self.first.requires_grad_(self.does != "freezes" or self.current_epoch % 2 == 0)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        draws = self.does == "augments" and self.trainer.training and isinstance(batch, list)
        return [batch[0] + 0.01 * torch.randn_like(batch[0]), batch[1]] if draws else batch

    def on_validation_epoch_end(self):
        if self.does == "draws":
            torch.rand(3)

    def on_train_epoch_end(self):
        self.seen.append((self.current_epoch, self.global_step))
        self.log("at the end", float(self.current_epoch))


class Rates(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        for group in trainer.optimizers[0].param_groups:
            group["weight_decay"] = 0.01 * trainer.current_epoch


class Noise(L.Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01)


class Average(StepCallback):
    def __init__(self):
        self.mean, self.steps = torch.zeros(8, 6), 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * pl_module.net[0].weight.detach()
        self.steps += 1

    def state_dict(self):
        return {"mean": self.mean, "steps": self.steps}

    def load_state_dict(self, state):
        self.mean, self.steps = state["mean"], state["steps"]


class Iterates(IterableDataset):
    def __iter__(self):
        yield from loader(BATCHES).dataset


def of_samples(**options: Any) -> Callable[[], DataLoader]:
    """Returns a maker of loaders over samples one by one."""
    samples = [{"x": x, "y": y} for x, y in loader(BATCHES).dataset]
    return lambda: DataLoader(samples, batch_size=8, **options)


def sampled() -> DataLoader:
    dataset = loader(BATCHES).dataset
    return DataLoader(dataset, batch_size=8, sampler=WeightedRandomSampler([1.0, 2.0] * 89, len(dataset)))


DATA = {
    "in order": lambda: loader(BATCHES),
    "shuffled": lambda: loader(BATCHES, shuffle=True),
    "workers": lambda: loader(BATCHES, shuffle=True, num_workers=1),
    "samples": of_samples(shuffle=True),
    "weighted": sampled,
    "sampler": lambda: DataLoader(
        loader(BATCHES).dataset, batch_sampler=BatchSampler(RandomSampler(range(179)), 8, drop_last=True)
    ),
    "iterable": lambda: DataLoader(Iterates(), batch_size=8),
    "list": lambda: DataLoader(list(loader(BATCHES)), batch_size=None),
    "short": lambda: loader(5, shuffle=True),
}

CALLBACKS = {
    "early": lambda folder: EarlyStopping("val_loss", patience=1, min_delta=0.02, strict=False),
    "every few steps": lambda folder: ModelCheckpoint(folder, "a-{step}", every_n_train_steps=5, save_top_k=-1),
    "best": lambda folder: ModelCheckpoint(folder, "b-{step}", monitor="val_loss", save_top_k=2),
    "newest": lambda folder: ModelCheckpoint(
        folder, "c-{step}", monitor="step", mode="max", every_n_train_steps=3, save_top_k=2
    ),
    "rates": lambda folder: LearningRateMonitor(log_momentum=True),
    "swa": lambda folder: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=2),
    "ema": lambda folder: EMAWeightAveraging(decay=0.9),
    "windows": lambda folder: GradientAccumulationScheduler({1: 3, 2: 2}),
    "prunes": lambda folder: ModelPruning("l1_unstructured", amount=0.2, use_global_unstructured=True),
    "decays": lambda folder: Rates(),
    "noise": lambda folder: Noise(),
    "average": lambda folder: Average(),
}

OPTIONS = {
    "accumulate_grad_batches": [2, 3, 7],
    "gradient_clip_val": [1.0, 0.1],
    "check_val_every_n_epoch": [2],
    "limit_train_batches": [0.5, 7, 30],
    "limit_val_batches": [0, 1],
    "num_sanity_val_steps": [0],
    "log_every_n_steps": [1, 5],
    "reload_dataloaders_every_n_epochs": [1],
    "max_steps": [19],
    "min_epochs": [3],
    "precision": ["64-true"],
}

DOES = ["", "", "skips", "leaves out", "stops", "dampens", "freezes", "augments", "draws"]
OPTIMIZERS = ["sgd", "sgd", "adam", "foreach", "fused"]


class RandomTraining:
    """One training: what a Trainer, a module and data are made with, again and again.

    Attributes:
        size: Batches in a sink.
        resumes: Whether it goes on, in another Trainer, from the checkpoint of the last epoch's end of a shorter one.
    """

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.size, self.resumes = random.choice([-1, 1, 4, 7]), random.random() < 0.4
        self.options = {name: random.choice(some) for name, some in OPTIONS.items() if random.random() < 0.2}
        self.names = random.sample(list(CALLBACKS), random.choice([0, 1, 1, 2, 3]))
        self.data, self.does = random.choice([*DATA, "iterable"]), random.choice(DOES)
        self.module = {"optimizer": random.choice(OPTIMIZERS)}
        self.module |= {"schedule": random.choice(["none", "onecycle", "step", "plateau"]), "total_steps": 200}
        if {"swa", "ema", "prunes"} & {*self.names[1:]}:
            self.names = self.names[:1]  # two of those do not go together
        if "prunes" in self.names:
            self.options.pop("precision", None)
        if "windows" in self.names:
            self.options.pop("accumulate_grad_batches", None)
        if self.data == "iterable":  # no share of data without a length; more than it has, or fewer
            self.options["limit_train_batches"] = random.choice([30, None, 7])

    def __repr__(self) -> str:
        return f"RandomTraining({vars(self)})"

    def make(self) -> Hooks:
        return Hooks(self.does, **self.module)

    def callbacks(self, folder: str) -> list[L.Callback]:
        ends = ModelCheckpoint(folder, "end-{epoch}", save_on_train_epoch_end=True, save_top_k=-1)
        return [*(CALLBACKS[name](folder) for name in self.names), ends]
