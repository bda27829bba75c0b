"""What is kept of objects that steps change in place."""

import random
from array import array

import numpy as np
import pytest
import torch

from lightning_sink.engine.tracing import undo
from lightning_sink.engine.tracing.undo import keep_objects

OBJECTS = {
    "Python's generator": (lambda: random.Random(1), lambda held: held.random()),
    "numpy's generator": (lambda: np.random.default_rng(1), lambda held: held.random()),
    "numpy's older one": (lambda: np.random.RandomState(1), lambda held: held.rand()),
    "torch's generator": (lambda: torch.Generator().manual_seed(1), lambda held: torch.rand(1, generator=held).item()),
    "an array of numpy's": (lambda: np.zeros(3), lambda held: held.__iadd__(1).tolist()),
    "bytes": (lambda: bytearray(3), lambda held: held.append(7) or bytes(held)),
    "an array": (lambda: array("d", [0.0]), lambda held: held.append(7) or held.tolist()),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_put_back_does_the_same_again(name):
    make, change = OBJECTS[name]
    held = make()
    states = keep_objects([held, held])
    first = change(held)
    for put_back in states:
        put_back()
    assert change(held) == first
    assert change(held) != first


def test_no_more_bytes_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(undo, "_MOST_BYTES", 20)
    arrays = [np.zeros(2), np.zeros(2), bytearray(4)]
    states = keep_objects(arrays)
    for held in arrays:
        held[0] = 1
    for put_back in states:
        put_back()
    assert [held[0] for held in arrays] == [0, 1, 0]


def test_an_array_that_nobody_can_write_to_is_left_alone():
    held = np.zeros(2)
    held.flags.writeable = False
    for put_back in keep_objects([held, "a text", 1, None, object()]):
        put_back()


def test_a_generator_without_a_state_is_left_alone():
    for put_back in keep_objects([random.SystemRandom()]):
        put_back()
