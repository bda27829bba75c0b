"""Programs are compiled as long as they are worth it, and where they are not, that is said."""

import pytest
import torch
from loop import Training, batches, both, loss_of, mlp, sgd

from lightning_sink.engine.programs import maker
from lightning_sink.engine.programs.economy import Economy

TABLE = [1 + number / 10 for number in range(20)]
LOSING = "each program runs too few steps to be worth its compiling: "


def compiled(economy, *seconds, ran=0):
    """Compiles programs that took so long, each of which then runs so many steps; returns how many have run by then."""
    steps = 0
    for each in seconds:
        economy.compiled(each, steps)
        steps += ran
    return steps


def test_the_first_few_programs_are_compiled_at_once():
    for known, is_prompt in enumerate([True, True, True, False]):
        economy = Economy()
        steps = compiled(economy, *[5.0] * known)
        assert economy.is_prompt(known, steps) is is_prompt


def test_another_one_may_take_as_long_as_was_missed():
    economy = Economy()
    steps = compiled(economy, 5.0, 2.0, 2.0)
    economy.missed(4.0)
    assert not economy.is_worth(steps)
    economy.missed(1.0)
    assert economy.is_worth(steps)
    economy.compiled(1.0, steps)
    assert not economy.is_worth(steps)


def test_twice_as_long_each_time_where_none_is_worth_it():
    economy, steps = Economy(), 0
    missed = []
    for _ in range(8):
        since = 0
        while not economy.is_worth(steps):
            economy.missed(0.5)
            since += 0.5
        economy.compiled(2.0, steps)
        steps += 3  # of half a second each: less than the two that it took
        missed.append(since)
    assert missed == [0, 2, 2, 2, 4, 8, 16, 32]
    assert economy.is_losing(steps)
    assert not economy.is_losing(steps + 1)  # the last one is worth it by now, and all begins anew
    assert economy.is_prompt(0, steps + 1)
    assert not economy.is_prompt(0, steps)


@pytest.fixture
def compiling(monkeypatch):
    """What each compilation takes, in seconds, and how many there were."""
    said = {"seconds": 0.0, "count": 0}
    note = Economy.compiled

    def compiled(self, seconds, steps):
        said["count"] += 1
        note(self, said["seconds"], steps)

    monkeypatch.setattr(Economy, "compiled", compiled)
    return said


def by_its_place(every):
    """Needs another number from a table every so many steps."""

    def make():
        module = mlp()
        return Training(module, sgd(module), lambda batch, index: loss_of(module, batch) * TABLE[index // every])

    return make


def by_an_attribute(every):
    """Needs another attribute as it is."""

    def make():
        module = mlp()
        module.name = ""

        def between(training, sink):
            module.name = str(sink)

        return Training(
            module, sgd(module), lambda batch, index: loss_of(module, batch) * TABLE[int(module.name)], between
        )

    return make


def by_its_place_in_a_tensor(every):
    """As the warning says."""

    def make():
        module = mlp()
        module.register_buffer("table", torch.tensor(TABLE))

        def step(batch, index):
            return loss_of(module, batch) * module.table.take(torch.tensor(index // every))

        return Training(module, sgd(module), step)

    return make


SINKS = [batches(40)] * 14


@pytest.mark.parametrize(
    ("make", "most", "why"),
    [(by_its_place, 3, "`batch_idx` is needed as a plain number"), (by_an_attribute, 6, f"{maker._RESTLESS}: `name`")],
)
def test_programs_that_run_few_steps_are_not_compiled_for_ever(compiling, make, most, why):
    compiling["seconds"] = 1e6
    _, sink = both(make(40), SINKS, costly=True)
    assert compiling["count"] == most
    assert len(sink.hazards) == 1
    assert sink.hazards[0].what.startswith(LOSING + why)


def test_control_programs_that_cost_nothing_are_compiled_again_and_again(compiling):
    _, sink = both(by_its_place(40), SINKS, costly=True)
    assert compiling["count"] == 14
    assert not sink.hazards


def test_a_number_that_is_looked_up_in_a_tensor_needs_one_program(compiling):
    _, sink = both(by_its_place_in_a_tensor(40), SINKS, costly=True)
    assert compiling["count"] == 1
    assert not sink.hazards
