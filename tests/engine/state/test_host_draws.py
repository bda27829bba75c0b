"""The functions that stand in for those of the process's generators while a step is recorded."""

import random
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.state.host_draws import HostDraws


def watching(draws, hazards, is_apart=lambda: False):
    uses = Uses(hazards.append, hazards.append)
    return draws.watched(uses, hazards.append, is_apart, nullcontext), uses


def test_stand_ins_have_the_numbers_and_the_functions_are_put_back():
    functions = (
        {name: getattr(random, name) for name in dir(random)},
        {n: getattr(np.random, n) for n in dir(np.random)},
    )
    draws, hazards, kept = HostDraws(), [], []
    draws.begin()
    random.seed(5)
    np.random.seed(5)
    watched, uses = watching(draws, hazards)
    with watched:
        found = [random.random(), np.random.beta(0.4, b=0.4), random.randint(1, 6)]
        kept.append(random.random)
        assert [type(number) for number in found] == [Number] * 3
    uses.close()
    assert draws.explains()
    assert not hazards
    random.seed(5)
    np.random.seed(5)
    assert [number.value for number in found] == [random.random(), np.random.beta(0.4, b=0.4), random.randint(1, 6)]
    assert functions[0] == {name: getattr(random, name) for name in dir(random)}
    assert functions[1] == {name: getattr(np.random, name) for name in dir(np.random)}
    assert type(kept[0]()) is float  # whoever has imported it meanwhile


BY_NAME = random.random
OTHERS = {
    "of another kind": lambda: np.random.rand(3),
    "with a tensor": lambda: np.random.normal(np.zeros(2)),
    "that is large": lambda: random.getrandbits(80),
    "of more than one generator's seed": lambda: (np.random.seed(3), np.random.rand()),
    "by its name": BY_NAME,
    "of a thread": lambda: [thread := threading.Thread(target=np.random.rand), thread.start(), thread.join()],
    "and a state": lambda: (np.random.rand(), np.random.set_state(np.random.RandomState(2).get_state())),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_program_draws_is_seen(name):
    draws, hazards = HostDraws(), []
    draws.begin()
    watched, _ = watching(draws, hazards)
    with watched:
        OTHERS[name]()
    assert hazards or not draws.explains()


def test_what_runs_apart_draws_no_stand_ins():
    draws, hazards = HostDraws(), []
    draws.begin()
    watched, _ = watching(draws, hazards, is_apart=lambda: True)
    with watched:
        assert type(random.random()) is float
    assert hazards


def test_what_is_drawn_between_parts_of_a_step_is_seen():
    draws, hazards = HostDraws(), []
    draws.begin()
    for between in (None, random.random):
        watched, _ = watching(draws, hazards)
        with watched:
            random.random()
        if between is None:
            random.random()
    assert draws.explains()
    assert draws.left(hazards.append)
    assert any("between" in what for what in hazards)


def test_a_generator_of_another_kind_is_left_alone():
    present = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        draws, hazards = HostDraws(), []
        draws.begin()
        watched, _ = watching(draws, hazards)
        with watched:
            assert type(np.random.rand()) is float
        assert not draws.explains()
        with watching(draws, hazards)[0]:
            pass
        assert draws.explains()
    finally:
        np.random.set_bit_generator(present)


def test_where_no_generator_is_known_nothing_is_done(monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    monkeypatch.setattr(np.random, "rand", lambda: 0.5)
    draws, hazards = HostDraws(), []
    draws.begin()
    with watching(draws, hazards)[0]:
        assert random.random() == np.random.rand() == 0.5
    assert draws.explains()
    assert not hazards
