"""Whether one of the process's generators has been drawn from is seen, whoever looks after numpy's meanwhile."""

import random

import numpy as np
import pytest
import torch

from lightning_sink.data.generators import watch_states
from lightning_sink.data.turn import NumpyTurns

DRAWS = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "numpy": lambda: np.random.rand(1),
    "numpy, normal": lambda: np.random.randn(1),
    "numpy, a whole round": lambda: np.random.bytes(624 * 4),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_draw_is_seen(kind):
    has_drawn = watch_states()
    DRAWS[kind]()
    assert has_drawn()


def test_control_nothing_is_drawn():
    has_drawn = watch_states()
    torch.rand(1, generator=torch.Generator())
    np.random.default_rng(1).random()
    assert not has_drawn()


@pytest.mark.parametrize("draws", [False, True])
def test_generators_that_wait_for_their_turn_are_put_in_and_taken_out(draws):
    turns = NumpyTurns()
    for change in (turns.install, turns.remove):
        has_drawn = watch_states()
        change()
        if draws:
            np.random.rand(1)
        assert has_drawn() == draws


def test_another_kind_of_generator():
    present = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        has_drawn = watch_states()
        assert not has_drawn()
        np.random.rand(1)
        assert has_drawn()
    finally:
        np.random.set_bit_generator(present)
