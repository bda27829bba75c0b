"""Which hooks do nothing but set an optimizer's options is told by their code."""

import math
import random
import time
from math import cos

import lightning as L
import numpy as np
import pytest
import torch

from lightning_sink.trainer.only_options import only_sets_options

OPTIONS = {"lr", "momentum", "betas", "weight_decay"}
TABLE = {0: 0.1, 1: 0.2}
TENSOR = torch.tensor(0.1)


def helper(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def prints(optimizer, rate):
    print(rate)
    helper(optimizer, rate)


class Known(L.LightningModule):
    """Each function sets options, and does nothing else."""

    peak = 0.1

    @property
    def ceiling(self):
        return min(self.peak, 0.2)

    def own(self, optimizer):
        optimizer.param_groups[0]["lr"] = self.peak

    def plainly(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        if self.trainer.global_step < 500:
            scale = min(1.0, float(self.trainer.global_step + 1) / 500.0)
            for group in optimizer.param_groups:
                group["lr"] = scale * self.hparams.learning_rate

    def by_super(self, epoch, batch_idx, optimizer, optimizer_closure):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        optimizer.param_groups[0]["lr"] *= 0.9

    def in_place_twice(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.param_groups[0]["weight_decay"] += 0.1
        optimizer.step(closure)

    def by_math(self, epoch, batch_idx, optimizer, closure):
        rate = 0.5 * (1 + math.cos(math.pi * batch_idx / 10)) + cos(batch_idx) + np.sin(batch_idx)
        optimizer.param_groups[0]["lr"] = round(rate, 3)
        optimizer.step(closure=closure)

    def by_a_table(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = np.interp(batch_idx, [0, 10], [0.0, 1.0]) + TABLE[epoch % 2]
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        optimizer.step(closure=closure)

    def by_a_function(self, epoch, batch_idx, optimizer, closure):
        helper(optimizer, rate=self.ceiling)
        optimizer.step(closure=closure)

    def by_a_method(self, *args, **kwargs):
        self.own(args[2])
        return args[2].step(*args[3:], **kwargs)

    def without_a_step(self, batch, batch_idx):
        for index, group in enumerate(self.optimizers().param_groups):
            group["lr"] = 0.1 / (1 + index)

    def of_the_trainer(self, batch, batch_idx):
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.1 if self.trainer.is_last_batch else 0.2


class Unknown(Known):
    """Each function does something else, or may."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.plain_tensor = torch.ones(())
        self.counts, self.losses = {"lr": 0}, []

    @property
    def measured(self):
        return self.scale.item()

    def sets_nothing(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)

    def sets_an_attribute(self, epoch, batch_idx, optimizer, closure):
        self.rate = 0.1
        optimizer.param_groups[0]["lr"] = self.rate

    def sets_something_else(self, epoch, batch_idx, optimizer, closure):
        self.counts["steps"] = 1
        optimizer.param_groups[0]["lr"] = 0.1

    def counts_in_place(self, epoch, batch_idx, optimizer, closure):
        self.counts["steps"] += 1
        optimizer.param_groups[0]["lr"] = 0.1

    def sets_by_a_name(self, epoch, batch_idx, optimizer, closure, key="lr"):
        optimizer.param_groups[0][key] = 0.1

    def sets_a_global(self, epoch, batch_idx, optimizer, closure):
        global RATE
        RATE = 0.1
        optimizer.param_groups[0]["lr"] = RATE

    def appends(self, epoch, batch_idx, optimizer, closure):
        self.losses.append(1)
        optimizer.param_groups[0]["lr"] = 0.1

    def reads_a_buffer(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.scale)

    def reads_a_tensor(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.plain_tensor)

    def reads_a_global_tensor(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(TENSOR)

    def reads_by_a_property(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = self.measured

    def reads_metrics(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 * len(self.trainer.callback_metrics)

    def reads_gradients(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 if optimizer.param_groups[0]["params"][0].grad is None else 0.2

    def logs(self, epoch, batch_idx, optimizer, closure):
        self.log("rate", 0.1)
        optimizer.param_groups[0]["lr"] = 0.1

    def prints(self, epoch, batch_idx, optimizer, closure):
        print(batch_idx)
        optimizer.param_groups[0]["lr"] = 0.1

    def calls_what_prints(self, epoch, batch_idx, optimizer, closure):
        prints(optimizer, 0.1)

    def draws(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = random.random()

    def draws_by_numpy(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = np.random.uniform()

    def reads_the_clock(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = time.time()

    def uses_torch(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = torch.ones(()).item()

    def calls_the_closure(self, epoch, batch_idx, optimizer, closure):
        closure()
        optimizer.param_groups[0]["lr"] = 0.1

    def calls_what_it_finds(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = TABLE[0](batch_idx)

    def calls_by_another_name(self, epoch, batch_idx, optimizer, closure):
        call = self.counts["lr"]
        optimizer.param_groups[0]["lr"] = call(min)

    def clears_gradients(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.1

    def steps_twice(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        optimizer.step(closure=closure)
        optimizer.param_groups[0]["lr"] = 0.1

    def ends_the_epoch(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1
        return -1 if batch_idx > 3 else None

    def imports(self, epoch, batch_idx, optimizer, closure):
        import os

        optimizer.param_groups[0]["lr"] = 0.1 * len(os.sep)

    def raises(self, epoch, batch_idx, optimizer, closure):
        if batch_idx > 3:
            raise ValueError
        optimizer.param_groups[0]["lr"] = 0.1

    def closes_over(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = sum(rate for rate in [0.1])


def functions(kind):
    plumbing = ("own", "ceiling", "measured", "peak")
    return [name for name in vars(kind) if not name.startswith("__") and name not in plumbing]


@pytest.mark.parametrize("name", functions(Known))
def test_hooks_that_only_set_options_are_known(name):
    module = Known()
    assert only_sets_options(getattr(module, name), module, OPTIONS, unread=0)


@pytest.mark.parametrize("name", functions(Unknown))
def test_hooks_that_may_do_more_are_not(name):
    module = Unknown()
    assert not only_sets_options(getattr(module, name), module, OPTIONS, unread=0)


def test_a_hook_that_reads_its_batch_is_not_run_without_one():
    class Reads(L.LightningModule):
        def on_train_batch_start(self, batch, batch_idx):
            self.optimizers().param_groups[0]["lr"] = 0.1 / len(batch)

        def on_train_batch_end(self, outputs, b, batch_idx):
            self.optimizers().param_groups[0]["lr"] = 0.1 / len(b)

    module = Reads()
    assert only_sets_options(module.on_train_batch_start, module, OPTIONS, unread=0)
    assert not only_sets_options(module.on_train_batch_start, module, OPTIONS, unread=1)
    assert only_sets_options(module.on_train_batch_end, module, OPTIONS, unread=1)
    assert not only_sets_options(module.on_train_batch_end, module, OPTIONS, unread=2)


def test_what_is_no_method_of_the_module_is_not_known():
    module, other = Known(), Known()
    assert not only_sets_options(other.plainly, module, OPTIONS, unread=0)
    assert not only_sets_options(helper, module, OPTIONS, unread=0)
    assert not only_sets_options(min, module, OPTIONS, unread=0)


def test_another_option_is_not_known():
    module = Known()
    assert not only_sets_options(module.plainly, module, {"momentum"}, unread=0)
