"""`CudaGraphs` keeps PyTorch's rules for captures, with `torch.cuda` replaced by what knows those rules.

The fake device stands for the GPU. What a real one says to it: `test_captured_gpu.py`.
"""

import contextlib

import pytest
import torch

from fake_device import DEVICE
from fake_graphs import Capture
from lightning_sink.engine import private
from lightning_sink.engine.device import cuda as engine_cuda
from lightning_sink.engine.device.cuda import CudaGraphs

pytestmark = pytest.mark.usefixtures("fake")


class Stream:
    def __init__(self, device=None): ...

    def wait_stream(self, stream): ...


class Cuda:
    """What happened.

    Attributes:
        pools: Those that the allocator gives memory from, as far as it knows.
        begun: Those of the captures that have begun.
        capturing: The streams that are captured.
        stream: The current one.
        extra: Turns that a loop makes too many.
        present: The graph whose capture began last.
    """

    def __init__(self):
        self.pools, self.begun, self.capturing, self.stream = set(), [], set(), Stream()
        self.extra, self.present = 0, None

    @contextlib.contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def synchronize(self, device=None):
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")


class Graph:
    """A graph as PyTorch 2.11 has it: one whose capture failed says nothing of its pool, and leaves it in use."""

    cuda = None

    def capture_begin(self, pool, capture_error_mode):
        assert pool is not None
        assert capture_error_mode == "thread_local"
        self.capture, self.pool_id, self.stream = Capture(may_draw=True), pool, self.cuda.stream
        self.ended = self.failed = False
        self.cuda.capturing.add(self.stream)
        self.cuda.pools.add(pool)
        self.cuda.begun.append(pool)
        self.cuda.present = self
        self.capture.__enter__()

    def fail(self):
        """What CUDA does where something is given that cannot be captured."""
        self.failed = True
        raise RuntimeError("operation not permitted when stream is capturing")

    def stop(self):
        self.cuda.capturing.discard(self.stream)
        self.capture.__exit__(None, None, None)
        self.capture.undo()

    def capture_end(self):
        if self.cuda.stream is not self.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if self.stream not in self.cuda.capturing:
            raise RuntimeError("capture_end() called before capture_begin().")
        self.stop()
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
    """A graph as PyTorch has it on its main branch: a body is captured on the same stream, and an error ends all."""

    def begin_capture_to_while_node(self, condition):
        self.checked(condition)
        self.first, self.begin, self.capture.may_draw = condition, len(self.capture.taken), False

    def set_conditional_handle_for_current_node(self, condition):
        self.checked(condition)
        self.again = condition

    def end_capture_to_conditional_node(self):
        self.end, self.capture.may_draw = len(self.capture.taken), True
        if self.failed:
            self.stop()
            self.cuda.pools.discard(self.pool_id)
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


class ChildGraph(LoopGraph):
    """A graph as PyTorch 2.14.1 has it: a body has a stream of its own, which an error leaves the current one."""

    def begin_capture_to_while_node(self, condition):
        super().begin_capture_to_while_node(condition)
        self.cuda.stream = Stream()

    def end_capture_to_conditional_node(self):
        if self.failed:
            raise RuntimeError("operation failed due to a previous error during capture")
        super().end_capture_to_conditional_node()
        self.cuda.stream = self.stream


def holds(condition):
    return bool(condition.to("cpu", non_blocking=True))


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
    monkeypatch.setattr(engine_cuda, "_REPEATS", {})
    monkeypatch.setattr(engine_cuda, "_FAILED", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", LoopGraph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda given: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", found.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.stream)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda index, pool: found.pools.discard(pool), raising=False
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
    assert graphs().repeats()  # another training's
    assert len(cuda.begun) == begun


NO_LOOPS = ["no such thing", "one turn too many", "the driver refuses", "a stream of its own", "the trial's end fails"]


@pytest.mark.parametrize("what", NO_LOOPS)
def test_a_device_that_does_not_repeat_as_it_is_told_is_not_asked_to(what, cuda, monkeypatch):
    device, (total, left), stream = graphs(), numbers(), cuda.stream
    if what == "no such thing":
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    elif what == "one turn too many":
        cuda.extra = 1
    elif what == "the driver refuses":
        monkeypatch.setattr(LoopGraph, "begin_capture_to_while_node", lambda self, condition: self.fail())
    elif what == "a stream of its own":
        monkeypatch.setattr(torch.cuda, "CUDAGraph", ChildGraph)
    else:
        monkeypatch.setattr(device, "fetch", lambda tensors: cuda.present.fail())
    assert not device.repeats()
    replay, _ = device.capture(counting(total, left))  # it captures all the same
    replay()
    assert torch.equal(total.cpu(), torch.ones(3))
    assert (cuda.pools, cuda.stream) == (set(), stream)


@pytest.mark.parametrize("graph", [LoopGraph, ChildGraph])
@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, "unseen"])
def test_a_capture_that_fails_ends_and_raises_its_own_error(kind, in_a_loop, graph, cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    device, (total, left), stream = graphs(), numbers(), cuda.stream
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
    assert (cuda.capturing, cuda.stream) == (set(), stream)
    assert cuda.pools == set(), "the allocator thinks that a capture goes on"
    replay()
    assert torch.equal(total.cpu(), torch.ones(3))
    again, _ = device.capture(counting(total, left))
    again()
    assert torch.equal(total.cpu(), torch.full((3,), 2.0))
    is_whole = kind is KeyboardInterrupt  # nothing has failed but the body
    assert (cuda.begun[-1] == cuda.begun[0]) is is_whole, "memory that a failed capture left takes no other"


def test_captures_that_end_well_all_have_one_memory(cuda):
    device, (total, left) = graphs(), numbers()
    for _ in range(3):
        device.capture(counting(total, left))
    assert len(set(cuda.begun)) == 1


def test_control_the_rules_are_kept(cuda):
    """A graph whose capture failed does not give its pool; the allocator has to be told of it by somebody else."""
    graph = LoopGraph()
    graph.capture_begin((0, 1), capture_error_mode="thread_local")
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.fail()
    with pytest.raises(RuntimeError, match="not permitted"):
        cuda.synchronize()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.pool()
    assert cuda.pools == {(0, 1)}
    private.end_allocating_to_pool(torch.device(DEVICE), (0, 1))
    assert cuda.pools == set()
