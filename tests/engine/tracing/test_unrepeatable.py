"""A step that reads memory which no operation has filled makes no program; one that fills its memory does."""

import copy

import pytest
import torch
from loop import record

FILLED = {
    "copied into": lambda x: torch.empty_like(x).copy_(x) + x,
    "filled": lambda x: torch.empty(4).fill_(2.0) * x,
    "drawn": lambda x: torch.empty_like(x).uniform_() + x,
    "a part of it filled, through a view": lambda x: x.new_empty(2, 4)[1].copy_(x) + x,
    "written to by name": lambda x: torch.add(x, x, out=torch.empty(4)) * x,
    "nothing": lambda x: torch.cat([torch.empty(0), x]),
    "never read": lambda x: (torch.empty(3), x + 1)[1],
    "looked at otherwise": lambda x: (torch.empty(4).view(2, 2), x + 1)[1],
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5) + 1,
}
READ = {
    "as it is": lambda x: torch.empty_like(x) + x,
    "through a view": lambda x: torch.empty(2, 4)[0] * x,
    "in a list": lambda x: torch.cat([torch.empty(2), x]),
    "of another kind": lambda x: torch.empty_strided((4,), (1,)) * x,
    "behind one that is filled": lambda x: torch.zeros(4) * x + x.new_empty(4),
}


def reasons(step):
    recording = record(step, torch.ones(4))
    return [hazard.what for hazard in recording.hazards if "past torch's dispatcher" in hazard.what]


@pytest.mark.parametrize("name", FILLED)
def test_what_is_filled_is_read(name):
    assert reasons(FILLED[name]) == []


@pytest.mark.parametrize("name", READ)
def test_what_nothing_has_filled_is_not(name):
    assert len(reasons(READ[name])) == 1


def test_memory_that_an_operation_is_given_is_named_and_not_written_down():
    large = torch.zeros(10_000)
    recording = record(lambda x: x + copy.deepcopy(large)[:4], torch.ones(4))
    assert any("as `copy.deepcopy` of a tensor does" in hazard.what for hazard in recording.hazards)
    assert __file__ in recording.hazards[0].where
    assert len(recording.text) < 2_000
