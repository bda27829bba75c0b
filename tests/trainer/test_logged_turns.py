"""What steps in a row log that take turns, in as few calls as they have different names."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.trainer.logged_turns import LoggedTurns, numbers_in_row
from lightning_sink.trainer.logging import LogCall


def call(name):
    return LogCall(name, "training_step", (), 1)


@st.composite
def rows(draw):
    """Which names each turn logs, and how many steps there are."""
    names = draw(st.lists(st.sampled_from([(), ("a",), ("b",), ("a", "b")]), min_size=1, max_size=6))
    return names, draw(st.integers(1, 30))


def parts_of(names, steps):
    """Each step's value is its number, those of `b` a hundred more."""
    alike = {}
    for turn, own in enumerate(names):
        alike.setdefault(own, []).append(turn)
    found = []
    for own, places in alike.items():
        numbers = torch.tensor([float(step) for step in range(steps) if step % len(names) in places])
        values = [numbers + 100 * (name == "b") for name in own]
        found.append(LoggedTurns(tuple(map(call, own)), values, tuple(places), len(names)))
    return found


@given(rows())
def test_places_of_steps(row):
    names, steps = row
    for part in parts_of(names, steps):
        own = [step for step in range(steps) if step % len(names) in part.places]
        assert [part.step(index) for index in range(len(own))] == own
        assert [part.before(step) for step in range(steps + 1)] == [
            sum(other < step for other in own) for step in range(steps + 1)
        ]


@given(rows())
def test_numbers_of_each_step_by_name(row):
    names, steps = row
    found = numbers_in_row([part for part in parts_of(names, steps) if part.before(steps)], steps)
    for name in ("a", "b"):
        there = [name in names[step % len(names)] for step in range(steps)]
        if not any(there):
            assert name not in found
            continue
        for step, (is_there, value) in enumerate(zip(there, found[name].tolist(), strict=True)):
            assert value == step + 100 * (name == "b") if is_there else value != value


def test_whole_numbers_are_floats_where_some_are_missing():
    parts = [
        LoggedTurns((call("a"),), [torch.tensor([1, 3])], (0,), 2),
        LoggedTurns((), [], (1,), 2),
    ]
    found = numbers_in_row(parts, 4)["a"]
    assert found.dtype == torch.get_default_dtype()
    assert found[::2].tolist() == [1.0, 3.0]
    assert found[1::2].isnan().all()


def test_numbers_that_all_steps_log_stay_what_they_are():
    large = (1 << 24) + torch.arange(4)
    parts = [
        LoggedTurns((call("a"), call("b")), [large[::2], torch.tensor([1.0, 2.0])], (0,), 2),
        LoggedTurns((call("a"),), [large[1::2]], (1,), 2),
    ]
    assert torch.equal(numbers_in_row(parts, 4)["a"], large)


def test_the_wider_of_two_types_is_taken():
    wide = torch.tensor([1.0 + 1e-12, 2.0], dtype=torch.float64)
    parts = [
        LoggedTurns((call("a"), call("b")), [torch.ones(2), torch.ones(2)], (0,), 2),
        LoggedTurns((call("a"),), [wide], (1,), 2),
    ]
    assert torch.equal(numbers_in_row(parts, 4)["a"][1::2], wide)
