"""What programs take for granted changes exactly when they are no longer right."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.state.granted import Granted, agree
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts

LOOSE = nn.Parameter(torch.ones(1))


def made():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    optimizer = torch.optim.SGD([*module.parameters(), LOOSE], 0.1)
    return module, optimizer, Granted(Parts(module, [optimizer]), Hyperparameters([optimizer]))


CHANGES = {
    "mode": lambda module: module.eval(),
    "mode of a part": lambda module: module[1].eval(),
    "frozen": lambda module: module[0].requires_grad_(False),
    "frozen outside the module": lambda module: LOOSE.requires_grad_(False),
    "attribute": lambda module: setattr(module[1], "p", 0.1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    module, _, granted = made()
    before = granted.state()
    assert granted.state() == before
    CHANGES[name](module)
    assert granted.state() != before
    LOOSE.requires_grad_(True)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.steps = nn.Linear(2, 2), 0

    def step(self):
        self.steps += 1


def test_what_steps_add_to_is_not_taken_for_granted():
    """Nor is the whole training looked at anew at each step, where callbacks run between them."""
    module = Counts()
    parts = Parts(module)
    granted = Granted(parts, Hyperparameters([]))
    granted.find_containers()
    module.step()
    control = granted.state(), granted.glance()
    module.step()
    assert granted.state() != control[0]
    assert not agree(granted.glance(), control[1])
    parts.collected.learn(parts.holders(), [], {(id(vars(module)), "steps")}, [Counts.step.__code__])
    before = granted.state(), granted.glance()
    module.step()
    assert granted.state() == before[0]
    assert agree(granted.glance(), before[1])
    module.steps = None
    assert granted.state() != before[0]
    assert not agree(granted.glance(), before[1])


def test_functions_are_looked_at_once_they_are_known():
    module, _, granted = made()
    held = {"scale": 1.0}

    def step():
        return held["scale"]

    before = granted.state()
    held["scale"] = 2.0
    assert granted.state() == before
    granted.learn({id(step.__code__): step.__code__})
    before = granted.state()
    held["scale"] = 3.0
    assert granted.state() != before
    granted.forget()
    assert "held" not in str(granted.python().keys())


def test_detecting_anomalies_is_a_change():
    _, _, granted = made()
    before = granted.state()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        assert granted.state() != before
