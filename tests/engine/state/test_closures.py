"""What functions see besides their arguments."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from lightning_sink.engine.state.closures import find_functions, outside_state
from lightning_sink.engine.state.slots import Parts

SCALE = 1.0
TABLE = {"scale": 1.0}


class Shared:
    scale = 1.0


def uses_globals():
    return SCALE, TABLE, Shared


def state(function, inside=None):
    return outside_state([function], Parts(inside or nn.Module()))


def test_functions_are_found_by_their_code():
    assert find_functions([uses_globals.__code__]) == [uses_globals]
    assert find_functions([]) == []


def test_functions_of_libraries_are_left_out():
    codes = [torch.nn.functional.relu.__code__, uses_globals.__code__, nn.Linear.forward.__code__]
    assert find_functions(codes) == [uses_globals]


FROZEN = """
import gc
from lightning_sink.engine.state.closures import find_functions, outside_state
from lightning_sink.engine.state.slots import Parts
from torch import nn

def make(scale):
    def function():
        return scale
    def change(to):
        nonlocal scale
        scale = to
    return function, change

function, change = make(1.0)
gc.freeze()
other, _ = make(2.0)  # of the same code, and not frozen
found = find_functions([function.__code__])
assert set(found) == {function, other}
before = outside_state([function], Parts(nn.Module()))
change(3.0)
assert outside_state([function], Parts(nn.Module())) != before
"""


def test_functions_that_were_frozen_are_found():
    """In a process of its own: this one keeps the libraries' objects frozen."""
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=120)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setitem(globals(), "SCALE", 2.0),
        lambda patch: patch.setitem(TABLE, "scale", 2.0),
        lambda patch: patch.setattr(Shared, "scale", 2.0),
        lambda patch: patch.setattr(uses_globals, "calls", 2, raising=False),
    ],
)
def test_a_changed_global_is_seen(change, monkeypatch):
    before = state(uses_globals)
    assert state(uses_globals) == before
    change(monkeypatch)
    assert state(uses_globals) != before


def test_changed_cells_and_defaults_are_seen():
    number, tensor, layer = 1, torch.ones(1), nn.Dropout(0.5)

    def function(kept=[]):  # noqa: B006
        return number, tensor, layer, kept

    seen = [state(function)]
    number = 2
    seen.append(state(function))
    tensor = torch.ones(1)
    seen.append(state(function))
    layer.p = 0.1
    seen.append(state(function))
    function.__defaults__[0].append(1)
    seen.append(state(function))
    assert all(one != other for index, one in enumerate(seen) for other in seen[index + 1 :])
    assert state(function) == seen[-1]


def test_a_tensor_that_is_filled_is_the_same_tensor():
    tensor = torch.ones(1)

    def function():
        return tensor

    before = state(function)
    tensor.fill_(2)
    assert state(function) == before


def test_other_code_is_noticed():
    def function():
        return 1

    def other():
        return 1

    before = state(function)
    assert state(function) == before
    function.__code__ = other.__code__
    assert state(function) != before


def test_the_module_that_is_trained_is_looked_at_elsewhere():
    module = nn.Dropout(0.5)

    def function():
        return module

    before = state(function, module)
    module.p = 0.1
    assert state(function, module) == before


def test_a_variable_without_a_value_yet():
    def function():
        return later

    assert "later" not in str(state(function).keys())
    later = 1
    assert function() == later
