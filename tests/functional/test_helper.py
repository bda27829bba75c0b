"""A loop by hand over a `DatasetHelper` trains what `data_sink` and the Trainer train."""

import lightning as L
import pytest
import torch
from test_data_sink import Task, assert_same, by_hand, loader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_sink import (
    DatasetHelper,
    EmptyDatasetError,
    SinkStrategy,
    UnsupportedError,
    connect_network_with_dataset,
    data_sink,
)
from lightning_sink.engine.compiler.toolchain import missing_compiler
from parity import QUIET

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


class Module(L.LightningModule):
    """The task of `test_data_sink.py`, as a LightningModule."""

    def __init__(self):
        super().__init__()
        self.task = Task()
        self.model = self.task.model

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return self.task.optimizer


def by_trainer(engine):
    module, data = Module(), loader()
    torch.manual_seed(7)
    trainer = L.Trainer(max_epochs=3, strategy=SinkStrategy(20, engine=engine), logger=False, **QUIET)
    trainer.fit(module, data)
    return module.task


def by_data_sink(engine, sink_size):
    task, data = Task(), loader()
    torch.manual_seed(7)
    with data_sink(task.step, data, sink_size, engine=engine) as sink:
        for _ in range(60 // sink_size):
            sink()
    return task


def by_helper(engine):
    task, data = Task(), loader()
    torch.manual_seed(7)
    helper = DatasetHelper(data, sink_size=20, epoch_num=3)
    net = connect_network_with_dataset(task.step, helper, engine=engine)
    for _ in range(3):
        for inputs in helper:
            assert inputs == ()
            net(*inputs)
    helper.release()
    return task


@pytest.mark.narrow
@pytest.mark.parametrize("engine", ["eager", "traced", pytest.param("inductor", marks=missing)])
def test_every_way_in_trains_the_same(engine):
    plain = Task()
    by_hand(plain, loader(), 60)
    ways = [by_trainer(engine), by_helper(engine), *(by_data_sink(engine, size) for size in (1, 20, 60))]
    for way in ways:
        assert_same(plain, way, exact=engine == "eager")


def test_off_it_yields_the_batches():
    helper = DatasetHelper(list(loader()), dataset_sink_mode=False)
    for _ in range(2):
        assert [x.shape[0] for x, y in helper] == [8] * 6 + [4]
    assert helper.sink_size() == 1
    assert helper.get_send_info() == []
    assert repr(helper) == "<DatasetHelper: batches one by one>"
    with pytest.raises(UnsupportedError, match="in sink mode"):
        connect_network_with_dataset(print, helper)


def test_what_it_says_of_the_data():
    own = torch.Generator().manual_seed(5)
    helper = DatasetHelper(loader(generator=own), epoch_num=2)
    assert helper.sink_size() == 7
    before = torch.get_rng_state()
    assert helper.types_shapes() == ([torch.float32, torch.int64], [(8, 4), (8,)])
    assert helper.get_data_info() == helper.types_shapes()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(own.get_state(), torch.Generator().manual_seed(5).get_state())
    net = connect_network_with_dataset(Task().step, helper, engine="eager", verify=0)
    assert helper.get_send_info() == []
    for _ in range(2):
        for inputs in helper:
            net(*inputs)
            helper.stop_send()
            helper.continue_send()
    epochs = helper.get_send_info()
    assert [(info.epoch, info.batches) for info in epochs] == [(1, 7), (2, 7)]
    assert all(info.fetching >= 0 and info.waiting >= 0 for info in epochs)
    assert repr(helper).startswith("<DatasetHelper: sink_size=7, epoch 2 of 2, <DataSink of Task.step: sink_size=7")
    helper.release()


def test_what_is_asked_of_the_data_between_sinks_takes_no_batch_from_workers_that_persist():
    trained = []
    for asks in (False, True):
        task, rows = Task(), loader(num_workers=1, persistent_workers=True)
        helper = DatasetHelper(rows, sink_size=3, epoch_num=4)
        net = connect_network_with_dataset(task.step, helper, engine="eager")
        for _ in range(4):
            for inputs in helper:
                net(*inputs)
            if asks:
                helper.types_shapes()
        helper.release()
        trained.append(task)
    assert_same(*trained, exact=True)


class Unsized(IterableDataset):
    def __iter__(self):
        yield torch.zeros(4)


def test_wrong_use_is_refused():
    for wrong in ({"dataset_sink_mode": 1}, {"sink_size": 0}, {"sink_size": 1.5}, {"epoch_num": 0}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            DatasetHelper([1], **wrong)
    for data in (iter([1]), DataLoader(Unsized()), []):
        with pytest.raises(ValueError, match="takes data with a length.*`sink_size=n`"):
            DatasetHelper(data)
    helper = DatasetHelper([torch.zeros(3)], sink_size=2)
    with pytest.raises(UnsupportedError, match="connect_network_with_dataset"):
        next(iter(helper))
    net = connect_network_with_dataset(nn.Linear(3, 1), helper, engine="eager")
    with pytest.raises(UnsupportedError, match="another function"):
        connect_network_with_dataset(nn.Linear(3, 1), helper)
    for inputs in helper:
        net(*inputs)
    with pytest.raises(UnsupportedError, match="epoch_num=n"):
        next(iter(helper))
    helper.release()


def test_types_without_a_batch_to_look_at():
    with pytest.raises(UnsupportedError, match="iterator"):
        DatasetHelper(iter([1]), sink_size=3).types_shapes()
    with pytest.raises(EmptyDatasetError):
        DatasetHelper([], sink_size=3).types_shapes()
