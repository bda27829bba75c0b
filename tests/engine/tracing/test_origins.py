"""Python may look at values that are the same in each step, and at no others."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.record import Recorder

MASK = torch.triu(torch.ones(3, 3))
COUNT = torch.zeros(())


def hazards(step):
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.randn(3, 3).abs()
    module.rows = x[1:]
    recorder = Recorder(Hyperparameters([optimizer]), Counts({}), Snapshot(Parts(module, [optimizer])), [x])
    output = recorder.span(lambda: step(module, x), lambda: None)
    recording = recorder.finish([output])
    told = [hazard.what for hazard in recording.hazards] + [assumed.what for assumed in recording.assumed]
    return told, len(recording.questions)


def filled(tensor, value):
    tensor.copy_(value)
    return tensor


QUIET = {
    "closed-over tensor": lambda m, x: x if bool((torch.triu(torch.ones(3, 3)) == MASK).all()) else -x,
    "factory": lambda m, x: x * float(torch.arange(4).sum()),
    "shape of a parameter": lambda m, x: x * float(torch.ones_like(m.weight).sum()),
    "shape of a draw": lambda m, x: x * float(torch.rand(3).new_full((2, 3), 0.5).sum()),
}
OF_BATCH = {
    "batch": lambda m, x: x if x.sum() > 0 else -x,
    "view of the batch": lambda m, x: x if x[0].t().max() > 0 else -x,
    "batch and what is closed over": lambda m, x: x if torch.equal(x, MASK) else -x,
    "what is made of it": lambda m, x: x * int((x > torch.zeros(3, 3)).sum()),
    "written elsewhere": lambda m, x: (filled(torch.zeros(3, 3), x), x if x.sum() > 0 else -x)[1],
    "written behind that": lambda m, x: (lambda z: x if z.sum() > 0 and z.add_(1) is z else -x)(x + 1),
    "filled in the shape of an output": lambda m, x: x if filled(torch.zeros_like(m(x)), x).sum() > 0 else -x,
    "filled with the batch, and asked": lambda m, x: x if filled(torch.zeros(3, 3), x).sum() > 0 else -x,
    "batch with what was written to": lambda m, x: x if (x + filled(torch.zeros(3, 3), MASK)).sum() > 0 else -x,
}
plain = float
"""It stands for no number, under this name."""

CHANGING = {
    "batch": lambda m, x: x * plain(x.sum()),
    "view of the batch": lambda m, x: x * plain(x[0].t().max()),
    "parameter": lambda m, x: x * plain(m.weight.sum()),
    "detached parameter": lambda m, x: x * plain(m.weight.detach().sum()),
    "draw": lambda m, x: x * plain(torch.rand(3).sum()),
    "filled with a parameter": lambda m, x: x * plain(filled(torch.zeros_like(x), m.weight.detach()).sum()),
    "shape of a parameter, in its order": lambda m, x: x * plain(torch.zeros_like(m.weight.detach().t()).sum()),
    "filled with the batch": lambda m, x: x * plain(filled(torch.zeros(3, 3), x).sum()),
    "filled in a view": lambda m, x: (lambda z: (z[0].add_(x[0]), x * plain(z.sum()))[1])(torch.zeros(3, 3)),
    "batch and parameter": lambda m, x: x if (x + m.weight.detach()).sum() > 0 else -x,
    "batch and draw": lambda m, x: x if (x + torch.rand(3)).sum() > 0 else -x,
    "batch written to": lambda m, x: x if x.add_(1).sum() > 0 else -x,
    "batch written to later": lambda m, x: x.mul_(2) if x.sum() > 0 else x,
    "view of the batch from elsewhere": lambda m, x: x if m.rows.sum() > 0 else -x,
    "written later": lambda m, x: (x * plain(COUNT), COUNT.add_(1))[0],
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_the_same_in_each_step_may_be_looked_at(name):
    assert hazards(QUIET[name]) == ([], 0)


@pytest.mark.parametrize("name", OF_BATCH)
def test_what_the_batch_alone_gives_is_a_decision(name):
    assert hazards(OF_BATCH[name]) == ([], 1)


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_with_the_step_may_not(name):
    assert any("a value of a tensor decides" in what for what in hazards(CHANGING[name])[0])
