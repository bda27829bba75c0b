"""The names of PyTorch's that are not public: an upgrade that takes one away fails here, by its name."""

import inspect
import os
import signal
import threading

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

from lightning_sink.data import private


def test_every_name_is_there():
    for name in private.__all__:
        assert hasattr(private, name), f"private.py says that it has {name}"


def complexes():
    return torch.ones(4, 3, dtype=torch.complex64)


UNLIKE = {
    "shape": lambda: torch.ones(5, 3),
    "dimensions": lambda: torch.ones(4, 3, 1),
    "type": lambda: torch.ones(4, 3, dtype=torch.float64),
    "strides": lambda: torch.ones(3, 4).t(),
    "gradients": lambda: torch.ones(4, 3, requires_grad=True),
    "a subclass": lambda: torch.nn.Parameter(torch.ones(4, 3), requires_grad=False),
    "layout": lambda: torch.ones(4, 3).to_sparse(),
    "device": lambda: torch.ones(4, 3, device="meta"),
    "negated": lambda: complexes().conj().imag,
    "no tensor": lambda: 3.0,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_what_tells_tensors_that_are_alike(kind):
    is_alike = private.likeness([torch.ones(4, 3)])
    assert is_alike(torch.zeros(8, 3)[2:6])
    assert not is_alike(UNLIKE[kind]()), "TensorGuards sees less than it did"


def test_tensors_that_are_alike_are_told_by_one_call():
    x = torch.ones(4, 3)
    for tensors in ([x, torch.ones(2)], [x, x]):
        are_alike, same, other = private.likeness(tensors), [t.clone() for t in tensors], tensors[0].double()
        assert are_alike(*same)
        assert not are_alike(same[0], other)
        assert not are_alike(other, same[1])


def test_what_only_says_that_it_is_conjugated_is_not_alike():
    assert private.likeness([complexes()])(complexes())
    assert not private.likeness([complexes()])(complexes().conj())


class Mode(private.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.seen.append(operation)
        return operation(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_each_operation_of_its_thread():
    mode = Mode()
    torch.rand(2)
    with private.dispatching_here(mode):
        torch.rand(2)
        thread = threading.Thread(target=torch.rand, args=(2,))
        thread.start()
        thread.join()
    torch.rand(2)
    assert mode.seen == [torch.ops.aten.rand.default]
    assert torch.Tag.nondeterministic_seeded in mode.seen[0].tags
    assert torch.Tag.nondeterministic_seeded not in torch.ops.aten.add.Tensor.tags


def test_a_dispatch_mode_ends_with_an_error():
    class Fails(Mode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            raise OSError("mode")

    with pytest.raises(OSError, match="mode"), private.dispatching_here(Fails()):
        torch.rand(2)
    assert torch.rand(2).shape == (2,)


@pytest.mark.parametrize("here", [True, False])
def test_a_dispatch_mode_of_one_thread_is_no_flag_of_the_process(here):
    mode = Mode()
    with private.dispatching_here(mode) if here else mode:
        found = is_in_torch_dispatch_mode()
    assert found is not here  # the control: entered as usual it is one
    assert not is_in_torch_dispatch_mode()


def test_modes_of_two_threads_may_cross():
    first, second, meet = Mode(), Mode(), threading.Barrier(2)

    def work():
        with private.dispatching_here(second):
            meet.wait(20)  # entered last
            meet.wait(20)  # left last
            torch.ones(1)

    with private.dispatching_here(first):
        thread = threading.Thread(target=work)
        thread.start()
        meet.wait(20)
    meet.wait(20)
    thread.join(20)
    torch.ones(1)
    assert first.seen == []
    assert second.seen == [torch.ops.aten.ones.default]
    assert not is_in_torch_dispatch_mode()


def test_a_tensor_counts_its_writes():
    tensors = [torch.zeros(2), torch.zeros(2)]
    before = private.versions(tensors)
    tensors[1].add_(1)
    assert [later - earlier for earlier, later in zip(before, private.versions(tensors), strict=True)] == [0, 1]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_with_workers_that_persist_is_known(persistent):
    loader = DataLoader([1, 2], num_workers=1, persistent_workers=persistent)
    assert not private.has_workers(loader)
    list(loader)
    assert private.has_workers(loader) is persistent
    loader._iterator = None


def test_a_loader_keeps_its_samplers_where_its_iterators_read_them():
    loader = DataLoader([1, 2, 3], batch_size=2)
    assert {"sampler", "batch_sampler"} <= set(vars(loader))
    vars(loader)["batch_sampler"] = [[2], [0, 1]]
    assert [batch.tolist() for batch in loader] == [[3], [1, 2]]
    alone = DataLoader([1, 2, 3], batch_size=None)
    vars(alone)["sampler"] = [2, 0]
    assert list(alone) == [3, 1]
    assert hasattr(loaders._BaseDataLoaderIter, "__next__")
    assert "_get_iterator" not in vars(loader)
    assert inspect.isfunction(DataLoader._get_iterator)


def test_the_processes_of_workers():
    iterator = iter(DataLoader([1, 2, 3], num_workers=2))
    processes = private.worker_processes(iterator)
    assert len(processes) == 2
    assert all(process.is_alive() for process in processes)
    assert len({process.pid for process in processes} - {os.getpid()}) == 2
    assert private.worker_processes(iter(DataLoader([1]))) == []
    assert private.worker_processes(iter([1])) == []
    del iterator


def test_ending_the_processes_ends_what_a_fetch_waits_for(monkeypatch):
    # Else torch looks after its workers every five seconds.
    monkeypatch.setattr(loaders._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    iterator = iter(DataLoader([1, 2, 3], num_workers=1, worker_init_fn=_hang))

    def end():
        for process in private.worker_processes(iterator):
            process.terminate()
        next(iterator)

    with pytest.raises(RuntimeError, match="worker"):  # at once, or when the loader looks after its workers
        end()


def _hang(number):
    signal.pause()
