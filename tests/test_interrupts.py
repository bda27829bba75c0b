"""What stops training from outside: signals, exceptions in the data and in the step, threads."""

import os
import signal
import threading
import traceback

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, TensorDataset

from lightning_sink import SinkStrategy
from lightning_sink.data.queue import BatchQueue
from parity import QUIET, Net, Rows, assert_parity, loader, train


class Tripped:
    """A loader that does something before it gives its `at`-th batch."""

    def __init__(self, inner, at, act):
        self.inner, self.at, self.act, self.given = inner, at, act, 0

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        for batch in self.inner:
            if self.given == self.at:
                self.act()
            self.given += 1
            yield batch


class Witness(L.Callback):
    def __init__(self):
        self.ends, self.exceptions, self.handlers, self.ended = [], [], [], 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.handlers.append(signal.getsignal(signal.SIGINT))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ends.append(batch_idx)

    def on_exception(self, trainer, pl_module, exception):
        self.exceptions.append(exception)

    def on_train_end(self, trainer, pl_module):
        self.ended += 1


def build(strategy, *callbacks, **options):
    witness, rows = Witness(), Rows()
    options = {**QUIET, "max_epochs": 2, "log_every_n_steps": 3, **options}
    trainer = L.Trainer(strategy=strategy, callbacks=[witness, *callbacks], logger=rows, **options)
    return trainer, witness, rows


def consistent(trainer):
    """Every batch that was begun was ended, and each made one optimizer step."""
    batches = trainer.fit_loop.epoch_loop.batch_progress.total
    assert batches.ready == batches.started == batches.processed == batches.completed
    assert trainer.global_step == batches.completed
    assert trainer.fit_loop.epoch_loop._batches_that_stepped in (batches.completed, batches.completed - 1)
    return batches.completed


ENGINES = [SinkStrategy, "eager", "traced"]


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("at", [0, 1, 7, 16])
def test_ctrl_c_ends_the_sink_before_the_batch_that_is_fetched(at, engine):
    before = signal.getsignal(signal.SIGINT)
    module = Net()
    trainer, witness, _ = build(SinkStrategy(engine=engine))
    with pytest.raises(SystemExit) as raised:
        trainer.fit(module, Tripped(loader(), at, interrupt))
    assert raised.value.code == 1
    assert trainer.interrupted
    assert isinstance(witness.exceptions[0], KeyboardInterrupt)
    assert consistent(trainer) == at
    assert witness.ends == ([at - 1] if at else [])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_after_ctrl_c_the_weights_are_those_of_that_many_steps(engine):
    module, reference = Net(), Net()
    reference.load_state_dict(module.state_dict())
    torch.manual_seed(2)
    trainer, _, rows = build(SinkStrategy(engine=engine))
    with pytest.raises(SystemExit):
        trainer.fit(module, Tripped(loader(), 10, interrupt))
    torch.manual_seed(2)
    plain, _, plain_rows = build("auto", max_steps=10)
    plain.fit(reference, loader())
    for (name, a), b in zip(reference.state_dict().items(), module.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name
    assert [step for step, _ in rows.rows] == [step for step, row in plain_rows.rows if "loss_forked_step" in row]


def test_ctrl_c_inside_a_step_lets_the_step_end():
    class Pressed(Net):
        def training_step(self, batch, batch_idx):
            if self.trainer.fit_loop.epoch_loop.batch_progress.total.ready == 6:
                interrupt()
            return super().training_step(batch, batch_idx)

    trainer, witness, _ = build(SinkStrategy(engine="eager"))
    with pytest.raises(SystemExit):
        trainer.fit(Pressed(), loader())
    assert consistent(trainer) == 6
    assert isinstance(witness.exceptions[0], KeyboardInterrupt)


def test_plain_lightning_reports_ctrl_c_in_the_same_way():
    trainer, witness, _ = build("auto")
    with pytest.raises(SystemExit) as raised:
        trainer.fit(Net(), Tripped(loader(), 7, interrupt))
    assert raised.value.code == 1
    assert trainer.interrupted
    assert isinstance(witness.exceptions[0], KeyboardInterrupt)
    assert trainer.global_step == 7


def test_a_second_ctrl_c_is_not_held_back():
    def twice():
        interrupt()
        interrupt()
        raise AssertionError("the second one had to stop this")

    trainer, witness, _ = build(SinkStrategy(engine="eager"))
    with pytest.raises(SystemExit):
        trainer.fit(Net(), Tripped(loader(), 5, twice))
    assert isinstance(witness.exceptions[0], KeyboardInterrupt)
    assert trainer.global_step == 5


def test_a_checkpoint_after_ctrl_c_resumes():
    trainer, witness, _ = build(SinkStrategy(engine="eager"))
    module = Net()
    with pytest.raises(SystemExit):
        trainer.fit(module, Tripped(loader(), 7, interrupt))
    trainer.save_checkpoint("stopped.ckpt")
    again = torch.load("stopped.ckpt", weights_only=False)
    assert again["global_step"] == 7
    assert again["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] == 7


@pytest.mark.parametrize("strategy", ["auto", "eager", "traced"])
def test_sigterm(strategy):
    sinks = strategy != "auto"
    trainer, witness, _ = build(SinkStrategy(engine=strategy) if sinks else "auto")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SIGTERMException):
        trainer.fit(Net(), Tripped(loader(), 7, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert isinstance(witness.exceptions[0], SIGTERMException)
    assert consistent(trainer) == 8
    assert witness.ends == ([7] if sinks else [*range(8)])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("strategy", ["auto", "eager", "traced"])
def test_an_exception_in_the_data_is_the_users(strategy):
    error = RuntimeError("item 7 is broken")

    def fail():
        raise error

    trainer, witness, rows = build("auto" if strategy == "auto" else SinkStrategy(engine=strategy))
    with pytest.raises(RuntimeError) as raised:
        trainer.fit(Net(), Tripped(loader(), 13, fail))
    assert raised.value is error
    assert witness.exceptions == [error]
    assert trainer.global_step == 13
    # No row that `log_every_n_steps` selected before is missing.
    assert [step for step, _ in rows.rows] == [2, 5, 8, 11]


@pytest.mark.parametrize("strategy", ["auto", "eager", "traced"])
def test_an_exception_in_the_step_is_the_users(strategy):
    class Broken(Net):
        def training_step(self, batch, batch_idx):
            if len(batch[0]) == 3:
                raise ZeroDivisionError("the last batch is too small")
            return super().training_step(batch, batch_idx)

    trainer, witness, rows = build("auto" if strategy == "auto" else SinkStrategy(engine=strategy))
    with pytest.raises(ZeroDivisionError, match="the last batch is too small"):
        trainer.fit(Broken(), loader())
    assert trainer.global_step == 16
    assert len(witness.exceptions) == 1
    assert [step for step, _ in rows.rows] == [2, 5, 8, 11, 14]
    assert "log" not in vars(trainer.lightning_module)


def test_an_exception_in_a_worker_is_the_users():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 40:
                raise LookupError("no such item")
            return super().__getitem__(index)

    data = DataLoader(Broken(torch.randn(80, 6), torch.zeros(80, dtype=torch.long)), batch_size=8, num_workers=1)
    trainer, _, _ = build(SinkStrategy(engine="eager"))
    with pytest.raises(LookupError, match="no such item") as raised:
        trainer.fit(Net(), data)
    traceback.clear_frames(raised.tb)  # they hold the loader's iterator, which is slow to end as part of a cycle
    assert trainer.global_step == 5


def test_a_checkpoint_on_an_exception():
    def fail():
        raise RuntimeError("broken")

    saved = []
    for strategy in ("auto", SinkStrategy(engine="traced")):
        folder = f"run{len(saved)}"
        callback = ModelCheckpoint(dirpath=folder, save_on_exception=True, save_top_k=0)
        torch.manual_seed(0)
        trainer, _, _ = build(strategy, callback, enable_checkpointing=True)
        module = Net()
        with pytest.raises(RuntimeError, match="broken"):
            trainer.fit(module, Tripped(loader(), 13, fail))
        (file,) = os.listdir(folder)
        saved.append(torch.load(os.path.join(folder, file), weights_only=False))
    plain, sink = saved
    assert plain["global_step"] == sink["global_step"] == 13
    assert plain["loops"] == sink["loops"]
    for name, tensor in plain["state_dict"].items():
        assert torch.allclose(tensor, sink["state_dict"][name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_training_from_another_thread(engine):
    runs, errors = {}, []
    before = signal.getsignal(signal.SIGINT)

    def work():
        try:
            torch.manual_seed(7)
            runs["thread"] = train(Net(), loader(), SinkStrategy(5, epoch="dataset", engine=engine), max_epochs=2)
        except BaseException as error:
            errors.append(error)

    torch.manual_seed(7)
    runs["plain"] = train(Net(), loader(), max_epochs=2)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert runs["thread"].engine == engine
    assert_parity(runs["plain"], runs["thread"], exact=engine == "eager")
    assert signal.getsignal(signal.SIGINT) is before


class Overlapping(Net):
    """Takes its first step while another training is in the midst of its own, and ends it before or behind that."""

    def __init__(self, began, waits_before, waits_within):
        super().__init__()
        self.began, self.waits_before, self.waits_within = began, waits_before, waits_within

    def training_step(self, batch, batch_idx):
        if self.global_step == 0:
            self.waits_before.wait(5)
            self.began.set()
            self.waits_within.wait(0.5)
        return super().training_step(batch, batch_idx) * (1 + self.global_step % 2)


def test_two_trainings_at_once_leave_lightnings_classes_as_they_were():
    names = ("global_step", "current_epoch", "is_last_batch")
    before = {name: vars(L.Trainer)[name] for name in names}
    began, ended, now = [threading.Event(), threading.Event()], threading.Event(), threading.Event()
    now.set()
    runs, errors = {}, []

    def work(which, make):
        try:
            strategy = SinkStrategy(5, epoch="dataset", engine="traced")
            runs[which] = train(make(), loader(), strategy, max_epochs=2, seed=7)
        except BaseException as error:
            errors.append(error)

    makes = [lambda: Overlapping(began[0], now, began[1]), lambda: Overlapping(began[1], began[0], ended)]
    threads = [threading.Thread(target=work, args=each) for each in enumerate(makes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {name: vars(L.Trainer)[name] for name in names} == before


def test_the_handler_is_the_users_between_sinks():
    trainer, witness, _ = build(SinkStrategy(5, epoch="dataset", engine="eager"))
    seen = []

    class Between(L.Callback):
        def on_validation_start(self, trainer, pl_module):
            seen.append(signal.getsignal(signal.SIGINT))

    trainer.callbacks.append(Between())
    own = signal.getsignal(signal.SIGINT)
    trainer.fit(Net(), loader(), loader(2))
    assert seen
    assert all(handler is own for handler in seen)
    assert all(handler is not own for handler in witness.handlers)


def test_control_a_handler_of_the_users_own_is_called():
    called = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    try:
        trainer, _, _ = build(SinkStrategy(engine="eager"))
        trainer.fit(Net(), Tripped(loader(), 7, interrupt))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert called == [signal.SIGINT]
    assert trainer.global_step >= 8


def test_a_training_while_an_error_is_handled_is_none_that_failed(monkeypatch):
    waited, original = [], BatchQueue.rest

    def rest(self, wait=True, ran=0.0):
        waited.append(wait)
        original(self, wait, ran)

    monkeypatch.setattr(BatchQueue, "rest", rest)
    try:
        raise MemoryError
    except MemoryError:
        train(Net(), loader(), SinkStrategy(engine="eager"), max_epochs=2)
    assert waited
    assert all(waited)
