import signal
from datetime import timedelta

import lightning as L
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from gallery.case import Small
from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.trainer.counters import Counters
from lightning_sink.trainer.ends import Ends
from parity import QUIET


class ByHand(Small):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


def ends(module, interrupt=None, **options):
    trainer = L.Trainer(logger=False, **{**QUIET, "enable_checkpointing": "callbacks" in options, **options})
    trainer.strategy.connect(module)
    counters = Counters(trainer.fit_loop.epoch_loop)
    return Ends(trainer, counters, interrupt or DeferredInterrupt()), trainer, counters


def test_a_training_that_nothing_awaits_goes_on():
    found, _, _ = ends(Small())
    assert not found.is_asked_for
    assert not found.is_due(1)
    assert not found.may_be_due()
    assert found.rounds_before([1], 0) == float("inf")


def test_who_stops_the_training_asks_for_the_host():
    found, trainer, _ = ends(Small())
    trainer.should_stop = True
    assert found.is_asked_for


def test_a_signal_asks_for_the_host():
    asked = []

    def press():
        with DeferredInterrupt() as interrupt:
            found, _, _ = ends(Small(), interrupt)
            asked.append(found.is_asked_for)
            signal.raise_signal(signal.SIGINT)
            asked.append(found.is_asked_for)

    with pytest.raises(KeyboardInterrupt):
        press()
    assert asked == [False, True]


def test_a_trigger_by_the_clock_asks_for_the_host():
    found, _, _ = ends(Small(), callbacks=[ModelCheckpoint(train_time_interval=timedelta(0))])
    assert found.is_asked_for


@pytest.mark.parametrize("options", [{"max_steps": 6}, {"callbacks": [ModelCheckpoint(every_n_train_steps=6)]}])
def test_steps_by_hand_are_awaited(options):
    found, _, counters = ends(ByHand(), **options)
    counters.passed(4, 0, 4)
    assert found.rounds_before([1], 0) == 1
    assert found.rounds_before([1], 1) == 0
    assert not found.may_be_due()  # batches made one step each
    found.learn(2)
    assert found.may_be_due()
    counters.trained(0, 2)
    assert found.is_due(2)
