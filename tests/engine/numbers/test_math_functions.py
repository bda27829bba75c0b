"""Functions of `math` take numbers that change from step to step, where they are asked for by the module's name."""

import math
from math import cos

import numpy as np
import pytest
import torch

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.known_functions import DOMAINS, TRUTHS
from lightning_sink.engine.numbers.math_functions import known_to_math
from lightning_sink.engine.numbers.number import Number

NAMES = sorted(DOMAINS)


def number(value, hosted=True):
    """Returns a stand-in, what was told of it, and the values that it has in later steps: the last one counts."""
    told, values = [], [value]
    uses = Uses(told.append, told.append)
    host = (lambda: values[-1]) if hosted else None
    return Number(torch.tensor(float(value), dtype=torch.float64), value, uses, "`n`", host), uses, told, values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.3, 1, 7.5])
def test_a_function_gives_a_stand_in_of_pythons_value(name, value):
    stands, uses, told, values = number(value)
    with known_to_math():
        found = getattr(math, name)(stands)
        again = getattr(math, name)(stands)
    expected = getattr(math, name)(value)
    assert type(found) is Number
    assert found is again
    assert found.value == expected
    assert found.tensor.item() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert not told
    values.append(0.25)
    assert all(guard.holds() for guard in uses.guards.values())
    assert (found * 2 > 3) == (expected * 2 > 3)
    guard = list(uses.guards.values())[-1]
    assert guard.decide() == (getattr(math, name)(0.25) * 2 > 3)


@pytest.mark.parametrize("base", [0.9, 1, 0.5])
def test_powers_of_what_averages_keep_are_pythons(base):
    """As optimizers correct their averages."""
    stands, uses, told, values = number(7)
    with known_to_math():
        found = math.pow(base, stands)
    assert type(found) is Number
    assert found.value == math.pow(base, 7)
    assert type(found.value) is float
    assert not told
    values.append(12)
    assert found.host() == math.pow(base, 12)


@pytest.mark.parametrize("exponent", [-0.8, 2, 0.5])
@pytest.mark.parametrize("hosted", [True, False])
def test_a_power_of_a_count_is_pythons(exponent, hosted):
    """As Adafactor has its decay."""
    stands, uses, told, values = number(7, hosted)
    uses.is_recorded = lambda: True
    with known_to_math():
        found = math.pow(stands, exponent)
    assert type(found) is Number
    assert found.value == math.pow(7, exponent)
    assert found.tensor.item() == pytest.approx(math.pow(7, exponent), rel=1e-12)
    assert not told
    values.append(12)
    assert not hosted or found.host() == math.pow(12, exponent)


@pytest.mark.parametrize(("value", "exponent"), [(0, -1), (-2.0, 0.5), (1e300, 2)])
@pytest.mark.parametrize("hosted", [True, False])
def test_a_power_that_is_an_error_is_one(value, exponent, hosted):
    stands, uses, *_ = number(value, hosted)
    uses.is_recorded = lambda: True
    with known_to_math(), pytest.raises((ValueError, OverflowError)):
        math.pow(stands, exponent)


def test_a_step_whose_power_is_an_error_is_another_way():
    stands, uses, _, values = number(2.0)
    with known_to_math():
        math.pow(stands, -1)
    (guard,) = uses.guards.values()
    assert guard.holds()
    values.append(0.0)
    assert not guard.holds()


@pytest.mark.parametrize(("base", "value"), [(-0.5, 3), (2.0, 5), (0.0, 2)])
def test_powers_of_other_bases_ask_for_the_number(base, value):
    stands, _, told, _ = number(value)
    with known_to_math():
        assert math.pow(base, stands) == math.pow(base, value)
    assert told


def test_a_power_of_two_numbers_asks_for_them():
    stands, _, told, _ = number(2.0)
    with known_to_math():
        assert math.pow(stands, stands) == 4.0
    assert told


@pytest.mark.parametrize(("name", "value"), [("sqrt", -1.0), ("log", 0.0), ("exp", 1e6), ("log1p", -2.0)])
def test_a_step_in_which_python_raises_is_another_way(name, value):
    stands, uses, _, values = number(2.0)
    with known_to_math():
        getattr(math, name)(stands)
    (guard,) = uses.guards.values()
    assert guard.holds()
    values.append(value)
    assert not guard.holds()


def test_what_raises_now_raises_as_ever():
    stands, *_ = number(-1.0)
    with known_to_math(), pytest.raises(ValueError, match="math domain error|nonnegative"):
        math.sqrt(stands)


def test_numbers_that_only_the_program_knows_are_plain_where_python_may_raise():
    stands, _, told, _ = number(2.0, hosted=False)
    with known_to_math():
        assert type(math.atan(stands)) is Number
        assert not told
        assert type(math.sqrt(stands)) is float  # nobody records that it is not negative
    assert told


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.3, 1, 7.5, -2.0, 708.5, 800.0, float("inf"), float("nan")])
def test_what_the_program_finds_out_is_where_python_raises_nothing(name, value):
    stands, uses, told, _ = number(value, hosted=False)
    uses.is_recorded = lambda: True
    with known_to_math():
        try:
            expected = getattr(math, name)(value)
        except (ValueError, OverflowError) as error:
            with pytest.raises(type(error)):
                getattr(math, name)(stands)
            assert told
            return
        found = getattr(math, name)(stands)
    if type(found) is Number:
        assert not told
        assert found.tensor.item() == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("value", [0.0, 3, -1.5, float("inf"), float("nan")])
@pytest.mark.parametrize("asks", [math, np], ids=["math", "numpy"])
@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_truths_are_found_out(asks, name, value):
    stands, uses, told, values = number(value)
    later, unknown, of_program, _ = number(value, hosted=False)
    unknown.is_recorded = lambda: True
    with known_to_math():
        found = [getattr(asks, name)(n) for n in (stands, later)]
    assert found == [getattr(asks, name)(value)] * 2
    assert all(type(truth) is type(getattr(asks, name)(value)) for truth in found)
    assert not of_program
    (guard,) = uses.guards.values()
    values.append(float("nan"))
    assert guard.decide() == getattr(math, name)(float("nan"))


def test_other_functions_ask_for_the_number():
    for call in (math.floor, lambda n: math.log(n, 10), cos):
        stands, _, told, _ = number(2.0)
        with known_to_math():
            assert type(call(stands)) is not Number
        assert told


def test_the_module_is_left_as_it_was():
    present = [getattr(math, name) for name in NAMES]
    with known_to_math(), known_to_math():
        assert math.cos(1.0) == cos(1.0)
        assert math.cos is not cos
    assert all(getattr(math, name) is function for name, function in zip(NAMES, present, strict=True))


def test_another_thread_that_ends_in_between_leaves_nothing_behind():
    one, other = known_to_math(), known_to_math()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert math.cos is cos


def test_stand_ins_of_a_step_that_has_ended_are_numbers():
    stands, uses, told, _ = number(2.0)
    uses.close()
    with known_to_math():
        assert type(math.cos(stands)) is float
    assert not told
