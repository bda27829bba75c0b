"""How many steps go into one call follows from the time of a step."""

from types import SimpleNamespace

import pytest

from lightning_sink.engine.programs.chunks import most


class Program:
    def __init__(self, seconds, overlaps=False, kept_bytes=8):
        self.seconds, self.function = seconds, SimpleNamespace(overlaps=overlaps)
        self.kept_bytes = kept_bytes


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1e-9, 1024), (10e-6, 1024), (0.5e-3, 96), (0.6e-3, 80), (3e-3, 16), (5e-3, 10), (40e-3, 1), (3.0, 1)],
)
def test_a_call_takes_a_twentieth_of_a_second_at_most_and_is_of_whole_graphs(seconds, expected):
    assert most(Program(seconds)) in {expected, expected - (expected < 16)}


def test_a_first_call_is_short_where_the_next_ones_are_prepared_beside_it():
    beside = Program(1e-6, overlaps=True)
    assert [most(beside, behind) for behind in (0, 1, 5, 8, 64, 512)] == [8, 16, 32, 64, 512, 1024]
    assert most(Program(1e-6)) == 1024
    assert most(Program(40e-3, overlaps=True)) == 1


@pytest.mark.parametrize(("kept_bytes", "expected"), [(1 << 16, 1024), (1 << 20, 64), (3 << 20, 16), (1 << 30, 1)])
def test_a_call_keeps_64_mebibytes_at_most_of_what_steps_give(kept_bytes, expected):
    assert most(Program(1e-6, kept_bytes=kept_bytes)) == expected
