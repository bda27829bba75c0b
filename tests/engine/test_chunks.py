"""How many steps go into one call follows from the time of a step."""

import pytest

from lightning_sink.engine.chunks import most


class Program:
    def __init__(self, seconds):
        self.seconds = seconds


@pytest.mark.parametrize(
    ("seconds", "expected"), [(1e-9, 1024), (10e-6, 1024), (500e-6, 100), (5e-3, 10), (40e-3, 1), (3.0, 1)]
)
def test_a_call_takes_a_twentieth_of_a_second_at_most(seconds, expected):
    assert most(Program(seconds)) in (expected, expected - 1)
