"""The optimizers' options: which are inputs of a program, which are constants in it, and that they are put back."""

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.ahead import in_row
from lightning_sink.engine.state.hyper import Hyperparameters


def adam(lr=0.1, **options):
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=lr, **options)
    return optimizer, Hyperparameters([optimizer])


def lifted(hyper):
    return [float(tensor) for tensor in hyper.tensors.values()]


@pytest.mark.parametrize("new", [0.05, 1, np.float32(0.5), torch.tensor(0.5)])
def test_a_changed_rate_makes_no_program_stale(new):
    optimizer, hyper = adam()
    optimizer.param_groups[0]["lr"] = new
    assert not hyper.update()
    assert lifted(hyper) == [pytest.approx(float(new))]


def test_a_rate_in_a_tensor_that_is_filled_in_place():
    rate = torch.tensor(0.1)
    _, hyper = adam(rate, foreach=False)
    rate.fill_(0.25)
    assert not hyper.update()
    assert lifted(hyper) == [0.25]


def test_another_number_is_a_constant_until_it_changes():
    optimizer, hyper = adam()
    before = hyper.constants()
    optimizer.param_groups[0]["betas"] = (0.8, 0.999)
    assert hyper.update()
    assert hyper.constants() != before
    optimizer.param_groups[0]["betas"] = (0.7, 0.999)
    assert not hyper.update()
    assert sorted(lifted(hyper)) == [0.1, 0.7]


@pytest.mark.parametrize(("key", "value"), [("maximize", True), ("amsgrad", True)])
def test_a_changed_switch_makes_programs_stale_every_time(key, value):
    optimizer, hyper = adam()
    optimizer.param_groups[0][key] = value
    assert hyper.update()
    optimizer.param_groups[0][key] = not value
    assert hyper.update()


def test_control_nothing_changed_nothing_stale():
    _, hyper = adam()
    assert not hyper.update()
    assert not hyper.refresh()


def test_new_groups_and_parameters_are_seen():
    optimizer, hyper = adam()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
    assert hyper.refresh()
    assert lifted(hyper) == [0.1, 0.5]


def test_stand_ins_are_there_for_the_recording_and_gone_after():
    optimizer, hyper = adam(foreach=True, betas=(0.9, 0.99))
    group, leaks = optimizer.param_groups[0], []
    before = dict(group)
    with hyper.lifted(Uses(leaks.append, leaks.append)):
        assert isinstance(group["lr"], Number)
        assert not group["foreach"]
    assert dict(group) == before
    assert leaks == []


def test_stand_ins_are_gone_after_an_error():
    optimizer, hyper = adam()
    with pytest.raises(KeyError), hyper.lifted(Uses(print, print)):
        raise KeyError
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("write", "left", "known"),
    [
        (lambda group: group.update(lr=group["lr"] * 0.5), {"lr": 0.05}, True),
        (lambda group: group.update(lr=0.7), {"lr": 0.7}, True),
        (lambda group: group.update(lr=1), {"lr": 1}, False),
        (lambda group: group.update(calls=3), {"calls": 3}, False),
        (lambda group: group.update(betas=(group["lr"], 0.5)), {"betas": (0.1, 0.5)}, False),
    ],
)
def test_what_the_step_sets_stays_set_and_is_told(write, left, known):
    """A program can set what the host knows, and what is a float as before."""
    optimizer, hyper = adam()
    group, leaks = optimizer.param_groups[0], []
    hyper.begin()
    with hyper.lifted(Uses(leaks.append, leaks.append)):
        write(group)
    assert {key: group[key] for key in left} == left
    assert len(leaks) == (not known)
    assert [(carry.present(), host()) for carry, host, _ in hyper.set_by_step()] == [(left.get("lr"),) * 2] * known
    assert not known or hyper.update(), "programs take it to stay as it is"


def test_a_pair_that_becomes_a_single_one_is_another_layout():
    optimizer, hyper = adam()
    optimizer.param_groups[0]["names"] = "a", "b"
    assert hyper.refresh()
    optimizer.param_groups[0]["names"] = ("c",)
    assert hyper.refresh()
    assert not hyper.update()


def test_what_is_inside_of_a_group_is_looked_at():
    optimizer, hyper = adam()
    group = optimizer.param_groups[0]
    group.update(initial_lr=0.1, table={"factor": [1.0]})
    assert hyper.refresh()
    assert not hyper.refresh()
    group["table"]["factor"][0] = 0.5
    assert hyper.refresh()
    group["initial_lr"] = 0.2
    assert hyper.update()  # it was a constant
    group["lr"] = 0.3
    assert not hyper.update()


def test_a_step_finds_what_the_one_before_has_set():
    optimizer, hyper = adam()
    group = optimizer.param_groups[0]
    for _ in range(2):  # of the first one it is learned
        hyper.begin()
        with hyper.lifted(Uses(print, lambda what: None)):
            group["lr"] = group["lr"] * 0.5
        hyper.update()
    ((carry, host, _),) = hyper.set_by_step()
    ((tensor, found),) = hyper.inputs()
    with in_row([carry], follows=False):
        assert (found(), host()) == (0.025, 0.0125)
        carry.set(host())
        assert (found(), host()) == (0.0125, 0.00625)
    assert group["lr"] == tensor.item() == 0.025


@pytest.mark.parametrize("others", [False, True])
def test_a_later_part_finds_what_the_first_has_set_unless_others_have_set_it_since(others):
    optimizer, hyper = adam()
    group, told = optimizer.param_groups[0], []
    for _ in range(2):
        told.clear()
        hyper.begin()
        hyper.begin_part()
        with hyper.lifted(Uses(told.append, lambda what: None)):
            group["lr"] = group["lr"] * 0.5
        if others:
            group["lr"] = 0.7
        hyper.begin_part()
        with hyper.lifted(Uses(told.append, lambda what: None)):
            seen = group["lr"]
            held = seen.tensor.item()
        hyper.update()
    assert held == seen.value == (0.7 if others else 0.025)
    assert bool(told) is others


def test_a_guard_holds_while_the_comparison_comes_out_the_same():
    optimizer, hyper = adam()
    uses = Uses(print, lambda what: None)
    with hyper.lifted(uses):
        assert optimizer.param_groups[0]["lr"] > 0.05
    (guard,) = uses.guards.values()
    assert guard.holds()
    optimizer.param_groups[0]["lr"] = 0.01
    hyper.update()
    assert not guard.holds()


def test_nesterovs_momentum_with_lists_stays_for_the_gradients_that_it_leaves():
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    for options, expected in [({}, False), ({"foreach": True, "fused": None}, True), ({"fused": True}, False)]:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, **options)
        hyper = Hyperparameters([optimizer])
        with hyper.lifted(Uses(lambda what: None, lambda what: None)):
            (group,) = optimizer.param_groups
            assert bool(group["foreach"]) == expected
            assert not group["fused"]
