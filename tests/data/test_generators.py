"""Whether one of the process's generators has been drawn from is seen, whoever looks after numpy's meanwhile."""

import random

import numpy as np
import pytest
import torch

from lightning_sink.data.generators import keep_states, watch_states
from lightning_sink.data.turn import NumpyTurns

DRAWS = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "python, a whole round": lambda: random.getrandbits(624 * 32),
    "python, half of two normal numbers": lambda: random.gauss(0, 1),
    "python, set anew": lambda: random.seed(5),
    "numpy": lambda: np.random.rand(1),
    "numpy, normal": lambda: np.random.randn(1),
    "numpy, a whole round": lambda: np.random.bytes(624 * 4),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_draw_is_seen(kind):
    has_drawn = watch_states()
    assert not has_drawn()
    DRAWS[kind]()
    assert has_drawn()


def test_pythons_second_normal_number_of_two_is_seen_too():
    random.gauss(0, 1)
    for _ in range(2):
        has_drawn = watch_states()
        random.gauss(0, 1)
        assert has_drawn()


class Counting(random.Random):
    """Its state is not what C keeps."""

    def __init__(self):
        self.count = 0
        super().__init__(1)

    def random(self):
        self.count += 1
        return 0.5

    def getstate(self):
        return self.count


def test_other_functions_in_the_place_of_pythons(monkeypatch):
    original, other = random.getstate, Counting()
    monkeypatch.setattr(random, "getstate", lambda: original())
    has_drawn = watch_states()
    assert not has_drawn()
    random.random()
    assert has_drawn()
    monkeypatch.setattr(random, "getstate", other.getstate)
    has_drawn = watch_states()
    assert not has_drawn()
    other.random()
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


def test_a_gpus_generator_is_seen_and_put_back(monkeypatch):
    gpus = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpus,))
    has_drawn, restore = watch_states(), keep_states()
    assert not has_drawn()
    drawn = torch.rand(3, generator=gpus)
    assert has_drawn()
    restore()
    assert not has_drawn()
    assert torch.equal(torch.rand(3, generator=gpus), drawn)
