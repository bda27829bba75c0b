"""A CUDA device as `graphs.py` needs it, by PyTorch's rules for graphs (notes/cuda.html#cuda-graphs).

`tests/engine/device/test_captured_gpu.py` has run on an H200 (torch 2.11).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import is_in_one_piece, memory_of
from lightning_sink.engine.compiler.row import Outputs
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.private import can_repeat_graphs, capture_repeated, end_allocating_to_pool

_FAILED: list[Any] = []
"""Graphs whose capture failed, for as long as the process lasts: to let go of one may change the current stream."""

_REPEATS: dict[torch.device, bool] = {}
"""Which devices repeat graphs by themselves."""


class CudaGraphs(Graphs):
    """A CUDA device.

    Its graphs share the memory that steps need and leave: they are replayed one behind the other on the trainer's
    stream, and what they leave is copied out before the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._anchor: tuple[torch.cuda.CUDAGraph, Tensor, Any] | None = None

    def repeats(self) -> bool:
        """Tries, once in a process, whether a graph can hold a loop that makes as many turns as it is told.

        Torch 2.14.1 and 2.15.0 can, but capture the body on a stream of its own: the memory of such a graph stays with
        the process, and behind an error in the body neither capture ends. Only loops whose body stays on the stream of
        the capture are used.
        """
        if self._device not in _REPEATS:
            _REPEATS[self._device] = can_repeat_graphs() and self._try_to_repeat()
        return _REPEATS[self._device]

    def _try_to_repeat(self) -> bool:
        streams = list[torch.cuda.Stream]()

        def body() -> None:
            streams.append(torch.cuda.current_stream(self._device))
            turns.add_(1)
            left.sub_(1)

        try:
            left = torch.zeros((), dtype=torch.int64, device=self._device)
            turns = torch.zeros_like(left)
            with self._capturing(torch.cuda.graph_pool_handle()) as graph:
                capture_repeated(graph, body, left)
            if streams != [self._stream]:
                return False
            for count in (0, 1, 5):
                left.fill_(count)
                graph.replay()
            (found,) = self.fetch([turns])
            self.wait(self.mark())
        except Exception:  # of PyTorch, CUDA or the driver: a trial says no, whatever it is
            return False
        return int(found) == 6

    def capture(self, body: Callable[[], Outputs], left: Tensor | None = None) -> tuple[Callable[[], None], Outputs]:
        """Captures what a function gives the device, on a stream beside the trainer's. Waits for the device before."""
        try:
            with self._capturing(self._pool()) as graph:
                outputs = body() if left is None else capture_repeated(graph, body, left)
        except BaseException:
            with suppress(RuntimeError):  # the error that is raised says more
                self._pool()
            raise
        return graph.replay, outputs

    def _pool(self) -> Any:
        """Returns the memory that all graphs share.

        One graph stays as long as this does, and the memory with it: what libraries keep there (cuBLAS's workspaces, by
        stream) outlives the graph in which they asked for it.
        """
        if self._anchor is None:
            number = torch.zeros(1, device=self._device)
            pool = torch.cuda.graph_pool_handle()
            with self._capturing(pool) as graph:
                number.add_(1)
            self._anchor = graph, number, pool
        return self._anchor[2]

    @contextmanager
    def _capturing(self, pool: Any) -> Iterator[torch.cuda.CUDAGraph]:
        """Captures what runs inside. `torch.cuda.graph` leaves its stream the current one where that fails."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # none of it is given to a capture's memory, and none can be given back meanwhile
        collects = gc.isenabled()
        gc.disable()  # to free another graph, or memory, would be captured
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                # Other threads go on: one that fetches batches may ask for memory, which "global" captures forbid.
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    yield graph
                except BaseException:
                    with suppress(RuntimeError):  # says that the capture has failed
                        self._end(graph, pool)
                    raise
                self._end(graph, pool)
        finally:
            if collects:
                gc.enable()
        # What the capture's beginning gave its own stream comes before the first replay.
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _end(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Ends a capture. Behind one that has failed, others begin anew, on another stream and in other memory.

        There PyTorch leaves the allocator as it is within a capture, generators think so until the next one (2.11), and
        the memory takes no other graph. The old graphs stay, for what refers to them.
        """
        try:
            with torch.cuda.stream(self._stream):  # a body may have left another one
                graph.capture_end()
        except RuntimeError:
            _FAILED.append((graph, self._anchor))
            end_allocating_to_pool(self._device, pool)
            self._anchor, self._stream = None, torch.cuda.Stream(self._device)
            raise

    def bring(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors on the device, those of the host's that are alike by one copy, out of pinned memory."""
        found, alike = [*tensors], dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], list[int]]()
        for place, tensor in enumerate(tensors):
            if tensor.is_cpu:
                alike.setdefault((tensor.dtype, tensor.shape, tensor.stride()), []).append(place)
        for (dtype, shape, stride), places in alike.items():
            if is_in_one_piece(shape, stride):
                pinned = torch.empty((len(places), *shape), dtype=dtype, device="cpu", pin_memory=True)
                torch.stack([tensors[place] for place in places], out=pinned)
                parts = pinned.to(self._device, non_blocking=True).unbind()
            else:
                parts = tuple([self._bring_as_it_lies(tensors[place]) for place in places])
            for place, part in zip(places, parts, strict=True):
                found[place] = part
        return found

    def _bring_as_it_lies(self, tensor: Tensor) -> Tensor:
        there = memory_of(tensor).pin_memory().to(self._device, non_blocking=True)
        return there.as_strided(tensor.shape, tensor.stride(), 0)

    def fetch(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors in pinned memory, those of a type and shape by one copy."""
        found, alike = [*tensors], dict[tuple[torch.dtype, torch.Size], list[int]]()
        for place, tensor in enumerate(tensors):
            alike.setdefault((tensor.dtype, tensor.shape), []).append(place)
        for (dtype, shape), places in alike.items():
            pinned = torch.empty((len(places), *shape), dtype=dtype, device="cpu", pin_memory=True)
            pinned.copy_(torch.stack([tensors[place] for place in places]), non_blocking=True)
            for place, part in zip(places, pinned.unbind(), strict=True):
                found[place] = part
        return found

    def mark(self) -> torch.cuda.Event:
        """Records an event on the trainer's stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Waits for an event on the host, without the interpreter's lock."""
        mark.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Returns the time between two events that have happened."""
        return float(begin.elapsed_time(end)) / 1e3
