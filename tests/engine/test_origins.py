"""Python may look at values that are the same in each step, and at no others."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.counts import Counts
from lightning_sink.engine.hyper import Hyperparameters
from lightning_sink.engine.record import Recorder
from lightning_sink.engine.slots import Parts, Snapshot

MASK = torch.triu(torch.ones(3, 3))
COUNT = torch.zeros(())


def hazards(step):
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.randn(3, 3)
    recorder = Recorder(Hyperparameters([optimizer]), Counts({}), Snapshot(Parts(module), [optimizer]), {}, [x])
    output = recorder.span(lambda: step(module, x), lambda: None)
    return [hazard.what for hazard in recorder.finish([output]).hazards]


def filled(tensor, value):
    tensor.copy_(value)
    return tensor


QUIET = {
    "closed-over tensor": lambda m, x: x if bool((torch.triu(torch.ones(3, 3)) == MASK).all()) else -x,
    "factory": lambda m, x: x * float(torch.arange(4).sum()),
}
CHANGING = {
    "batch": lambda m, x: x * float(x.sum()),
    "view of the batch": lambda m, x: x * float(x[0].t().max()),
    "parameter": lambda m, x: x * float(m.weight.sum()),
    "detached parameter": lambda m, x: x * float(m.weight.detach().sum()),
    "draw": lambda m, x: x * float(torch.rand(3).sum()),
    "filled with the batch": lambda m, x: x * float(filled(torch.zeros(3, 3), x).sum()),
    "filled in a view": lambda m, x: (lambda z: (z[0].add_(x[0]), x * float(z.sum()))[1])(torch.zeros(3, 3)),
    "written later": lambda m, x: (x * float(COUNT), COUNT.add_(1))[0],
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_the_same_in_each_step_may_be_looked_at(name):
    assert hazards(QUIET[name]) == []


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_with_the_step_may_not(name):
    assert any("a value of a tensor decides" in what for what in hazards(CHANGING[name]))
