"""Slots of a CUDA device, on real streams: the order of events, as in `test_streams.py`, and what only CUDA shows.

None of these has been run yet: no machine with a GPU has been at hand since they were written.
"""

import itertools

import pytest
import torch
from test_queue import FakePace, Numbers, queue_of, settle

from gpu import needs_gpu
from lightning_sink.data.cuda import CudaBackend
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.streams import StreamDevice

SIZE = 4096


def batch_of(number):
    return [torch.full((SIZE,), float(number)), torch.full((SIZE,), number)]


def long_work(device):
    """Keeps the trainer's stream busy for milliseconds, so that the host runs far ahead of it."""
    square = torch.randn(2048, 2048, device=device)
    for _ in range(10):
        square = square @ square / 2048
    return square


@pytest.fixture
def device():
    device = torch.device("cuda", torch.cuda.current_device())
    yield device
    torch.cuda.synchronize()


def train(device, takes, *, slow, ahead=True, size=3, keep=(), source=None, strict=False):
    """Returns the sums that steps found, with what they should have been, and the batches that were kept."""
    found, kept = torch.zeros(takes, 2, dtype=torch.float64, device=device), {}
    backend, options = CudaBackend(device), QueueOptions(buffer_size=size)
    work = long_work(device)
    with queue_of(
        source or Numbers(),
        FakePace(ahead),
        options,
        device=StreamDevice(backend),
        prepare=lambda place: batch_of(place[1]),
    ) as queue:
        queue.expect(takes)
        for index in range(takes):
            if strict and index == size + 3:  # every slot has its memory
                settle(queue)
                torch.cuda.set_sync_debug_mode("error")
            (x, y), number = queue.take()
            if slow:
                work = work @ work / 2048
            found[index, 0].copy_(x.double().sum())
            found[index, 1].copy_(y.double().sum())
            if number in keep:
                kept[number] = (x, y)
            del x, y
        torch.cuda.set_sync_debug_mode("default")
        queue.rest()
    expected = torch.arange(takes, dtype=torch.float64).unsqueeze(1).repeat(1, 2) * SIZE
    return found.cpu(), expected, kept


@needs_gpu
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("slow", [True, False], ids=["a slow consumer", "a fast consumer"])
def test_every_step_reads_its_own_batch(device, slow, ahead):
    found, expected, _ = train(device, 200, slow=slow, ahead=ahead)
    assert torch.equal(found, expected)


@needs_gpu
def test_a_slow_producer(device):
    source = Numbers(act=lambda number: torch.randn(200_000).sort())
    found, expected, _ = train(device, 60, slow=False, source=source)
    assert torch.equal(found, expected)


@needs_gpu
def test_nothing_waits_for_the_device(device):
    found, expected, _ = train(device, 60, slow=True, strict=True)
    assert torch.equal(found, expected)


@needs_gpu
def test_what_is_kept_stays(device):
    _, _, kept = train(device, 60, slow=True, keep={1, 2, 30})
    for number, (x, y) in kept.items():
        assert torch.equal(x.cpu(), batch_of(number)[0])
        assert torch.equal(y.cpu(), batch_of(number)[1])


@needs_gpu
def test_memory_stays_as_it_is(device):
    backend, used = CudaBackend(device), []
    source = Numbers()
    with queue_of(
        source,
        FakePace(),
        QueueOptions(buffer_size=3),
        device=StreamDevice(backend),
        prepare=lambda place: batch_of(place[1]),
    ) as queue:
        for _ in range(200):
            queue.expect(8)
            for batch, _ in itertools.islice(iter(queue.take, None), 8):
                batch[0].sum()
            queue.rest()
            torch.cuda.synchronize()
            used.append((torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)))
    assert len(set(used[10:])) == 1


@needs_gpu
def test_the_device_of_a_slot_is_the_one_that_was_asked_for():
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    slot = StreamDevice(CudaBackend(last)).slot()
    with torch.cuda.device(last):
        slot.fill([torch.arange(7)])
        (x,) = slot.take()
        assert x.device == last
        assert x.tolist() == list(range(7))
        slot.release()
