"""A step that asks which tensor a place holds is answered for the tensor that hooks have put there since."""

import functools
import weakref

import lightning as L
import pytest
import torch
from torch import autograd, nn

from lightning_sink import SinkStrategy
from lightning_sink.engine.programs.bystanders import Bystanders
from lightning_sink.engine.tracing.identities import Identities
from parity import Net, assert_parity, both, loader

NONE = torch.full((4,), 0.5)
SUMS = {}
KNOWN = torch.zeros_like(Net().net[0].weight)


@functools.lru_cache(maxsize=64)
def total(tensor):
    return tensor.sum()


class Masked(Net):
    """Each epoch has a mask of its own but for one, which has what others may know."""

    def __init__(self):
        super().__init__()
        self.net[3] = nn.Identity()
        self.none = NONE.clone()
        self.mask = torch.ones(4)

    def on_train_epoch_start(self):
        self.mask = self.usual() if self.current_epoch != 5 else self.special()

    def usual(self):
        return torch.rand(4)

    def special(self):
        return self.none

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.weight()


class IsAnAttribute(Masked):
    def weight(self):
        return self.mask.sum() * (3 if self.mask is self.none else 1)


class IsAGlobal(Masked):
    def special(self):
        return NONE

    def weight(self):
        return self.mask.sum() * (3 if self.mask is NONE else 1)


class KeepsBy(Masked):
    """Computes something once for each mask."""

    def __init__(self):
        super().__init__()
        self.known, self.key, self.seen = torch.ones(()), None, dict

    def weight(self):
        if not self.is_known():
            self.known = self.mask.sum()
        return (self.mask * self.known).mean()


class KeepsByIdentity(KeepsBy):
    def is_known(self):
        before, self.key = self.key, id(self.mask)
        return before == self.key


class KeepsByReference(KeepsBy):
    def is_known(self):
        before = self.seen()
        if before is not self.mask:
            self.seen = weakref.ref(self.mask)
        return before is self.mask


class KeepsByKey(Masked):
    def weight(self):
        if self.mask not in SUMS:
            SUMS[self.mask] = self.mask.sum()
        return self.mask.mean() * SUMS[self.mask]


class KeepsInACache(Masked):
    def weight(self):
        return self.mask.mean() * total(self.mask)


class AsksForItsPlace(Masked):
    def special(self):
        return torch.rand(8)[4:]

    def weight(self):
        return self.mask.sum() * (1 + self.mask.storage_offset())


class AsksForItsBase(AsksForItsPlace):
    def weight(self):
        return self.mask.sum() * (1 if self.mask._base is None else 3)


class AsksHowItWasMade(Masked):
    def special(self):
        with torch.inference_mode():
            return torch.rand(4)

    def weight(self):
        return self.none.sum() * (3 if self.mask.is_inference() else 1) + self.mask.detach().sum()


class BeginsAgain(Masked):
    """The steps put it there themselves, and a hook puts there what it was."""

    def weight(self):
        factor = 3 if self.mask is self.none else 1
        self.mask = self.mask * 0.9 + 0.1
        return self.mask.sum() * factor


class IsOnlyAsked(Masked):
    """The steps compute with nothing of what they ask."""

    def special(self):
        return NONE

    def weight(self):
        return 3 if self.mask is NONE else 1


ALL = [
    IsOnlyAsked,
    IsAnAttribute,
    IsAGlobal,
    KeepsByIdentity,
    KeepsByReference,
    KeepsByKey,
    KeepsInACache,
    AsksForItsPlace,
]
ALL += [AsksForItsBase, AsksHowItWasMade, BeginsAgain]


class AsksForAGradient(Masked):
    def special(self):
        return torch.rand(4, requires_grad=True)

    def weight(self):
        return self.mask.sum() * (3 if self.mask.requires_grad else 1)


class Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 2 if func is torch.Tensor.sum else found


class IsOfAnotherClass(Masked):
    def special(self):
        return torch.rand(4).as_subclass(Doubled)

    def weight(self):
        return torch.stack([self.mask.sum()]).prod()


class IsTakenOutOfItsClass(Masked):
    """No operation is seen that gives what the step computes with."""

    def weight(self):
        return self.mask.sum().as_subclass(torch.Tensor)


class AsksOfOthers(Net):
    """Gradients accumulate in steps that ask nothing of these."""

    def __init__(self):
        super().__init__()
        self.scale = self.shared = torch.ones(())

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 if self.scale is self.shared else 2)


class AsksForGradients(AsksOfOthers):
    """Counts the steps that begin with a gradient that it has not seen."""

    def __init__(self):
        super().__init__()
        self.seen, self.others = None, torch.zeros((), dtype=torch.int64)

    def training_step(self, batch, batch_idx):
        if self.find() is not self.seen:
            self.others += 1
            self.seen = self.find()
        return super().training_step(batch, batch_idx)

    def find(self):
        return self.net[0].weight.grad


class AsksForGradientsByTheirName(AsksForGradients):
    def find(self):
        return getattr(self.net[0].weight, "grad")  # noqa: B009


class KnowsAGradient(Net):
    """One gradient is a tensor that a callback knows."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (3 if self.net[0].weight.grad is KNOWN else 1)


class PutsAGradient(L.Callback):
    """Into a window of three batches, at the beginning of a sink."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (5, 5):
            weight = pl_module.net[0].weight
            weight.grad = KNOWN.copy_(weight.grad)


def trained(make, batches=12, **options):
    strategy = SinkStrategy(5, epoch="dataset", engine="traced")
    return both(make, lambda: loader(batches, last=8), strategy, max_epochs=8, **options)


@pytest.mark.narrow(11)
@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
@pytest.mark.parametrize("batches", [12, 25])
@pytest.mark.parametrize("make", [AsksForAGradient, IsOfAnotherClass, IsTakenOutOfItsClass])
def test_tensors_of_other_kinds_are_no_such(make, batches):
    assert_parity(*trained(make, batches))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", ALL)
def test_which_tensor_it_is_decides_in_each_epoch(make):
    plain, sink = trained(make)
    assert_parity(plain, sink)
    assert sink.engine == "traced"


@pytest.mark.narrow(11)
@pytest.mark.parametrize("make", [IsOnlyAsked, IsAGlobal, KeepsByIdentity, KeepsByKey, KeepsInACache, AsksForItsPlace])
def test_control_steps_that_ask_are_taken_for_others(make, monkeypatch):
    monkeypatch.setattr(Identities, "may_ask", lambda *_, **__: False)
    with pytest.raises(AssertionError):
        assert_parity(*trained(make))


def test_which_gradients_they_are_is_asked_by_code_that_names_them():
    plain, sink = trained(AsksOfOthers, accumulate_grad_batches=3)
    assert_parity(plain, sink)
    assert sink.engine == "traced"


@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
@pytest.mark.parametrize("make", [AsksForGradients, AsksForGradientsByTheirName])
def test_code_that_names_gradients_is_answered(make):
    plain, sink = trained(make, accumulate_grad_batches=3)
    assert_parity(plain, sink)
    assert plain.module.others == sink.module.others


@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
def test_a_gradient_that_others_put_there_is_known():
    assert_parity(*trained(KnowsAGradient, accumulate_grad_batches=3, callbacks=lambda: [PutsAGradient()]))


@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
def test_control_whose_code_names_gradients_counts(monkeypatch):
    monkeypatch.setattr("lightning_sink.engine.tracing.identities._gets_gradients", lambda code: False)
    with pytest.raises(AssertionError):
        assert_parity(*trained(KnowsAGradient, accumulate_grad_batches=3, callbacks=lambda: [PutsAGradient()]))


def test_control_what_places_hold_is_told_apart_by_its_looks(monkeypatch):
    monkeypatch.setattr(Bystanders, "are_the_same", lambda self: True)
    with pytest.raises(AssertionError):
        assert_parity(*trained(BeginsAgain))


def is_none(x):
    return x is None or x is not True


def is_of_type(x):
    return type(x) is dict


def has_an_identity(x):
    return x.id


def is_another(x, y):
    return x is y


def gets_a_gradient(x):
    return x.grad


def sets_a_gradient(x):
    x.grad = None


def gets_an_attribute_by_its_name(x):
    return getattr(x, "grad")  # noqa: B009


def computes_gradients(x):
    return torch.autograd.grad(x.sum(), x), autograd.grad(x.sum(), x)


def asks_for_the_identity(x):
    return id(x)


@pytest.mark.parametrize("function", [is_none, is_of_type, has_an_identity])
def test_lines_that_tell_no_tensor_from_another(function):
    identities = Identities()
    identities.finish([function.__code__])
    assert not identities.may_ask(NONE, is_gradient=False)


@pytest.mark.parametrize("function", [is_another, asks_for_the_identity])
def test_lines_that_may_tell_any_tensor_from_another(function):
    identities = Identities()
    identities.finish([function.__code__])
    assert identities.may_ask(NONE, is_gradient=False)
    assert not identities.may_ask(NONE, is_gradient=True)


@pytest.mark.parametrize("function", [gets_a_gradient, sets_a_gradient, gets_an_attribute_by_its_name])
def test_lines_that_have_a_gradient_beside_such(function):
    identities = Identities()
    identities.finish([function.__code__, is_another.__code__])
    assert identities.may_ask(NONE, is_gradient=True)


def test_lines_that_compute_gradients_have_none_of_a_parameter():
    identities = Identities()
    identities.finish([computes_gradients.__code__, is_another.__code__])
    assert not identities.may_ask(NONE, is_gradient=True)
