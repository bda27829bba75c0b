"""A CUDA device as `captured.py` needs it, by PyTorch's rules for graphs (notes/cuda.html#cuda-graphs).

Not run on a GPU yet; `tests/engine/test_captured_gpu.py` is what will tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.captured import Graphs
from lightning_sink.engine.loop import Outputs


class CudaGraphs(Graphs):
    """A CUDA device.

    Its graphs share the memory that steps need and leave: they are replayed one behind the other on the trainer's
    stream, and what they leave is copied out before the next one.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def capture(self, body: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Captures what a function gives the device, on a stream beside the trainer's.

        Other threads go on meanwhile: one that fetches batches may ask for memory, which "global" captures forbid.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = body()
        self._pool = graph.pool()
        return graph.replay, outputs

    def bring(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns tensors on the device, those of the host's that are alike by one copy, out of pinned memory."""
        found, alike = [*tensors], dict[tuple[torch.dtype, torch.Size], list[int]]()
        for place, tensor in enumerate(tensors):
            if tensor.is_cpu:
                alike.setdefault((tensor.dtype, tensor.shape), []).append(place)
        for (dtype, shape), places in alike.items():
            pinned = torch.empty((len(places), *shape), dtype=dtype, pin_memory=True)
            torch.stack([tensors[place] for place in places], out=pinned)
            for place, part in zip(places, pinned.to(self._device, non_blocking=True).unbind(), strict=True):
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
