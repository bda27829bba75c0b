"""Fingerprints of Python state: equal while nothing changed, other when something did."""

import collections
import dataclasses
import queue
import random
import threading
import types
import weakref
from copy import copy

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sink.engine.state.attributes import fingerprint, nested
from lightning_sink.engine.state.positions import random_state
from lightning_sink.engine.state.slots import Parts
from lightning_sink.engine.tracing.undo import Attributes


@dataclasses.dataclass
class Options:
    scale: float = 1.0
    inner: object = None


class Slotted:
    __slots__ = ("scale",)


def of_class():
    """An object of a class that nothing else has an object of."""

    class Base:
        table = {"a": 1}

    class Kind(Base):
        scale = 1.0
        tensor = torch.ones(1)

    return Kind()


VALUES = {
    "class": (of_class, lambda v: setattr(type(v), "scale", 2.0)),
    "table of a class": (of_class, lambda v: v.table.update(a=2)),
    "tensor of a class": (of_class, lambda v: setattr(type(v), "tensor", torch.ones(1))),
    "class of an object in a list": (lambda: [of_class()], lambda v: setattr(type(v[0]), "scale", 2.0)),
    "list": (lambda: [1, 2], lambda v: v.append(3)),
    "deep list": (lambda: [[[[1]]]], lambda v: v[0][0][0].append(2)),
    "dict": (lambda: {"a": {"b": 1}}, lambda v: v["a"].update(b=2)),
    "set": (lambda: {1, 2}, lambda v: v.add(3)),
    "deque": (lambda: collections.deque([1]), lambda v: v.append(2)),
    "dataclass": (Options, lambda v: setattr(v, "scale", 2.0)),
    "nested object": (lambda: Options(inner=Options()), lambda v: setattr(v.inner, "scale", 2.0)),
    "slots": (Slotted, lambda v: setattr(v, "scale", 2.0)),
    "namespace": (lambda: types.SimpleNamespace(a=1), lambda v: setattr(v, "a", 2)),
    "array": (lambda: np.zeros(3), lambda v: v.fill(1)),
    "numpy generator": (lambda: np.random.default_rng(0), lambda v: v.random()),
    "random generator": (lambda: random.Random(0), lambda v: v.random()),
    "numpy objects": (lambda: np.array([1.0, "name"], dtype=object), lambda v: v.__setitem__(0, 2.0)),
    "polynomial": (lambda: np.polynomial.Polynomial([1.0]), lambda v: setattr(v, "coef", np.array([2.0]))),
    "queue": (queue.Queue, lambda v: v.put(1)),
    "memory": (lambda: memoryview(bytearray(2)), lambda v: v.__setitem__(0, 1)),
    "local to a thread": (threading.local, lambda v: setattr(v, "scale", 2.0)),
    "tensor in a list": (lambda: [torch.ones(1)], lambda v: v.__setitem__(0, torch.ones(1))),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_change_is_seen_and_looking_changes_nothing(name):
    make, change = VALUES[name]
    value = make()
    before = fingerprint(value)
    assert fingerprint(value) == before
    change(value)
    assert fingerprint(value) != before


@pytest.mark.parametrize("value", [1, 1.5, "a", None, True, b"a", float("nan"), (1, [2]), np.float32(2.0), Options()])
def test_a_value_is_equal_to_its_like(value):
    import copy

    assert fingerprint(copy.deepcopy(value)) == fingerprint(value)


ZEROS = [
    ("", "''"),
    (0.0, -0.0),
    ([1, 0.0], [1, -0.0]),
    (0j, complex(0.0, -0.0)),
    ({"a": [object, 0.0]}, {"a": [object, -0.0]}),
]


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), ([1], (1,)), (None, 0), *ZEROS])
def test_values_that_make_other_operations_are_not_equal(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_an_object_at_the_place_of_a_dead_one_is_another():
    held = fingerprint(object())
    assert held != fingerprint(object())


def test_a_value_that_holds_itself_and_one_that_is_huge_come_to_an_end():
    loop = []
    loop.append(loop)
    assert fingerprint(loop) == fingerprint(loop)
    huge = [[0] * 1000] * 10_000
    assert fingerprint(huge) == fingerprint(huge)


class Node:
    def __init__(self, parent=None):
        self.parent, self.children, self.scale = parent and weakref.ref(parent), [], 1.0
        if parent is not None:
            parent.children.append(self)


def test_objects_that_know_each_other():
    root = Node()
    for _ in range(100):
        last = Node(Node(root))
    held = {"a": [("x", root)]}
    before = fingerprint(held)
    assert fingerprint(held) == before
    last.scale = 2.0
    assert fingerprint(held) != before


def test_a_chain_that_is_too_long_to_follow_is_the_same():
    first = node = Node()
    for _ in range(40):
        node.child = Node()
        node = node.child
    held = {"a": [first], "method": [[[[[[[[[[[[first.__init__]]]]]]]]]]]]}
    assert fingerprint(held) == fingerprint(held)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_a_draw_from_a_global_generator_is_seen(draw):
    before = random_state()
    assert random_state() == before
    draw()
    assert random_state() != before


def test_a_generator_without_a_state_is_the_same():
    generator = random.SystemRandom()
    assert fingerprint(generator) == fingerprint(generator)


CONTAINERS = {
    "list": [1],
    "deque": collections.deque([1], 3),
    "set": {1},
    "dict": {1: 1},
    "OrderedDict": collections.OrderedDict({2: 1, 1: 2}),
    "defaultdict": collections.defaultdict(int, {1: 1}),
    "Counter": collections.Counter({1: 2}),
    "empty": {},
}


@pytest.mark.parametrize("within", [lambda held: held, lambda held: (0, (held,)), lambda held: {"a": [held]}])
@pytest.mark.parametrize("name", CONTAINERS)
def test_contents_are_put_back_wherever_they_are(name, within):
    module, container = nn.Linear(1, 1), CONTAINERS[name]
    module.held, expected = within(container), copy(container)
    attributes = Attributes(Parts(module))
    container.clear()
    (getattr(container, "append", None) or container.update)({7: 7} if isinstance(container, dict) else (7,))
    attributes.restore()
    assert container == expected
    assert list(container) == list(expected)


def test_objects_that_hold_each_other_are_found_once():
    nodes = [Node() for _ in range(30)]
    for node in nodes:
        node.child = nodes
    assert len(nested([nodes[0], (nodes,)])) == 61  # their attributes, their children and the list


def test_going_back():
    module = nn.Sequential(nn.Linear(2, 2))
    module.calls, module.seen, module.table = 1, [1], {"a": 1}
    seen, attributes = module.seen, Attributes(Parts(module))
    expected = random.random(), np.random.rand()
    module.calls, module.new = 2, 3
    module.seen.append(2)
    module.table["b"] = 2
    attributes.restore()
    assert (module.calls, module.seen, module.table) == (1, [1], {"a": 1})
    assert module.seen is seen
    assert not hasattr(module, "new")
    assert expected == (random.random(), np.random.rand())
