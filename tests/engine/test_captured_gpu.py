"""Steps that CUDA graphs repeat: the same steps, without a synchronisation, in memory that does not grow.

`test_captured.py` has the same promises over a device that computes at once, and whole trainings.
"""

import pytest
import torch
from test_captured import captured
from test_loop import recording, repeat

from gpu import needs_gpu
from lightning_sink.engine.cuda import CudaGraphs
from lightning_sink.engine.inductor import compile_traced

CUDA = torch.device("cuda")


def step_on_gpu():
    step = captured(compile_traced(recording()), CudaGraphs(CUDA))
    step(torch.zeros(4, device=CUDA), torch.zeros(4, device=CUDA))
    return step


@needs_gpu
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 16, 21, 37])
def test_every_step_counts_and_the_last_one_is_returned(count, on_host):
    step, total = step_on_gpu(), torch.zeros(4, device=CUDA)
    rows = torch.arange(4.0 * count, device=CUDA).reshape(count, 4)
    given = [[row.cpu() if on_host else row] for row in rows]
    found = repeat(step, [total, None], [1], given, [0, 1])
    (sums, largest), outputs = found.kept, found.outputs
    assert found.seconds > 0
    assert torch.equal(total, rows.sum(0))
    assert torch.equal(sums, rows.sum(1).cumsum(0))
    assert torch.equal(largest, rows.amax(1))
    assert torch.equal(outputs[2], rows[-1] * 2)


@needs_gpu
def test_launching_waits_for_nothing_and_memory_does_not_grow():
    step, total, reserved = step_on_gpu(), torch.zeros(4, device=CUDA), []
    rows = [[torch.ones(4)]] * 21
    repeat(step, [total, None], [1], rows, [0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            row = step.row([total, None], [1], rows, [0])
            row.launch()
            row.wait()
            reserved.append(torch.cuda.memory_reserved())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total[0]) == 21.0 * 201
    assert reserved[20:] == [reserved[20]] * 180
