"""Attributes by which Python carries a value from step to step: what is known of them, and what a row finds."""

import math
import threading
import weakref

import pytest
import torch
from torch import nn

import positions
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.ahead import in_row
from lightning_sink.engine.state.carried import Carried, Carry
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.holders import python_state
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.record import Recorder


class Module(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


def recorded(parts, *bodies):
    """Records a step of several parts; returns the recording."""
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(parts), look=lambda: python_state(parts))
    for body in bodies:
        recorder.span(body, lambda: None)
    return recorder.finish([])


def learned(step, **attributes):
    """Records a step until it is known what it carries; returns the parts and the last recording."""
    parts = Parts(Module(**attributes))
    first = recorded(parts, lambda: step(parts.module))
    assert any("changes Python state" in hazard.what or "keeps" in hazard.what for hazard in first.hazards)
    return parts, recorded(parts, lambda: step(parts.module))


def count(module):
    module.steps = 1 + module.steps


def halve(module):
    module.steps = module.steps / 2 + 1


def turn(module):
    module.steps = (module.steps + 3) % 5


def grow(module):
    module.steps = max(module.steps, 2) * 2 - math.floor(1.5)


@positions.needed
@pytest.mark.parametrize("step", [count, halve, turn, grow], ids=lambda step: step.__name__)
@pytest.mark.parametrize("start", [0, 3, 2.5])
def test_later_values_are_what_python_computes(step, start):
    parts, recording = learned(step, steps=start)
    assert recording.hazards == []
    ((carry, then),) = recording.carries
    for _ in range(5):
        expected = Module(steps=parts.module.steps)
        step(expected)
        if all(guard.holds() for guard in recording.guards):
            carry.set(then())
            assert (type(carry.found()), carry.found()) == (type(expected.steps), expected.steps)
        parts.module.steps = expected.steps


def test_nothing_but_plain_values_is_left():
    kept = []

    def step(module):
        module.steps += 1
        module.last, module.words = module.steps, f"{module.steps}"
        kept.append(module.steps)

    parts, _ = learned(step, steps=0, last=0, words="")
    assert {type(value) for value in (parts.module.steps, parts.module.last, *kept)} == {int}
    assert not any(type(value) is Number for value in vars(parts.module).values())


def test_what_is_no_number_decides():
    def step(module):
        module.phase = "b" if module.phase == "a" else "a"

    parts, recording = learned(step, phase="a")
    ((_, then),), (guard,) = recording.carries, recording.guards
    assert parts.module.phase == "a"
    assert not guard.holds()  # the recorded one found a "b"
    parts.module.phase = "b"
    assert guard.holds()
    assert then() == "a"


@positions.needed
def test_a_part_that_comes_later_finds_what_the_first_has_left():
    parts, _ = learned(count, steps=0)
    seen = []

    def later():
        double = 2 * parts.module.steps
        seen.append(double > 0)
        ones = torch.ones(2)
        ones * parts.module.steps

    recording = recorded(parts, lambda: count(parts.module), later)
    assert recording.hazards == []
    assert seen == [True]
    taken = {id(tensor) for tensor in recording.inputs}
    (value,) = [get for tensor, get in parts.carried.inputs() if id(tensor) in taken]
    assert value() == parts.module.steps + 1  # behind the count of the next step


def test_what_others_set_in_the_midst_is_told():
    parts, _ = learned(count, steps=0)
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(parts))
    recorder.span(lambda: count(parts.module), lambda: None)
    parts.module.steps = 100
    recorder.span(lambda: count(parts.module), lambda: None)
    hazards = [hazard.what for hazard in recorder.finish([]).hazards]
    assert "the step changes Python state: `steps`, which others set in its midst" in hazards


TOLD = {
    "by what only the step knows": lambda module: setattr(module, "steps", torch.rand(()).item() + module.steps),
    "to what is no number": lambda module: setattr(module, "steps", [1]),
    "past the attribute": lambda module: vars(module).update(steps=module.steps + 1),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_no_program_does_is_told(what):
    parts, _ = learned(count, steps=0)
    recording = recorded(parts, lambda: TOLD[what](parts.module))
    assert recording.hazards


def test_another_thread_finds_the_plain_number():
    parts, _ = learned(count, steps=0)
    found = []

    def step():
        count(parts.module)
        thread = threading.Thread(target=lambda: found.append(type(parts.module.steps)))
        thread.start()
        thread.join()

    recorded(parts, step)
    assert found == [int]


def test_rows_are_gone_through_and_leave_it_alone():
    carry = Carry("steps", Module(steps=5), "steps")
    with in_row([carry], follows=False):
        for _ in range(3):
            carry.set(carry.found() + 1)
        assert (carry.found(), carry.holder.steps) == (8, 5)
    with in_row([carry], follows=True):
        assert carry.found() == 8
    assert carry.found() == 5
    carry.set(8)
    assert carry.holder.steps == 8


def test_values_are_not_taken_for_granted():
    carried, module = Carried(), Module(steps=1)
    carried.learn([("", module)], {"steps"}, (), ())
    before = carried.state({id(module)})
    module.steps = 2.0
    assert carried.state({id(module)}) == before


def test_objects_that_are_gone_are_let_go():
    carried, module = Carried(), Module(steps=1)
    carried.learn([("", module)], {"steps"}, (), ())
    held = weakref.ref(module)
    assert carried.state(()) == {}
    del module
    assert held() is None


# -- what only the step knows -----------------------------------------------------------------------------------------


def mean(module):
    module.steps = 0.5 * module.steps + 0.5 * module.value.sum().item()


def recorded_mean(times=3, **attributes):
    """Records a step that keeps a mean, until it is known what that is; returns the parts and the last recording."""
    parts = Parts(Module(**attributes))
    parts.module.value = torch.tensor([1.0, 2.0])
    for _ in range(times):
        recording = recorded(parts, lambda: mean(parts.module))
    return parts, recording


@positions.needed
def test_a_number_of_a_tensor_is_kept_in_a_tensor():
    parts, recording = recorded_mean(steps=1.0)
    assert not recording.hazards
    assert parts.module.steps == 1 / 8 + 3 * 7 / 8
    ((tensor, get),) = parts.carried.inputs(written=True)
    assert any(tensor is taken for taken in recording.inputs)
    assert tensor.item() == get() == parts.module.steps
    assert not recording.carries
    assert not recording.is_alone


@positions.needed
@pytest.mark.parametrize(("value", "holds"), [(2.5, True), (2, False), (None, False), ("text", False)])
def test_a_program_is_for_numbers_of_the_type_that_was_found(value, holds):
    parts, recording = recorded_mean(steps=1.0)
    ((tensor, get),) = parts.carried.inputs(written=True)
    assert any(tensor is taken for taken in recording.inputs)
    parts.module.steps = value
    assert all(guard.holds() for guard in recording.guards) == holds
    assert get() == (value if holds else None)


@positions.needed
def test_one_that_finds_another_type_stands_alone():
    parts, _ = recorded_mean(steps=1.0)
    parts.module.steps = 4
    recording = recorded(parts, lambda: mean(parts.module))
    assert not recording.hazards
    assert recording.is_alone
    assert parts.module.steps == 3.5


# -- in dictionaries --------------------------------------------------------------------------------------------------


def add_up(module):
    module.sums["steps"] += 1


def keep_mean(module):
    module.sums["mean"] = 0.5 * module.sums["mean"] + 0.5 * torch.arange(1.0, 3).sum().item()


@positions.needed
def test_a_number_in_a_dictionary_is_found_in_the_one_that_is_there():
    parts, recording = learned(add_up, sums={"steps": 3})
    assert recording.hazards == []
    ((carry, then),) = recording.carries
    assert parts.module.sums == {"steps": 5}
    assert then() == 6
    parts.module.sums = {"steps": 0}
    assert then() == 1
    carry.set(then())
    assert parts.module.sums == {"steps": 1}
    parts.module.sums = None
    assert not all(guard.holds() for guard in recording.guards)


@positions.needed
def test_a_tensors_number_in_a_dictionary_is_kept_in_a_tensor():
    parts = Parts(Module(sums={"mean": 1.0}))
    for _ in range(3):
        recording = recorded(parts, lambda: keep_mean(parts.module))
    assert not recording.hazards
    assert type(parts.module.sums["mean"]) is float
    ((tensor, get),) = parts.carried.inputs(written=True)
    assert tensor.item() == get() == parts.module.sums["mean"]
    parts.module.sums = {"mean": 7.0}
    assert get() == 7.0


@positions.needed
def test_what_is_in_the_dictionary_beside_is_looked_at():
    parts, _ = learned(add_up, sums={"steps": 3, "way": "a"})
    state = python_state(parts)
    parts.module.sums["steps"] += 1
    assert python_state(parts) == state
    parts.module.sums["way"] = "b"
    assert python_state(parts) != state


def replaces(module):
    module.sums = {"steps": module.sums["steps"] + 1}


def leaves(module):
    module.sums["steps"] = [module.sums["steps"]]


@pytest.mark.parametrize("step", [replaces, leaves])
def test_what_no_program_does_with_a_dictionary_is_told(step):
    parts, _ = learned(add_up, sums={"steps": 0})
    recording = recorded(parts, lambda: step(parts.module))
    assert any("sums" in hazard.what for hazard in recording.hazards)
    held = parts.module.sums["steps"]
    assert {type(held), *map(type, held if type(held) is list else ())} <= {int, list}


def test_a_dictionary_of_two_attributes_is_not_carried():
    sums = {"steps": 0}
    parts, recording = learned(add_up, sums=sums, others=sums)
    assert any("changes Python state" in hazard.what for hazard in recording.hazards)
    assert not parts.carried.items(parts.module)


def test_one_of_a_step_that_asks_for_types_is_not_carried():
    def step(module):
        add_up(module)
        return [value for value in module.sums.values() if type(value) is int]

    parts, recording = learned(step, sums={"steps": 0})
    assert recording.hazards
    assert not parts.carried.items(parts.module)
