"""What functions see besides their arguments."""

import inspect
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
from torch import nn

from lightning_sink.engine.state import closures
from lightning_sink.engine.state.closures import find_functions, outside_state
from lightning_sink.engine.state.slots import Parts

SCALE = 1.0
TABLE = {"scale": 1.0}
Pair = namedtuple("Pair", "one other")


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


class Methods:
    def plain(self, scale):
        return scale

    def with_bases(self):
        return super().__repr__()

    @property
    def asked(self):
        return SCALE

    @classmethod
    def of_class(cls):
        return cls

    @staticmethod
    def of_none():
        return SCALE


SIBLINGS = []
for each in ([1.0], [2.0], None):

    def sibling(x, scale=each):
        return x if scale is None else x * scale[0]

    SIBLINGS.append(sibling)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not know the class it is of")
def test_what_stands_under_its_name_is_not_searched_for(monkeypatch):
    functions = [uses_globals, Methods.plain, Methods.with_bases, Methods.asked.fget, Methods.of_none]
    functions.append(Methods.of_class.__func__)
    searched = []
    monkeypatch.setattr(closures, "functions_of", lambda codes: searched.extend(codes) or [])
    assert {*find_functions([function.__code__ for function in functions])} == {*functions}
    assert not searched
    find_functions([(lambda: SCALE).__code__])
    assert len(searched) == 1


def test_functions_that_a_loop_makes_are_all_found():
    assert {*find_functions([sibling.__code__])} == {*SIBLINGS}


def test_a_name_that_has_something_else_by_now_is_none():
    code = compile("def uses_globals():\n    return 1\n", __file__, "exec")
    exec(code, scope := {"__name__": __name__})
    assert find_functions([scope["uses_globals"].__code__]) == [scope["uses_globals"]]


def test_pythons_own_is_not_searched_for(monkeypatch):
    monkeypatch.setattr(closures, "functions_of", lambda codes: pytest.fail("a search"))
    assert find_functions([inspect.signature.__code__, Pair.__new__.__code__]) == []


def test_what_many_functions_lead_to_is_looked_at_once(monkeypatch):
    table, looks = {"scale": [1.0]}, []
    functions = [lambda x, number=number: x * number * table["scale"][0] for number in range(9)]
    fingerprint = closures.fingerprint
    monkeypatch.setattr(
        closures, "fingerprint", lambda value, **rest: looks.append(value) or fingerprint(value, **rest)
    )
    before = outside_state(functions, Parts(nn.Module()))
    assert len([value for value in looks if value is table]) == 1
    table["scale"][0] = 2.0
    assert outside_state(functions, Parts(nn.Module())) != before


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


@pytest.mark.narrow
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
