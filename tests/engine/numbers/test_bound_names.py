"""`float`, and what was imported by its name, know stand-ins in modules whose functions only call them."""

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import positions
from lightning_sink.engine.numbers import bound_names
from lightning_sink.engine.numbers.beside_tensors import tensor_of
from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.math_functions import known_to_math
from lightning_sink.engine.numbers.number import Number

CALLS = {
    "a function": "",
    "a method of a tensor": "def other(x):\n    return x.float()",
    "a function inside": "def other(x):\n    return [float(each) for each in (lambda: x)()]",
    "a class": "class Other:\n    def __call__(self, x):\n        return float()",
    "a decorator": "import functools\n@functools.cache\ndef other(x):\n    return float(x)",
    "an annotation": "def other(x: float) -> float:\n    return x",
}
OTHERS = {
    "its type": "def other(x):\n    return type(x) is float",
    "an instance": "def other(x):\n    return isinstance(x, float)",
    "handed on": "def other(x):\n    return list(map(float, x))",
    "a method": "class Other:\n    def __call__(self, x):\n        return float.fromhex(x)",
    "behind a decorator": "import functools\n@functools.cache\ndef other(x):\n    return {float: x}",
    "within": "def other(x):\n    return lambda y: (x, float)",
    "a name of its own": "def float(x):\n    return 2.0 * x.__float__()",
}
known_from_3_11 = pytest.mark.skipif(not positions.KNOWN, reason="calls are told from other uses from Python 3.11 on")


@pytest.fixture
def module(request):
    """A module with such code, and a function that makes a float."""
    made = ModuleType(f"made_for_{request.node.name}")
    exec(f"def convert(x):\n    return float(x)\n\n{request.param}", vars(made))
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]
    bound_names._found.pop((made.__name__, "float"), None)


def number(value):
    told = []
    uses = Uses(told.append, told.append)
    values = [value]
    tensor = torch.tensor(float(value), dtype=torch.float64)
    return Number(tensor, value, uses, "`n`", lambda: values[0]), told, values


def given_twice(module, value):
    """Returns what a module makes of a number, once it has asked for one; with what was told of that."""
    with known_to_math():
        first = module.convert(number(value)[0])
        assert type(first) is float
        stands, told, values = number(value)
        found = module.convert(stands)
        assert type(found) is float  # in the recording in which it asks for the first time
    assert told.pop()
    with known_to_math():
        return module.convert(stands), told, values


@known_from_3_11
@pytest.mark.parametrize("module", CALLS.values(), ids=CALLS.keys(), indirect=True)
def test_a_stand_in_is_given_where_functions_only_call_it(module):
    found, told, values = given_twice(module, 3)
    assert type(found) is Number
    assert (found.value, type(found.value), found.tensor.item()) == (3.0, float, 3.0)
    assert not told
    values[0] = 5
    assert found.host() == 5.0
    assert vars(module).get("float") is None
    assert type(module.convert(found)) is float
    with known_to_math():
        assert (module.convert("2.5"), module.convert(torch.ones(()))) == (2.5, 1.0)


@pytest.mark.parametrize("module", OTHERS.values(), ids=OTHERS.keys(), indirect=True)
def test_a_plain_number_is_given_where_they_do_something_else(module):
    names = dict(vars(module))
    with known_to_math():
        module.convert(number(3)[0])
    with known_to_math():
        found = module.convert(number(3)[0])
        assert vars(module) == names
    assert type(found) is float
    assert found == (6.0 if "float" in names else 3.0)


@known_from_3_11
@pytest.mark.parametrize("later", ["def other(x):\n    return isinstance(x, float)", ""], ids=["asks", "nothing"])
def test_functions_that_come_later_in_a_notebook_are_looked_at(later, monkeypatch):
    made = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", made)
    monkeypatch.setattr(bound_names, "_found", {})
    exec("def convert(x):\n    return float(x)", vars(made))
    given_twice(made, 3)
    exec(later, vars(made))
    with known_to_math():
        assert ("float" in vars(made)) is (later == "")


@known_from_3_11
def test_int_of_a_whole_number_is_that_number(monkeypatch):
    made = ModuleType("made_for_ints")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(bound_names, "_found", {})
    exec("def convert(x):\n    return int(x)", vars(made))
    whole, told, _ = number(3)
    with known_to_math():
        assert type(made.convert(whole)) is int
    assert told.pop()
    with known_to_math():
        assert made.convert(whole) is whole
        assert not told
        part, told, _ = number(2.5)
        assert (made.convert(part), type(made.convert(part))) == (2, int)
        assert told
        assert [made.convert(each) for each in ("7", torch.tensor(4), torch.tensor([2.7]), True)] == [7, 4, 2, 1]
    assert "int" not in vars(made)


IMPORTS = {
    "by its name": "from math import cos",
    "by another name": "from math import cos as cosine\ndef other(x):\n    return cosine(x)",
}


@known_from_3_11
@pytest.mark.parametrize("text", IMPORTS.values(), ids=IMPORTS.keys())
@pytest.mark.parametrize("asks", [False, True])
def test_what_was_imported_from_math_knows_stand_ins_where_it_is_only_called(text, asks, monkeypatch):
    made = ModuleType("made_for_imports")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(bound_names, "_found", {})
    called = text.split()[-1].removesuffix("cosine(x)") if "as" not in text else "cosine"
    more = f"\ndef asks():\n    return {called}.__name__" if asks else ""
    exec(f"{text}\ndef convert(x):\n    return {called}(x){more}", vars(made))
    names = dict(vars(made))
    with known_to_math():
        assert made.convert(number(3)[0]) == math.cos(3)
    with known_to_math():
        stands, told, values = number(3)
        found = made.convert(stands)
    assert vars(made) == names
    assert type(found) is (float if asks else Number)
    if not asks:
        assert not told
        values[0] = 5
        assert (found.value, found.host()) == (math.cos(3), math.cos(5))


@pytest.mark.parametrize("name", ["cos", "exp", "sqrt", "log1p"])
def test_functions_of_numpy_give_stand_ins_of_its_type(name):
    stands, told, values = number(3)
    found = getattr(np, name)(stands)
    assert type(found) is Number
    assert (found.value, type(found.value)) == (getattr(np, name)(3), np.float64)
    assert found.tensor.item() == pytest.approx(getattr(math, name)(3), rel=1e-12)
    assert not told
    values[0] = 7
    assert found.host() == getattr(np, name)(7)
    assert tensor_of(found, None).dtype == torch.tensor(found.value).dtype == torch.float64


def test_numpy_gives_a_stand_in_where_it_has_a_number_and_is_told_nothing_else():
    stands, told, values = number(3.0)
    assert type(np.sqrt(stands - 1.0)) is Number
    assert not told
    assert all(guard.holds() for guard in stands.uses.guards.values())
    values[0] = 0.5
    assert not all(guard.holds() for guard in stands.uses.guards.values())
    with np.errstate(invalid="ignore"):
        assert type(np.sqrt(number(3.0)[0])) is np.float64
        assert type(np.sqrt(number(-0.5)[0])) is np.float64


def test_numpy_raises_what_it_is_told_to_raise():
    stands, told, _ = number(0)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        np.log(stands)
    assert told


def test_truths_of_numpys_numbers_are_its_own():
    stands, _, _ = number(3)
    assert type(np.sqrt(stands) > 2) is np.bool_
    assert type(np.sqrt(stands) == np.sqrt(3)) is np.bool_
    assert not ~(np.sqrt(stands) > 1)
    assert type(stands > 2) is bool


def test_functions_that_the_garbage_collector_does_not_show_are_looked_at(monkeypatch):
    """Where `gc.freeze()` was called they are among no others, and one of these asks for the type."""
    seen = []
    monkeypatch.setattr(bound_names, "unfreeze", lambda: seen.append(True))
    assert test_functions_that_the_garbage_collector_does_not_show_are_looked_at in bound_names.functions_with(
        globals()
    )
    assert seen


@known_from_3_11
def test_what_a_step_puts_there_stays(monkeypatch):
    made = ModuleType("made_for_a_swap")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(bound_names, "_found", {})
    exec("from math import cos\ndef convert(x):\n    return cos(x)", vars(made))
    with known_to_math():
        made.convert(number(3)[0])
    with known_to_math():
        assert made.cos.__name__ == "cos"
        assert type(made.convert(number(3)[0])) is Number
        made.cos = abs
    assert made.cos is abs
