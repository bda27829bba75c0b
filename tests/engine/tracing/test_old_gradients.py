"""Which gradients a recorded step looks at is seen by whatever name; so is which ones it clears first of all."""

from operator import attrgetter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.record import Recorder


@pytest.fixture
def net():
    net = nn.ModuleDict({"one": nn.Linear(2, 1, bias=False), "other": nn.Linear(2, 1, bias=False)})
    net["one"].weight.grad = torch.ones(1, 2)
    return net


def met(net, step):
    """Returns whose gradients a step asks for, and whose it clears first."""
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(net)))
    recorder.span(step, lambda: None)
    assert not recorder.recording.failed
    old = recorder.old_gradients
    return tuple({name for name in net if id(net[name].weight) in found} for found in (old.asked, old.cleared))


def loss(net):
    return (net["one"](torch.ones(2)) + net["other"](torch.ones(2))).sum()


@pytest.mark.parametrize(
    "ask",
    [
        lambda weight: weight.grad,
        lambda weight: weight._grad,
        attrgetter("grad"),
        lambda weight: getattr(weight, "gr" + "ad"),
        lambda weight: nn.utils.clip_grad_norm_([weight], 1.0),
        lambda weight: torch.optim.SGD([weight], lr=0.1).step(),
    ],
)
def test_who_is_asked(net, ask):
    for name in net:
        assert met(net, lambda name=name: ask(net[name].weight)) == ({name}, set())


def test_what_is_used_and_not_asked_for(net):
    assert met(net, lambda: loss(net).backward()) == (set(), set())


@pytest.mark.parametrize(
    "clear",
    [
        lambda net: torch.optim.SGD(net.parameters(), lr=0.1).zero_grad(),
        lambda net: net.zero_grad(),
        lambda net: [setattr(weight, "grad", None) for weight in net.parameters()],
        lambda net: [delattr(weight, "grad") for weight in net.parameters()],
    ],
)
def test_who_is_cleared(net, clear):
    def asked_behind():
        clear(net)
        loss(net).backward()
        return [weight.grad for weight in net.parameters()]

    assert met(net, asked_behind) == (set(), {"one", "other"})


def test_a_part_is_cleared(net):
    assert met(net, lambda: torch.optim.SGD(net["one"].parameters(), lr=0.1).zero_grad()) == (set(), {"one"})


def test_zeros_depend_on_what_is_there(net):
    assert met(net, lambda: net.zero_grad(set_to_none=False)) == ({"one", "other"}, set())


def test_what_is_cleared_behind_a_question(net):
    def asked_first():
        assert net["one"].weight.grad is not None
        net.zero_grad()

    assert met(net, asked_first) == ({"one"}, {"other"})


def test_what_is_cleared_behind_a_backward_pass(net):
    def added_to_first():
        loss(net).backward()
        net.zero_grad()

    assert met(net, added_to_first)[1] == set()


GRAD = attrgetter("grad")


def by_its_name(weight, found):
    return found if weight.grad is None else 2 * found


def under_another_mode(weight, found):
    with torch.device("cpu"):
        return by_its_name(weight, found)


def by_a_name_that_is_elsewhere(weight, found):
    return found if GRAD(weight) is None else 2 * found


@pytest.mark.parametrize("hook", [by_its_name, under_another_mode, by_a_name_that_is_elsewhere])
def test_a_hook_of_the_backward_pass_may_ask_for_any(net, hook):
    """Torch calls it where no function of its own is seen."""
    net["one"].weight.requires_grad_(False)
    net["other"].weight.register_hook(lambda found: hook(net["one"].weight, found))
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(net)))
    recorder.span(lambda: loss(net).backward(), lambda: None)
    assert recorder.old_gradients.asks_unseen


def test_who_is_given_a_gradient(net):
    weight = net["other"].weight
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(net)))
    recorder.span(lambda: setattr(weight, "grad", torch.zeros(1, 2)), lambda: None)
    assert recorder.old_gradients.given == {id(weight): (weight, None)}
    assert not recorder.old_gradients.asks_unseen


def test_what_cleared_gradients_were(net):
    one, other, before = net["one"].weight, net["other"].weight, net["one"].weight.grad
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(net)))
    recorder.span(net.zero_grad, lambda: None)
    assert recorder.old_gradients.given == {id(one): (one, before), id(other): (other, None)}


class Asks(nn.Module):
    """Asks for a gradient where a function of torch's calls it back; `how` may name gradients."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, y):
        return F.triplet_margin_with_distance_loss(x, y, y, distance_function=self.how)


def matches(x, y):
    match x:
        case torch.Tensor(grad=None):
            return (x - y).sum(1)
    return (y - x).sum(1)


def gets(x, y):
    return (x - y).sum(1) if all(getattr(x, name) is not None for name in ("data", "dtype")) else (y - x).sum(1)


@pytest.mark.parametrize(("how", "asks"), [(matches, True), (gets, False)])
def test_a_function_that_torch_calls_may_ask_for_any(net, how, asks):
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(net)))
    recorder.span(lambda: Asks(how)(torch.ones(2, 2), torch.zeros(2, 2)), lambda: None)
    assert recorder.old_gradients.asks_unseen is asks
