"""Programs go on where what they took for granted comes again."""

import pytest
import torch
from loop import Training, batches, both, loss_of, mlp, sgd

from lightning_sink.engine.programs.maker import ProgramMaker

SINKS = [batches(10)] * 10


class Phased(torch.nn.Module):
    """Goes one way or another, by an attribute, and computes with more of them."""

    def __init__(self):
        super().__init__()
        self.net, self.phase, self.factor = mlp(), "first", 1.0

    def forward(self, x):
        if self.phase == "second":
            return self.net(2 * x)
        return self.net(x) * self.factor * getattr(self, "share", 1.0)


@pytest.fixture
def recorded(monkeypatch):
    """The sinks in which steps were recorded."""
    made, record = [], ProgramMaker._record

    def recording(self, sink, step, candidate):
        made.append(sink._training.index // 10)
        return record(self, sink, step, candidate)

    monkeypatch.setattr(ProgramMaker, "_record", recording)
    return made


def trained(between, module=Phased):
    def build():
        made = module()
        return Training(made, sgd(made), lambda batch, index: loss_of(made, batch), between)

    return both(build, SINKS, costly=True)


def alternate(training, sink):
    training.module.phase = "first" if sink % 2 else "second"


def test_an_attribute_that_goes_back_and_forth_has_nothing_recorded_for_ever(recorded):
    _, sink = trained(alternate)
    assert sink.compiled
    assert max(recorded) < 3


def changes(what):
    """Changes something else in a sink in which the attribute is another one."""

    def between(training, sink):
        alternate(training, sink)
        if sink == 4:
            what(training.module)

    return between


CHANGED = {
    "a number": lambda module: setattr(module, "factor", 0.25),
    "a number that was whole": lambda module: setattr(module, "factor", 2),
    "one that was not there": lambda module: setattr(module, "share", 0.5),
    "weights that are frozen": lambda module: module.net[0].requires_grad_(False),
    "a hook": lambda module: module.net.register_forward_hook(lambda module, given, out: 0.5 * out),
    "training": lambda module: module.net.train(False),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_meanwhile_is_seen(name):
    trained(changes(CHANGED[name]))


def test_control_what_changes_meanwhile_makes_a_difference():
    plain, _ = trained(alternate)
    other, _ = trained(changes(CHANGED["a number"]))
    assert not torch.equal(plain.tensors["loss 99"], other.tensors["loss 99"])


def test_a_number_that_keeps_changing_beside_it():
    def between(training, sink):
        alternate(training, sink)
        training.module.factor = 1.0 + 0.05 * sink

    trained(between)


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.matrix = mlp(), torch.eye(3)

    def forward(self, x):
        return (self.matrix @ self.net(x).t()).t()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch says so of each
def test_a_tensor_that_is_sparse_for_a_while():
    def between(training, sink):
        training.module.matrix = torch.eye(3).to_sparse_csr() if sink == 5 else torch.eye(3)

    trained(between, Mixed)
