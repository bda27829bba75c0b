"""The queue's options: what each accepts, what it says of anything else."""

import dataclasses
import fractions

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.options import QueueOptions

COUNT = "a number of batches, 0 to fetch nothing ahead, or None"
SIZE = "a number of bytes from 1 up"
SECONDS = "seconds above 0, or None to wait for ever"
CHOICE = "True or False"
CACHE = "'device' or None"

WRONG = [
    *(("buffer_size", value, TypeError, COUNT) for value in (1.0, "3", True, [1])),
    *(("buffer_size", value, ValueError, COUNT) for value in (-1, -100)),
    *((name, value, TypeError, SIZE) for name in ("buffer_bytes", "cache_bytes") for value in (None, 1e6, "1", True)),
    *((name, value, ValueError, SIZE) for name in ("buffer_bytes", "cache_bytes") for value in (0, -1)),
    *(("timeout", value, TypeError, SECONDS) for value in ("1", True, False, [1], 1j)),
    *(("timeout", value, ValueError, SECONDS) for value in (0, 0.0, -1, float("inf"), float("nan"), -float("inf"))),
    *((name, value, TypeError, CHOICE) for name in ("early_preload", "transfer_ahead") for value in (0, 1, None, "no")),
    *(("cache", value, TypeError, CACHE) for value in (1, True, False, b"device", ["device"])),
    *(("cache", value, ValueError, CACHE) for value in ("cuda", "", "Device")),
]


@pytest.mark.parametrize(("name", "value", "error", "accepted"), WRONG)
def test_a_wrong_value_is_told_with_what_is_accepted(name, value, error, accepted):
    with pytest.raises(error) as caught:
        QueueOptions(**{name: value})
    assert str(caught.value) == f"`{name}` takes {accepted}; got {value!r}."
    assert type(caught.value) is error


RIGHT = [
    *(("buffer_size", value) for value in (None, 0, 1, 10_000, np.int64(3))),
    *((name, value) for name in ("buffer_bytes", "cache_bytes") for value in (1, 1 << 50, np.int32(7))),
    *(("timeout", value) for value in (None, 1, 0.001, 1e9, np.float32(2.5), fractions.Fraction(1, 3))),
    *((name, value) for name in ("early_preload", "transfer_ahead") for value in (True, False)),
    *(("cache", value) for value in (None, "device")),
]


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_a_right_value_is_kept(name, value):
    assert getattr(QueueOptions(**{name: value}), name) is value


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="buffer"):
        QueueOptions(buffer=3)
    with pytest.raises(TypeError):
        QueueOptions(16)


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        QueueOptions().buffer_size = 3


def test_the_defaults_change_nothing():
    assert QueueOptions().changed() == ""
    assert QueueOptions(buffer_size=None, timeout=None).changed() == ""


@given(
    size=st.none() | st.integers(0, 99),
    timeout=st.none() | st.floats(0.1, 9.0),
    preload=st.booleans(),
    transfer=st.booleans(),
    cache=st.sampled_from([None, "device"]),
)
def test_what_differs_makes_the_same_options_again(size, timeout, preload, transfer, cache):
    options = QueueOptions(
        buffer_size=size, timeout=timeout, early_preload=preload, transfer_ahead=transfer, cache=cache
    )
    changed = options.changed()
    assert eval(f"QueueOptions({changed})") == options
    assert ("buffer_size" in changed) == (size is not None)
    assert ("early_preload" in changed) == preload


def test_small_steps_find_enough_batches_unless_the_user_says_how_many():
    ways = [(False, False), (False, True), (True, False), (True, True)]
    assert [QueueOptions().in_a_row(*way) for way in ways] == [16, 64, 1024, 1024]
    for size in (0, 1, 16):
        assert {QueueOptions(buffer_size=size).in_a_row(*way) for way in ways} == {size}
    assert [QueueOptions(buffer_size=size).batches for size in (None, 0, 300)] == [16, 0, 300]


def test_what_differs_is_written_as_arguments():
    assert QueueOptions(buffer_size=2, cache="device").changed() == "buffer_size=2, cache='device'"
