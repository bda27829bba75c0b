"""What a recording would freeze: each such thing is compiled soundly, or run eagerly with a warning, or refused.

Every hazard is put into a module that has nothing else and into one that uses what most modules use. It does nothing at
the first steps, so that two recordings look the same. The control: with detection off, each of these tests fails.
"""

import linecache
import random
import re
import threading
import time
from contextlib import nullcontext
from random import uniform

import numpy as np
import pytest
import torch

from gallery.case import Small
from lightning_sink import CompileError, SinkStrategy
from lightning_sink.engine.numbers.guards import Guard
from lightning_sink.engine.state.granted import Granted, State
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.tracing.questions import Question
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.tracing.recording import Recording
from parity import Net, assert_parity, both, loader, train

HAZARDS = {}
LATE = 9
"""The first batch of the 17 at which a hazard does something."""


def hazard(says=None, exact_line=True):
    """Registers a mixin; `says` is what the warning tells, None where the steps are compiled."""

    def register(kind):
        HAZARDS[kind.__name__] = (kind, says, exact_line)
        return kind

    return register


class Scaled:
    """Scales the loss by `factor`."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.factor(batch, batch_idx)


@hazard()
class BatchIdx(Scaled):
    def factor(self, batch, batch_idx):
        return 2.0 if batch_idx % 10 == LATE else 1.0


@hazard("`batch_idx` is needed as a plain number")
class BatchIdxAsAnIndex(Scaled):
    def factor(self, batch, batch_idx):
        return (1.0 + np.arange(17) / 100)[batch_idx]  # here


@hazard()
class GlobalStep(Scaled):
    def factor(self, batch, batch_idx):
        return 1.0 if self.global_step < LATE else 1 / (1 + self.trainer.global_step / 20)


@hazard()
class CurrentEpoch(Scaled):
    def factor(self, batch, batch_idx):
        return 0.5 * (self.current_epoch + 1)


@hazard()
class CurrentEpochAsAnIndex(Scaled):
    def factor(self, batch, batch_idx):
        return [1.0, 3.0][self.current_epoch]


@hazard()
class LearningRate(Scaled):
    def factor(self, batch, batch_idx):
        return 1.0 if self.optimizers().param_groups[0]["lr"] > 0.03 else 5.0

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, LATE), "interval": "step"}]


@hazard()
class PythonsGenerator(Scaled):
    def on_fit_start(self):
        random.seed(3)

    def factor(self, batch, batch_idx):
        return 3.0 if random.random() < 0.2 else 1.0


@hazard("Python's or numpy's global random generator")
class PythonsGeneratorByAName(PythonsGenerator):
    def factor(self, batch, batch_idx):
        return 3.0 if uniform(0.0, 1.0) < 0.2 else 1.0  # here


@hazard("Python's or numpy's global random generator")
class NumpysGenerator(Scaled):
    def on_fit_start(self):
        np.random.seed(3)

    def factor(self, batch, batch_idx):
        return 3.0 if np.random.rand(1)[0] < 0.2 else 1.0  # here


@hazard("draws from a generator of its own")
class OwnGenerator(Scaled):
    def factor(self, batch, batch_idx):
        if not hasattr(self, "generator"):
            self.generator = torch.Generator().manual_seed(3)
        return 1 + torch.rand((), generator=self.generator)  # here


@hazard()
class TorchsGenerator(Scaled):
    def factor(self, batch, batch_idx):
        return 1 + torch.rand(())


@hazard("`time.monotonic()` is read")
class Time(Scaled):
    def factor(self, batch, batch_idx):
        return 1.0 if time.monotonic() > 0 else 2.0  # here


@hazard()
class DataDependentBranch(Scaled):
    def factor(self, batch, batch_idx):
        return 3.0 if batch[0][0, 0] > 0 else 1.0  # here


@hazard("a value of a tensor decides")
class Item(Scaled):
    def factor(self, batch, batch_idx):
        return 2 if int(1000 * self.net[0].weight.mean()) % 2 else 1  # here


@hazard()
class WholeNumbersDivided(Scaled):
    def factor(self, batch, batch_idx):
        return (batch[1] > 0).sum() / (1 + batch_idx) + torch.div(1 + batch_idx, 1 + batch[1]).mean()


@hazard("the step changes Python state", exact_line=False)
class Counter(Scaled):
    def __init__(self):
        super().__init__()
        self.steps = {"train": {"all": 0}}

    def factor(self, batch, batch_idx):
        self.steps["train"]["all"] += 1
        return 2.0 if self.steps["train"]["all"] > LATE else 1.0


@hazard()
class OutputsList:
    def on_train_epoch_start(self):
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("spread", torch.stack(self.outputs).std())


@hazard()
class AttributeThatChangesBetweenEpochs(Scaled):
    def on_train_epoch_start(self):
        self.weight = 1.0 + self.current_epoch

    def factor(self, batch, batch_idx):
        return self.weight


@hazard()
class ClosedOverTensorFilledLater:
    def __init__(self):
        super().__init__()
        scale = torch.ones(())
        self.scale = lambda: scale

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.scale()

    def on_train_epoch_end(self):
        self.scale().fill_(3.0)


@hazard()
class ClosedOverNumberThatChanges:
    def __init__(self):
        super().__init__()
        box = {"scale": 1.0}
        self.box, self.scale = box, lambda: box["scale"]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.scale()

    def on_train_epoch_end(self):
        self.box["scale"] = 3.0


@hazard()
class HookOnAParameterAddedLater:
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[0].weight.register_hook(lambda gradient: gradient * 0.1)


@hazard()
class HookOnAModuleAddedLater:
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[0].register_forward_hook(lambda module, args, out: out * 0.5)


@hazard()
class FrozenLater:
    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch == 0)


@hazard()
class WeightDecayChangedLater:
    def on_train_epoch_start(self):
        for group in self.optimizers().param_groups:
            group["weight_decay"] = 0.1 * self.current_epoch


@hazard()
class HiddenState(Scaled):
    def on_train_epoch_start(self):
        self.hidden = torch.zeros(())

    def factor(self, batch, batch_idx):
        self.hidden = 0.9 * self.hidden + batch[0].mean()
        return 1 + self.hidden


@hazard("the step changes Python state: `prior`")
class ADistributionInAnAttribute(Scaled):
    def __init__(self):
        super().__init__()
        self.prior = torch.distributions.Normal(0.0, 1.0, validate_args=False)

    def factor(self, batch, batch_idx):
        out = 1 + self.prior.loc
        self.prior = torch.distributions.Normal(batch[0].mean(), 1.0, validate_args=False)  # here
        return out


@hazard("the step changes Python state", exact_line=False)
class HiddenStateInAnObject(Scaled):
    def __init__(self):
        super().__init__()
        self.box = _Box()

    def factor(self, batch, batch_idx):
        out = 1 + self.box.last
        self.box.last = batch[0].mean()
        return out


class _Box:
    __slots__ = ("last",)

    def __init__(self):
        self.last = torch.zeros(())


@hazard("a tensor is made anew in each step")
class TensorMadeOnTheHost(Scaled):
    """Of a number that nobody looks at."""

    def setup(self, stage):
        self.made = threading.Semaphore(0)

    def factor(self, batch, batch_idx):
        self.made.release()
        return torch.from_numpy(np.array([1.0 + self.made._value], "f"))[0]  # here


@hazard("the step returned no loss", exact_line=False)
class NoLossAtSome:
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 5 == 4 else loss


@hazard()
class EarlyReturn:
    def training_step(self, batch, batch_idx):
        if batch_idx % 10 == LATE:
            return self.net[0].weight.square().sum()
        return super().training_step(batch, batch_idx)


@hazard()
class SkippedRestOfTheEpoch:
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == LATE else None


@hazard("`print()` is called")
class Print:
    def training_step(self, batch, batch_idx):
        print(end="")  # here
        return super().training_step(batch, batch_idx)


@hazard("`LightningModule.print()` is called")
class PrintOfTheModule:
    def training_step(self, batch, batch_idx):
        self.print(end="")  # here
        return super().training_step(batch, batch_idx)


@hazard("`logger` is read")
class LoggerCalledByHand:
    def training_step(self, batch, batch_idx):
        self.logger.log_hyperparams({"by hand": self.global_step})  # here
        return super().training_step(batch, batch_idx)


def module(name, base):
    kind = HAZARDS[name][0]
    return type(name, (kind, base), {})()


def check(name, base, verify=0):
    """Trains plainly and in sinks and asserts what is promised of the hazard."""
    _, says, exact_line = HAZARDS[name]
    strategy = SinkStrategy(6, epoch="dataset", engine="traced", verify=verify)
    plain, sink = both(lambda: module(name, base), lambda: loader(17, last=8), strategy, max_epochs=2)
    assert_parity(plain, sink)
    warned = [text for text in sink.warned if "runs eagerly" in text]
    if says is None:
        assert not warned, warned
        assert sink.engine == "traced"
        return
    (text,) = [text for text in warned if says in text]
    path, line = re.search(r"\(([^()]*):(\d+)\)\. To compile", text).groups()
    assert path.removeprefix("no line is known; the step begins at ") == __file__
    if exact_line:
        assert "# here" in linecache.getline(path, int(line))


BASES = pytest.mark.parametrize("base", [Small, Net])


@pytest.mark.narrow(13)
@BASES
@pytest.mark.parametrize("name", HAZARDS)
def test_hazard(name, base):
    check(name, base)


@pytest.mark.parametrize("name", [name for name, (_, says, _) in HAZARDS.items() if says])
def test_a_fallback_can_be_an_error_of_the_same_text(name):
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced", fallback="error")
    with pytest.raises(CompileError) as caught:
        train(module(name, Small), loader(17, last=8), strategy, max_epochs=2)
    assert HAZARDS[name][1] in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def blind(patch):
    """Switches detection off: what is read is frozen, and what is frozen stands for every step."""
    patch.setattr(Recording, "hazard", lambda self, what, where=None: None)
    patch.setattr(Recorder, "watched", lambda self, name, value: value)
    patch.setattr(Hyperparameters, "lifted", lambda self, uses: nullcontext())
    patch.setattr(Hyperparameters, "update", lambda self: False)
    patch.setattr(Guard, "holds", lambda self: True)
    patch.setattr(Question, "holds", lambda self, leaves: True)
    patch.setattr(Granted, "state", lambda self: State((), (), {}, (), (), (), frozenset()))
    patch.setattr(Granted, "python", lambda self: {})


# Found without detection: the recordings of two steps, and the tensors in slots, show them.
SHOWN = {
    "ClosedOverTensorFilledLater",
    "HiddenState",
    "TensorMadeOnTheHost",
    "TorchsGenerator",
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", [name for name in HAZARDS if name not in SHOWN])
def test_control_without_detection_each_of_these_fails(name, monkeypatch):
    blind(monkeypatch)
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError, RuntimeError)):
        check(name, Net)
