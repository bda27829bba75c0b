"""How large whole numbers are at most: never less than they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_sink.engine.tracing.bounds import largest_in
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.recording import Recording


class Written(TorchDispatchMode):
    """Writes operations down."""

    def __init__(self):
        super().__init__()
        self.writer = GraphWriter(Recording(fx.Graph()), lambda tensor, index: None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, as_node = (
            func(*args, **(kwargs or {})),
            lambda item: self.writer.node(item) if torch.is_tensor(item) else item,
        )
        given = torch.utils._pytree.tree_map(as_node, (args, kwargs or {}))
        self.writer.write(func, *given, out, draws=False)
        return out


def bound_of(compute, *tensors):
    with Written() as written:
        out = compute(*tensors)
    return largest_in(written.writer.node(out)), out


SCORES = torch.tensor([[0.1, 0.9, 0.3], [2.0, 1.0, 0.0]])
LABELS = torch.tensor([1, 2])

KNOWN = {
    "right ones": (lambda x, y: (x.argmax(1) == y).sum(), 2),
    "right ones, by a method": (lambda x, y: x.argmax(1).eq(y.view_as(y)).sum(), 2),
    "right ones, as whole numbers": (lambda x, y: (x.argmax(1) == y).long().sum(), 2),
    "right ones of each class": (lambda x, y: (x > 0.5).sum(0), 6),
    "places": (lambda x, y: x.argmax(1).squeeze(), 6),
    "one truth": (lambda x, y: (x > 0.5).any(), 1),
    "what is not zero": (lambda x, y: torch.count_nonzero(x > 0.5), 6),
    "a narrow type": (lambda x, y: y.to(torch.int16).max(), 32768),
}
UNKNOWN = {
    "labels": lambda x, y: y.max(),
    "a sum of labels": lambda x, y: y.sum(),
    "a sum of places": lambda x, y: x.argmax(1) + y,
    "floats": lambda x, y: x.sum(),
    "rounded floats": lambda x, y: x.sum().long(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_counts_and_places_are_bounded(name):
    compute, expected = KNOWN[name]
    found, out = bound_of(compute, SCORES, LABELS)
    assert found == expected >= out.long().abs().max()


@pytest.mark.parametrize("name", UNKNOWN)
def test_of_others_nothing_is_known(name):
    assert bound_of(UNKNOWN[name], SCORES, LABELS)[0] is None


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_sums_of_narrow_types(numbers):
    found, out = bound_of(lambda x: x.sum(), torch.tensor(numbers, dtype=torch.int32))
    assert found >= abs(out.item())
