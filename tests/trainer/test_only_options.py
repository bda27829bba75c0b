"""Which hooks do nothing but set an optimizer's options is told by their source."""

import math
import random
import time
from math import cos
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch

from lightning_sink.trainer.only_options import CLOSURE, NUMBER, OPTIMIZER, what_it_asks_for

GROUPS = [{"params": [], "lr": 0.1, "momentum": 0.9, "betas": (0.9, 0.99), "weight_decay": 0.0}]
ARGUMENTS = {3: ("", NUMBER), 4: ("", "", NUMBER), 5: (NUMBER, NUMBER, OPTIMIZER, CLOSURE)}
TABLE = {0: 0.1, 1: 0.2}
FLOOR = 0.01
TENSOR = torch.tensor(0.1)
CONFIG = SimpleNamespace(warmup=5, peak=0.1)


def helper(optimizer, rate):
    """Sets a rate.

    A text of
        several lines.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def ends_early(optimizer, step):
    if step > 5:
        return
    optimizer.param_groups[0]["lr"] = 0.1


def prints(optimizer, rate):
    print(rate)
    helper(optimizer, rate)


class Holder:
    def __init__(self):
        self.rate, self.tensor = 0.1, torch.ones(())

    def step(self):
        self.rate += 1


class Known(L.LightningModule):
    """Each function sets options, and does nothing else."""

    peak = 0.1

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"learning_rate": 0.1, "more": {"deep": 2}})
        self.milestones, self.held = [3, 5], Holder()

    @property
    def ceiling(self):
        return min(self.peak, 0.2)

    def own(self, optimizer):
        optimizer.param_groups[0]["lr"] = self.peak

    def plainly(self, epoch, batch_idx, optimizer, closure):
        """As the guide has it.

        Args:
            closure: Of several lines, as documented hooks are.
        """
        optimizer.step(closure=closure)
        if self.trainer.global_step < 500:
            scale = min(1.0, float(self.trainer.global_step + 1) / 500.0)
            for group in optimizer.param_groups:
                group["lr"] = scale * self.hparams.learning_rate * self.hparams.more.deep

    def in_place(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.param_groups[0]["weight_decay"] += 0.1
        optimizer.step(closure)

    def by_math(self, epoch, batch_idx, optimizer, closure):
        rate = 0.5 * (1 + math.cos(math.pi * batch_idx / 10)) + cos(batch_idx) + np.sin(batch_idx)
        optimizer.param_groups[0]["lr"] = round(max(rate, FLOOR), 3) ** -1
        return optimizer.step(closure=closure)

    def by_tables(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = np.interp(batch_idx, [0, 10], [0.0, 1.0]) + TABLE[epoch % 2]
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        for milestone in self.milestones:
            if batch_idx in self.milestones and batch_idx >= milestone:
                optimizer.param_groups[0]["lr"] /= 2
        optimizer.step(closure=closure)

    def by_a_function(self, epoch, batch_idx, optimizer, closure):
        rate = helper(optimizer, self.ceiling)
        ends_early(optimizer, batch_idx)
        optimizer.param_groups[0]["momentum"] = rate
        optimizer.step(closure=closure)

    def by_a_method(self, epoch, batch_idx, optimizer, closure):
        self.own(optimizer)
        optimizer.step(closure=closure)

    def by_an_object(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = self.held.rate * CONFIG.peak
        optimizer.step(closure=closure)

    def by_names_of_its_own(this, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = this.peak * optimizer.param_groups[0].get("lr_scale", 1)
        optimizer.step(closure=closure)

    def of_the_modules_optimizers(self, batch, batch_idx):
        for index, group in enumerate(self.optimizers().param_groups):
            group["lr"] = 0.1 / (1 + index)
        for group, scale in zip(self.optimizers().optimizer.param_groups, (1, 2)):  # noqa: B905
            group["lr"] *= scale

    def of_the_trainer(self, outputs, batch, batch_idx):
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.1 if self.trainer.is_last_batch else 0.2


class BySuper(Known):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        optimizer.param_groups[-1]["lr"] *= 0.9


class Below(Known):
    """A class of the user's whose step does more."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        self.held.tensor.mul_(0.9)


class Unknown(Below):
    """Each function does something else, or may."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.plain_tensor = torch.ones(())
        self.counts, self.losses, self.stats = {"lr": 0}, [], {"ema": torch.ones(())}
        self.schedule = Holder()

    @property
    def measured(self):
        return self.scale.item()

    def ends(self, batch_idx):
        return -1 if batch_idx > 3 else None

    def sets_nothing(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)

    def sets_an_attribute(self, epoch, batch_idx, optimizer, closure):
        self.rate = optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def sets_something_else(self, epoch, batch_idx, optimizer, closure):
        self.counts["lr"] = 1
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def counts_in_place(self, epoch, batch_idx, optimizer, closure):
        self.counts["lr"] += 1
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def changes_an_alias(self, epoch, batch_idx, optimizer, closure):
        milestones = self.milestones
        milestones += [batch_idx]
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def sets_parameters(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.param_groups[0]["params"] = []
        optimizer.step(closure=closure)

    def sets_by_a_name(self, epoch, batch_idx, optimizer, closure):
        key = "lr"
        optimizer.param_groups[0][key] = 0.1
        optimizer.step(closure=closure)

    def sets_a_global(self, epoch, batch_idx, optimizer, closure):
        global RATE
        RATE = optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def appends(self, epoch, batch_idx, optimizer, closure):
        self.losses.append(1)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def reads_a_list_that_may_grow(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + len(self.losses))
        optimizer.step(closure=closure)

    def reads_a_buffer(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.scale) if batch_idx > 50 else 0.1
        optimizer.step(closure=closure)

    def reads_a_tensor(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.plain_tensor)
        optimizer.step(closure=closure)

    def reads_a_tensor_of_an_object(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.held.tensor)
        optimizer.step(closure=closure)

    def reads_a_tensor_in_a_dictionary(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(self.stats["ema"]) if batch_idx > 10 else 0.1
        optimizer.step(closure=closure)

    def reads_a_global_tensor(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = float(TENSOR)
        optimizer.step(closure=closure)

    def reads_by_a_property(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = self.measured
        optimizer.step(closure=closure)

    def reads_metrics(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 * len(self.trainer.callback_metrics)
        optimizer.step(closure=closure)

    def reads_state(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 * len(optimizer.state)
        optimizer.step(closure=closure)

    def reads_gradients(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1 if optimizer.param_groups[0]["params"][0].grad is None else 0.2
        optimizer.step(closure=closure)

    def logs(self, epoch, batch_idx, optimizer, closure):
        self.log("rate", 0.1)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def prints(self, epoch, batch_idx, optimizer, closure):
        print(batch_idx)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def calls_what_prints(self, epoch, batch_idx, optimizer, closure):
        prints(optimizer, 0.1)
        optimizer.step(closure=closure)

    def draws(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = random.random()
        optimizer.step(closure=closure)

    def draws_by_numpy(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = np.random.uniform()
        optimizer.step(closure=closure)

    def reads_the_clock(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = time.time()
        optimizer.step(closure=closure)

    def uses_torch(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = torch.ones(()).item()
        optimizer.step(closure=closure)

    def calls_the_closure(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1
        closure()
        optimizer.step()

    def calls_by_another_name(self, epoch, batch_idx, optimizer, closure):
        call = self.own
        call(optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def clears_gradients(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.1

    def steps_twice(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        optimizer.step(closure=closure)
        optimizer.param_groups[0]["lr"] = 0.1

    def steps_sometimes(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1
        if batch_idx % 2:
            optimizer.step(closure=closure)

    def steps_after_an_early_end(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1
        if batch_idx % 2:
            return
        optimizer.step(closure=closure)

    def steps_something_else(self, epoch, batch_idx, optimizer, closure):
        optimizer.step(closure=closure)
        self.schedule.step()
        optimizer.param_groups[0]["lr"] = 0.1

    def steps_the_class_below(self, epoch, batch_idx, optimizer, closure):
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        optimizer.param_groups[0]["lr"] = 0.1

    def ends_the_epoch(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1
        return -1 if batch_idx > 3 else None

    def ends_the_epoch_by_a_method(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1
        return self.ends(batch_idx)

    def reads_its_batch(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 / len(batch)

    def reads_its_outputs(self, outputs, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 / len(outputs)

    def imports(self, epoch, batch_idx, optimizer, closure):
        import os

        optimizer.param_groups[0]["lr"] = 0.1 * len(os.sep)
        optimizer.step(closure=closure)

    def raises(self, epoch, batch_idx, optimizer, closure):
        if batch_idx > 3:
            raise ValueError
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    def goes_on_for_ever(self, epoch, batch_idx, optimizer, closure):
        while batch_idx > 3:
            optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)

    @torch.no_grad()
    def is_decorated(self, epoch, batch_idx, optimizer, closure):
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=closure)


def functions(kind):
    known = {name: value for name, value in vars(kind).items() if not isinstance(value, property) and callable(value)}
    return [name for name in known if not name.startswith("__") and name not in ("own", "ends", "optimizer_step")]


def only_sets(module, name, groups=GROUPS):
    module._trainer = SimpleNamespace(optimizers=[None])
    hook = getattr(module, name)
    code = hook.__func__.__code__ if name != "is_decorated" else hook.__func__.__wrapped__.__code__
    return what_it_asks_for(hook, module, ARGUMENTS[code.co_argcount], groups) is not None


@pytest.mark.parametrize("name", functions(Known))
def test_hooks_that_only_set_options_are_known(name):
    assert only_sets(Known(), name)


@pytest.mark.parametrize("name", functions(Unknown))
def test_hooks_that_may_do_more_are_not(name):
    assert not only_sets(Unknown(), name)


def test_the_step_of_a_lightning_module_itself_is_known_by_super():
    class OfAnothersStep(Below):
        optimizer_step = BySuper.optimizer_step

    class Again(BySuper):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            optimizer.param_groups[-1]["lr"] *= 0.9

    assert only_sets(BySuper(), "optimizer_step")
    assert not only_sets(OfAnothersStep(), "optimizer_step")
    assert not only_sets(Again(), "optimizer_step")


def test_what_is_no_method_of_the_module_is_not_known():
    module, arguments = Known(), ARGUMENTS[5]
    for hook in (Known().plainly, helper, min, lambda epoch, batch_idx, optimizer, closure: None):
        assert what_it_asks_for(hook, module, arguments, GROUPS) is None


def test_options_that_are_tensors_or_not_there_are_not_known():
    assert not only_sets(Known(), "plainly", [{**GROUPS[0], "lr": torch.tensor(0.1)}])
    assert not only_sets(Known(), "plainly", [{"params": [], "momentum": 0.1}])


def test_an_attribute_that_is_no_number_any_more_is_not_known():
    module = Known()
    assert only_sets(module, "by_a_method")
    module.peak = torch.tensor(0.1)
    assert not only_sets(module, "by_a_method")


def test_a_function_whose_source_is_another_ones_by_now_is_not_known(tmp_path):
    path = tmp_path / "hooks.py"
    text = "def hook(self, epoch, batch_idx, optimizer, closure):\n    optimizer.param_groups[0]['lr'] = RATE\n"
    text += "    optimizer.step(closure=closure)\n"

    def made(compiled, written):
        path.write_text(text.replace("RATE", written))
        names = {}
        exec(compile(text.replace("RATE", compiled), str(path), "exec"), names)
        kind = type("Made", (Known,), {"hook": names["hook"]})
        return only_sets(kind(), "hook")

    assert made("0.1", "0.1")
    assert not made("0.25", "self.peak")
