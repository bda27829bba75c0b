"""Programs are compiled as long as they are worth it, and where they are not, that is said."""

import pytest
import torch
from loop import Training, batches, both, loss_of, mlp, sgd

from lightning_sink.engine.programs import patience
from lightning_sink.engine.programs.economy import Economy

TABLE = [1 + number / 10 for number in range(20)]
LOSING = f"{patience._LOSING}: "


def made(economy, *seconds):
    """Makes programs that take so long each and run no steps."""
    for each in seconds:
        economy.spent(each)
        economy.made(0)


def test_the_first_few_programs_are_made_at_once():
    for known, is_prompt in enumerate([True, True, True, False]):
        economy = Economy()
        made(economy, *[5.0] * known)
        assert economy.is_prompt(known, 0) is is_prompt


def test_another_one_may_take_as_long_as_was_missed():
    economy = Economy()
    made(economy, 5.0, 2.0, 2.0)
    economy.missed(2.5)
    assert not economy.is_worth(0)
    economy.missed(0.5)
    assert economy.is_worth(0)
    made(economy, 1.0)
    assert not economy.is_worth(0)


@pytest.mark.parametrize("program", [0.0, 0.25])
def test_twice_as_long_each_time_where_none_is_worth_it(program):
    economy, steps, missed = Economy(), 0, []
    economy.ran(program)
    saved = 3 * (0.5 - program)
    for _ in range(8):
        since = 0
        while not economy.is_worth(steps):
            economy.missed(0.5)
            since += 0.5
        economy.spent(saved + 0.25)
        economy.spent(0.25)
        economy.made(steps)
        steps += 3
        missed.append(since)
    each = saved + 0.5
    assert missed == [
        -(-seconds // 0.5) * 0.5 for seconds in [0, each, each, each, 2 * each, 4 * each, 8 * each, 16 * each]
    ]
    assert economy.is_losing(steps)
    assert not economy.is_prompt(0, steps)
    while economy.is_losing(steps):  # the last one is worth it in the end, and all begins anew
        steps += 1
    assert economy.is_prompt(0, steps)


def test_steps_that_stay_as_they_are_have_a_program_in_the_end():
    economy = Economy()
    made(economy, *[4.0] * 20)
    economy.missed(4.0)
    assert not economy.is_worth(0)
    assert not economy.is_paid_by(3.5)
    assert economy.is_paid_by(4.0)


def test_what_one_engine_has_learned_another_one_goes_on_with():
    economy = Economy()
    economy.missed(1.0)
    for steps in range(4):
        economy.spent(5.0)
        economy.made(100 + steps)
    assert economy.is_losing(105)
    economy.begin_again(105)
    assert economy.is_losing(0)
    assert not economy.is_losing(3)  # which makes the five that are worth five seconds


@pytest.fixture
def compiling(monkeypatch):
    """What each program takes, in seconds, and how many there were."""
    said = {"seconds": 0.0, "count": 0}
    note = Economy.made

    def made(self, steps):
        said["count"] += 1
        self._spent = said["seconds"]
        note(self, steps)

    monkeypatch.setattr(Economy, "made", made)
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
    [
        (by_its_place, 3, "`batch_idx` is needed as a plain number"),
        (by_an_attribute, 6, f"{patience._RESTLESS}: `name`"),
    ],
)
def test_programs_that_run_few_steps_are_not_made_for_ever(compiling, make, most, why):
    compiling["seconds"] = 1e6
    _, sink = both(make(40), SINKS, costly=True)
    assert compiling["count"] == most
    assert len(sink.hazards) == 1
    assert sink.hazards[0].what.startswith(LOSING + why)


def test_control_programs_that_cost_nothing_are_made_again_and_again(compiling):
    _, sink = both(by_its_place(40), SINKS, costly=True)
    assert compiling["count"] == 14
    assert not sink.hazards


def test_a_number_that_is_looked_up_in_a_tensor_needs_one_program(compiling):
    _, sink = both(by_its_place_in_a_tensor(40), SINKS, costly=True)
    assert compiling["count"] == 1
    assert not sink.hazards
