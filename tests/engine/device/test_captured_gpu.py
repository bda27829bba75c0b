"""Steps that CUDA graphs repeat: the same steps, without a synchronisation, in memory that does not grow.

`test_captured.py` has the same promises over a device that is none.
"""

import pytest
import torch
from rows import in_a_row, recording, repeat
from test_captured import ON_HOST, counting, drawing

from gpu import memory_of_batches, needs_gpu, no_synchronisation
from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.device.blocks import Blocks
from lightning_sink.engine.device.captured import CapturedStep
from lightning_sink.engine.device.cuda import CudaGraphs
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.tracing.draws import Draw

CUDA = torch.device("cuda", 0)


def refuse(error):
    raise error


def step_of(recorded, placement=None, draws=(), refuse=refuse, unroll=None):
    function = graph_module(recorded).forward
    return CapturedStep(function, Blocks(CudaGraphs(CUDA), refuse, unroll), placement or Placement(), draws)


def zeros():
    return torch.zeros(4, device=CUDA)


def adding(**options):
    step = step_of(recording(), **options)
    step(zeros(), zeros())
    return step


@needs_gpu
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 16, 21, 37])
def test_every_step_counts_and_the_last_one_is_returned(count, on_host):
    step, total = adding(), zeros()
    rows = torch.arange(4.0 * count).reshape(count, 4)
    found = repeat(step, [total, None], [1], [[row if on_host else row.to(CUDA)] for row in rows], [0, 1])
    (sums, largest), outputs = found.kept, found.outputs
    assert found.seconds > 0
    assert torch.equal(total.cpu(), rows.sum(0))
    assert torch.equal(sums.cpu(), rows.sum(1).cumsum(0))
    assert torch.equal(largest.cpu(), rows.amax(1))
    assert torch.equal(outputs[2].cpu(), rows[-1] * 2)


@needs_gpu
@pytest.mark.parametrize("count", [16, 37, 256, 600])
def test_rows_that_the_device_repeats_by_itself(count):
    step, total = adding(unroll=refuse), zeros()
    if not step.graphs.repeats():
        pytest.skip("this PyTorch (2.15.0 or older), CUDA or driver has no loops in graphs that are used")
    rows = torch.arange(4.0 * count).reshape(count, 4)
    for number in (1.0, 2.0, 3.0):
        row = step.row([Turn(step, [total, None], [1], [rows.to(CUDA)], [2])], count)
        row.launch()
        found = row.wait()
        assert torch.allclose(total.cpu(), number * rows.sum(0))
        assert torch.equal(found.kept[0].cpu(), rows * 2)
        assert torch.equal(found.outputs[2].cpu(), rows[-1] * 2)


@needs_gpu
@pytest.mark.parametrize("unroll", [None, refuse])
def test_launching_waits_for_nothing_and_memory_does_not_grow(unroll):
    step, total, reserved = adding(unroll=unroll), zeros(), []
    rows = [[torch.ones(4)]] * 21
    repeat(step, [total, None], [1], rows, [0])
    with no_synchronisation():
        for _ in range(200):
            row = in_a_row(step, [total, None], [1], rows, [0])
            row.launch()
            row.wait()
            reserved.append(torch.cuda.memory_reserved())
    assert float(total[0]) == 21.0 * 201
    assert reserved[20:] == [reserved[20]] * 180


@needs_gpu
def test_tensors_of_the_hosts_also_while_rows_overlap():
    step, count, rate = step_of(counting(), ON_HOST), torch.zeros(()), torch.tensor(0.5)
    step(count, rate, zeros())
    rows = [in_a_row(step, [count, rate, None], [2], [[torch.ones(4)]] * 21, [1]) for _ in range(2)]
    for row in rows:
        row.launch()
    first = rows[0].wait()
    assert torch.equal(first.kept[0][:, 0].cpu(), torch.arange(2.0, 23.0) * 0.5)
    assert first.outputs is None  # what the row behind it leaves takes the place of all that it left
    assert torch.equal(rows[1].wait().kept[0][:, 0].cpu(), torch.arange(23.0, 44.0) * 0.5)
    assert float(count) == 43.0


@needs_gpu
def test_draws_are_those_of_steps_one_by_one():
    rand, totals = torch.ops.aten.rand.default, []
    draws = [Draw(rand, ([4],), {"device": torch.device(place)}) for place in ("cpu", CUDA)]
    for in_rows in (False, True):
        torch.manual_seed(3)
        step, total, row = step_of(drawing(), Placement(draws=frozenset({0})), draws), zeros(), zeros() + 1
        step(total, row)
        if in_rows:
            repeat(step, [total, None], [1], [[row]] * 21, [])
        else:
            for _ in range(21):
                step(total, row)
        totals += [total.cpu(), torch.get_rng_state(), torch.cuda.get_rng_state(CUDA)]
    assert all(map(torch.equal, totals[:3], totals[3:]))


@needs_gpu
def test_steps_that_are_run_alone_are_replayed_without_a_wait():
    step = step_of(recording(), Placement(written=frozenset({0})))
    totals, rows = [zeros() + number for number in range(5)], torch.arange(400.0, device=CUDA).reshape(100, 4)
    found = [step.once([totals[n % 5], rows[n]], [0, 1], [0])[2] for n in range(20)]
    with no_synchronisation():
        found += [step.once([totals[n % 5], rows[n]], [0, 1], [0])[2] for n in range(20, 100)]
    assert torch.equal(torch.stack(found).cpu(), rows.cpu() * 2)
    for number, total in enumerate(totals):
        assert torch.equal(total.cpu(), rows[number::5].sum(0).cpu() + number)


@needs_gpu
def test_a_capture_that_fails_leaves_the_device_as_it_was():
    said, stream = [], torch.cuda.current_stream(CUDA)

    def function(total, row):
        return (row * total.sum().item(),)

    step = CapturedStep(function, Blocks(CudaGraphs(CUDA), said.append, None), Placement())
    step(zeros(), zeros())
    found = repeat(step, [zeros() + 1, None], [1], [[zeros() + 2]] * 3, [])
    assert len(said) == 1
    assert torch.cuda.current_stream(CUDA) == stream
    assert torch.equal(found.outputs[0].cpu(), torch.full((4,), 8.0))
    state = torch.cuda.get_rng_state(CUDA)
    torch.rand(3, device=CUDA)
    assert not torch.equal(state, torch.cuda.get_rng_state(CUDA))  # draws are made as ever
    again, total = adding(), zeros()
    repeat(again, [total, None], [1], [[zeros() + 1]] * 21, [])  # others can be captured
    in_a_row(step, [zeros(), None], [1], [[zeros()]], []).launch()
    repeat(again, [total, None], [1], [[zeros() + 1]] * 21, [])
    assert float(total[0]) == 42.0
    assert memory_of_batches() == memory_of_batches()  # what the copying and the trainer's stream used is given back


@needs_gpu
def test_what_ends_a_failed_capture_is_there():
    assert hasattr(torch._C, "_cuda_endAllocateToPool"), (
        "`torch._C._cuda_endAllocateToPool` is gone: behind a capture that fails, `end_allocating_to_pool` does nothing"
    )
