"""`CudaGraphs` keeps PyTorch's rules for captures, with `torch.cuda` replaced by what knows those rules.

The fake device stands for the GPU. What a real one says to it: `test_captured_gpu.py`.
"""

import contextlib

import pytest
import torch

from fake_device import DEVICE
from fake_graphs import Capture
from lightning_sink.engine import private
from lightning_sink.engine.cuda import CudaGraphs

pytestmark = pytest.mark.usefixtures("fake")


class Cuda:
    """What happened.

    Attributes:
        pools: Those that the allocator gives memory from, as far as it knows.
        begun: Those of the captures that have begun.
        in_loop: Whether a capture is within a loop.
        extra: Turns that a loop makes too many.
        present: The graph whose capture began last.
    """

    def __init__(self):
        self.pools, self.begun, self.in_loop, self.extra, self.present = set(), [], False, 0, None


class Graph:
    """A graph as PyTorch 2.11 has it: one whose capture failed says nothing of its pool, and leaves it in use."""

    cuda = None

    def capture_begin(self, pool, capture_error_mode):
        assert pool is not None
        assert capture_error_mode == "thread_local"
        self.capture, self.pool_id, self.ended, self.failed = Capture(may_draw=True), pool, False, False
        self.cuda.pools.add(pool)
        self.cuda.begun.append(pool)
        self.cuda.present = self
        self.capture.__enter__()

    def fail(self):
        """What CUDA does where something is given that cannot be captured."""
        self.failed = True
        raise RuntimeError("operation not permitted when stream is capturing")

    def capture_end(self):
        assert not self.cuda.in_loop
        self.capture.__exit__(None, None, None)
        self.capture.undo()
        if self.failed:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.cuda.pools.discard(self.pool_id)
        self.ended = True

    def pool(self):
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.pool_id

    def replay(self):
        self.capture.replay()


class LoopGraph(Graph):
    """A graph as PyTorch 2.14 has it."""

    def begin_capture_to_while_node(self, condition):
        self.checked(condition)
        self.first, self.begin = condition, len(self.capture.taken)
        self.cuda.in_loop, self.capture.may_draw = True, False

    def set_conditional_handle_for_current_node(self, condition):
        assert self.cuda.in_loop
        self.checked(condition)
        self.again = condition

    def end_capture_to_conditional_node(self):
        self.cuda.in_loop, self.capture.may_draw = False, True
        self.end = len(self.capture.taken)
        if self.failed:
            raise RuntimeError("operation failed due to a previous error during capture")

    @staticmethod
    def checked(condition):
        assert (condition.dtype, condition.shape, condition.device.type) == (torch.bool, (), "fake")

    def replay(self):
        if not hasattr(self, "first"):
            return super().replay()
        taken, parts = self.capture.taken, (slice(0, self.begin), slice(self.begin, self.end), slice(self.end, None))
        before, turn, behind = (taken[part] for part in parts)
        self.do(before)
        condition, extra = self.first, self.cuda.extra
        while holds(condition) or extra > 0:
            extra -= not holds(condition)
            self.do(turn)
            condition = self.again
        return self.do(behind)

    def do(self, taken):
        self.capture.taken, whole = taken, self.capture.taken
        self.capture.replay()
        self.capture.taken = whole


def holds(condition):
    return bool(condition.to("cpu", non_blocking=True))


class Stream:
    def __init__(self, device=None): ...

    def wait_stream(self, stream): ...


class Graphs(CudaGraphs):
    """Without pinned memory and events, which a CPU's build of PyTorch has not."""

    def fetch(self, tensors):
        return [tensor.to("cpu", non_blocking=True) for tensor in tensors]

    def mark(self): ...

    def wait(self, mark): ...


@pytest.fixture
def cuda(monkeypatch):
    found, handles = Cuda(), iter((0, number) for number in range(1, 100))
    monkeypatch.setattr(Graph, "cuda", found)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", LoopGraph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda given: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda index, pool: found.pools.remove(pool), raising=False
    )
    return found


def graphs():
    return Graphs(torch.device(DEVICE))


def counting(total, left):
    def body():
        total.add_(1)
        left.sub_(1)
        return (total * 2,)

    return body


def numbers():
    return torch.zeros(3, device=DEVICE), torch.zeros((), dtype=torch.int64, device=DEVICE)


def test_what_was_captured_is_repeated_as_often_as_the_number_says(cuda):
    total, left = numbers()
    replay, (twice,) = graphs().capture(counting(total, left), left)
    assert not total.cpu().any()  # nothing has happened yet
    for count in (3, 0, 1):
        left.fill_(count)
        replay()
    assert torch.equal(total.cpu(), torch.full((3,), 4.0))
    assert torch.equal(twice.cpu(), torch.full((3,), 8.0))


def test_without_a_number_it_is_done_once(cuda):
    total, left = numbers()
    replay, _ = graphs().capture(counting(total, left))
    for _ in range(2):
        replay()
    assert torch.equal(total.cpu(), torch.full((3,), 2.0))


def test_whether_a_device_repeats_is_tried_once(cuda):
    device = graphs()
    assert device.repeats()
    begun = len(cuda.begun)
    assert device.repeats()
    assert len(cuda.begun) == begun


@pytest.mark.parametrize("what", ["no such thing", "one turn too many", "the driver refuses"])
def test_a_device_that_does_not_repeat_as_it_is_told_is_not_asked_to(what, cuda, monkeypatch):
    if what == "no such thing":
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    elif what == "one turn too many":
        cuda.extra = 1
    else:
        monkeypatch.setattr(LoopGraph, "begin_capture_to_while_node", lambda self, condition: self.fail())
    device, (total, left) = graphs(), numbers()
    assert not device.repeats()
    replay, _ = device.capture(counting(total, left))  # it captures all the same
    replay()
    assert torch.equal(total.cpu(), torch.ones(3))
    assert cuda.pools == set()


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, "unseen"])
def test_a_capture_that_fails_ends_and_raises_its_own_error(kind, in_a_loop, cuda):
    device, (total, left) = graphs(), numbers()
    replay, _ = device.capture(counting(total, left))

    def body():
        total.add_(1)
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt
        if kind is RuntimeError:
            cuda.present.fail()
        cuda.present.failed = True  # which the end of the capture says
        return ()

    said = {RuntimeError: "not permitted", "unseen": "previous error"}.get(kind)
    with pytest.raises(RuntimeError if kind == "unseen" else kind, match=said):
        device.capture(body, left if in_a_loop else None)
    assert not cuda.in_loop
    assert cuda.pools == set(), "the allocator thinks that a capture goes on"
    replay()
    assert torch.equal(total.cpu(), torch.ones(3))
    again, _ = device.capture(counting(total, left))
    again()
    assert torch.equal(total.cpu(), torch.full((3,), 2.0))
    assert cuda.begun[-1] != cuda.begun[0], "memory that a failed capture left takes no other"


def test_control_the_rules_are_kept(cuda):
    """A graph whose capture failed does not give its pool; the allocator has to be told of it by somebody else."""
    graph = LoopGraph()
    graph.capture_begin((0, 1), capture_error_mode="thread_local")
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.fail()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.pool()
    assert cuda.pools == {(0, 1)}
    private.end_allocating_to_pool(torch.device(DEVICE), (0, 1))
    assert cuda.pools == set()
