"""What is in no attribute is seen to change: closures, iterators, wrappers, numbers of C."""

import array
import collections
import ctypes
import itertools
import multiprocessing
import random
import sys
import threading
import weakref
from functools import lru_cache, partial, partialmethod, singledispatch, singledispatchmethod

import pytest

from lightning_sink.engine.state.attributes import fingerprint
from lightning_sink.engine.state.insides import insides


def advance(iterator):
    next(iterator)


def closure():
    value = [1]

    def function():
        return value

    return function


def filled():
    cached = lru_cache(lambda: 1)
    fingerprint((cached(), cached(), cached()) and cached)
    return cached


def dispatching():
    @singledispatch
    def function(value):
        return value

    return function


class Endless:
    """Its length is a question that nobody may ask."""

    def __getitem__(self, index):
        return 1

    def __len__(self):
        if sys._getframe(1).f_code.co_filename != __file__:
            raise NotImplementedError
        return 9


def in_a_loop():
    for value in [1, 1, 1]:
        yield abs(value)


def through(values):
    yield from values


class Kept:
    scale = 1.0


KEPT = Kept()
ITERATORS = {
    "list": lambda: iter([1, 1, 1]),
    "tuple": lambda: iter((1, 1, 1)),
    "range": lambda: iter(range(9)),
    "text": lambda: iter("aaa"),
    "bytes": lambda: iter(b"aaa"),
    "dict": lambda: iter({1: 1, 2: 1}),
    "items": lambda: iter({1: 1, 2: 1}.items()),
    "values": lambda: iter({1: 1, 2: 1}.values()),
    "set": lambda: iter({1, 2, 3}),
    "reversed": lambda: reversed([1, 1, 1]),
    "enumerate": lambda: enumerate([1, 1, 1]),
    "zip": lambda: zip([1, 1], [1, 1], strict=True),
    "map": lambda: map(abs, [1, 1, 1]),
    "filter": lambda: filter(None, [1, 1, 1]),
    "chain": lambda: itertools.chain([1, 1], [1]),
    "cycle": lambda: itertools.cycle([1, 1, 1]),
    "repeat": lambda: itertools.repeat(1, 3),
    "islice": lambda: itertools.islice([1, 1, 1], 2),
    "accumulate": lambda: itertools.accumulate([0, 0, 0]),
    "longer range": lambda: iter(range(1 << 70)),
    "other text": lambda: iter("\N{BULLET}\N{BULLET}"),
    "deque": lambda: iter(collections.deque([1, 1])),
    "array": lambda: iter(array.array("b", [1, 1])),
    "ordered dict": lambda: iter(collections.OrderedDict.fromkeys([1, 2])),
    "sequence": lambda: iter(Endless()),
    "reversed sequence": lambda: reversed(Endless()),
    "calls": lambda: iter(collections.deque([1, 1, 1]).popleft, None),
    "generator": lambda: (1 for _ in range(3)),
    "generator of a loop": in_a_loop,
    "generator of another": lambda: through([1, 1, 1]),
    "takewhile": lambda: itertools.takewhile(bool, [1, 1, 1]),
    "pairwise": lambda: itertools.pairwise([1, 1, 1, 1]),
}

VALUES = {
    **{f"iterator: {name}": (make, advance) for name, make in ITERATORS.items()},
    "counter": (itertools.count, advance),
    "number of C": (ctypes.c_double, lambda v: setattr(v, "value", 2.0)),
    "array of C": (ctypes.c_int * 3, lambda v: v.__setitem__(1, 2)),
    "shared number": (lambda: multiprocessing.Value("d", 1.0), lambda v: setattr(v, "value", 2.0)),
    "shared array": (lambda: multiprocessing.Array("i", 3), lambda v: v.__setitem__(1, 2)),
    "event": (threading.Event, lambda v: v.set()),
    "weak reference": (lambda: weakref.ref(KEPT), lambda v: setattr(v(), "scale", v().scale + 1)),
    "partial": (lambda: partial(print, [1]), lambda v: v.args[0].append(2)),
    "method of C": (lambda: collections.deque([1, 1]).popleft, lambda v: v()),
    "method of an iterator": (lambda: iter([1, 1]).__next__, lambda v: v()),
    "method of a generator of Python's": (lambda: random.Random(0).random, lambda v: v()),
    "cache, cleared": (filled, lambda v: v.cache_clear()),
    "cache, cleared and filled": (filled, lambda v: (v.cache_clear(), v())),
    "partial method": (lambda: partialmethod(print, [1]), lambda v: v.args[0].append(2)),
    "static method": (lambda: staticmethod(closure()), lambda v: v().append(2)),
    "property": (lambda: property(closure()), lambda v: v.fget().append(2)),
    "cache": (lambda: lru_cache(closure()), lambda v: v.__wrapped__().append(2)),
    "choice by type": (dispatching, lambda v: v.register(int, print)),
    "method by type": (lambda: singledispatchmethod(print), lambda v: v.register(int, print)),
    "closure": (closure, lambda v: v().append(2)),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_change_is_seen_and_looking_changes_nothing(name):
    make, change = VALUES[name]
    value = make()
    assert insides(value) is not None
    before = fingerprint(value)
    assert fingerprint(value) == before
    change(value)
    assert fingerprint(value) != before


def test_what_has_been_chosen_is_no_change():
    chosen = dispatching()
    before = fingerprint(chosen)
    chosen(1)
    assert fingerprint(chosen) == before


def test_looking_takes_nothing_from_an_iterator():
    for make in ITERATORS.values():
        looked, other = make(), make()
        fingerprint(looked)
        assert list(itertools.islice(looked, 3)) == list(itertools.islice(other, 3))


class OwnProperty(property):
    pass


class OwnReference(weakref.ref):
    pass


class OwnStructure(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


class OwnPartial(partial):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnProperty(closure()),
        lambda: OwnReference(KEPT),
        OwnStructure,
        lambda: OwnPartial(closure()),
    ],
    ids=["property", "reference", "structure", "partial"],
)
def test_what_a_class_of_the_users_adds_is_seen(make):
    value = make()
    value.scale = 1.0
    before = fingerprint(value)
    assert fingerprint(value) == before
    value.scale = 2.0
    assert fingerprint(value) != before


def released():
    memory = memoryview(bytearray(2))
    memory.release()
    return memory


@pytest.mark.parametrize(
    "make",
    [released, lambda: memoryview(ctypes.c_double()), lambda: weakref.ref(Kept()), lambda: weakref.proxy(Kept())],
    ids=["released memory", "one number", "dead reference", "dead proxy"],
)
def test_what_cannot_be_looked_at_is_no_error(make):
    value = make()
    assert fingerprint(value) == fingerprint(value)


def test_a_cache_that_fills_is_the_same():
    cached = lru_cache(abs)
    before = fingerprint(cached)
    cached(1)
    assert fingerprint(cached) == before


def test_what_is_in_no_list():
    assert insides(threading.Lock()) is None
    assert insides(open) is None
    assert insides(1) is None
