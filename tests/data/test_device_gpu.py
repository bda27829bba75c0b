"""Batches on their way to a GPU: whole, in time, without a synchronisation and in memory that does not grow.

`test_device.py` has the same promises over a device that executes what it is given late and in any order.
"""

import pytest
import torch
from test_device import SENT, WAYS, Batches, X, same
from test_queue import FakePace, queue_of, settle, shown

from gpu import memory_of_batches, needs_gpu, no_synchronisation
from lightning_sink.data.cuda import CudaStreams
from lightning_sink.data.device import Device
from lightning_sink.data.options import QueueOptions

SLOW = 20_000_000
"""Cycles of a step that is slow beside a copy: some 10 ms."""


@needs_gpu
@WAYS
@pytest.mark.parametrize("kind", SENT)
def test_a_batch_arrives_as_if_each_tensor_was_moved(send, kind):
    batch = SENT[kind]()
    arrived = send(CudaStreams(torch.device("cuda")), batch).take()
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), batch)
    torch.cuda.synchronize()
    same(arrived, moved)


@needs_gpu
def test_control_a_synchronisation_is_noticed():
    with pytest.raises(RuntimeError, match="synchroniz"), no_synchronisation():
        X.cuda().sum().item()


def train(queue, sinks, source, slow_step=False, slow_fetch=False):
    """Trains by reading each batch; returns the sums that were read, and those that were to be read."""
    read, expected = [], []

    def step(batch, number):
        if slow_step:
            torch.cuda._sleep(SLOW // 20)
        read.append(batch[0].double().sum() + batch[1].sum())
        x, y = source.make(number)
        expected.append(float(x.double().sum() + y.sum()))

    for _ in range(sinks):
        queue.expect(40)
        for _ in range(4):
            step(*queue.take())
            if not slow_fetch:
                settle(queue)
            rows = shown(queue.look_ahead(4))
            for batch, number in rows:
                step(batch, number)
            if rows:
                queue.skip(len(rows))
        queue.rest()
    return read, expected


@needs_gpu
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slow", ["step", "fetch"])
def test_each_step_reads_its_own_batch_and_the_host_waits_for_nothing(ahead, slow):
    source = Batches([10_000], shapes=[(64, 100, False)])
    if slow == "fetch":
        source.act = lambda number: torch.rand(300, 300) @ torch.rand(300, 300)
    device = Device(CudaStreams(torch.device("cuda")))
    with queue_of(source, FakePace(ahead), QueueOptions(buffer_size=4), device=device) as queue:
        train(queue, 2, source)  # the allocators' first memory is had from the driver, which waits
        with no_synchronisation():
            read, expected = train(queue, 4, source, slow == "step", slow == "fetch")
        assert torch.stack(read).tolist() == expected


@needs_gpu
def test_memory_does_not_grow():
    source = Batches([100_000], shapes=[(64, 100, False), (7, 3, True)])
    device, reserved = Device(CudaStreams(torch.device("cuda"))), []
    with queue_of(source, FakePace(False), QueueOptions(buffer_size=4), device=device) as queue:
        for _ in range(200):
            train(queue, 1, source)
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
    assert reserved[20:] == [reserved[20]] * 180


@needs_gpu
def test_what_is_kept_stays_as_it_is():
    source, kept = Batches([10_000], shapes=[(64, 100, False)]), []
    device = Device(CudaStreams(torch.device("cuda")))
    with queue_of(source, FakePace(False), QueueOptions(buffer_size=4), device=device) as queue:
        queue.expect(1000)
        for _ in range(50):
            kept.append(queue.take())
            torch.cuda._sleep(SLOW // 20)
            rows = shown(queue.look_ahead(4))
            kept += rows
            if rows:
                queue.skip(len(rows))
    for (x, y), number in kept:
        same((x.cpu(), y.cpu()), source.make(number))


@needs_gpu
def test_trainings_one_behind_another_use_the_same_memory():
    torch.cuda.empty_cache()
    found = [memory_of_batches() for _ in range(3)]
    assert found == found[:1] * 3
