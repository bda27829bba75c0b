"""How many steps go into one call follows from the time of a step."""

import pytest

from lightning_sink.engine.chunks import Chunks
from lightning_sink.engine.hyper import Hyperparameters


class Program:
    pass


def test_the_first_call_is_short_because_nobody_knows():
    assert Chunks(Hyperparameters([])).most(Program()) == 8


@pytest.mark.parametrize(("seconds", "most"), [(10e-6, 1024), (500e-6, 100), (5e-3, 10), (40e-3, 1), (3.0, 1)])
def test_a_call_takes_a_twentieth_of_a_second_at_most(seconds, most):
    chunks, program = Chunks(Hyperparameters([])), Program()
    chunks.took(program, 10, seconds * 10)
    assert chunks.most(program) in (most, most - 1, most + 1)
    assert chunks.most(program) * seconds <= 0.0501 or most == 1


def test_another_program_is_measured_anew():
    chunks = Chunks(Hyperparameters([]))
    chunks.took(Program(), 10, 1e-6)
    assert chunks.most(Program()) == 8
