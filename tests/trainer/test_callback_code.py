"""What the code of batch hooks tells."""

from functools import partial

import lightning as L
import pytest

from lightning_sink.trainer.callback_code import may_return


def of(hook):
    kind = type("Module", (L.LightningModule,), {"on_train_batch_start": hook})
    return kind()


def falls_off_its_end(self, batch, batch_idx):
    self.trainer.optimizers[0].param_groups[0]["lr"] = 0.1


def returns_none(self, batch, batch_idx):
    if batch_idx > 3:
        return
    self.seen = batch_idx


def has_a_function_that_returns(self, batch, batch_idx):
    def stop():
        return -1

    self.stop = stop


def ends_the_epoch(self, batch, batch_idx):
    if batch_idx > 3:
        return -1
    return None


def returns_what_another_one_says(self, batch, batch_idx):
    return self.check(batch_idx)


def returns_either(self, batch, batch_idx):
    return None if batch_idx else -1


def returns_by_and(self, batch, batch_idx):
    return self.check(batch_idx) and None


def returns_by_or(self, batch, batch_idx):
    return self.check(batch_idx) or None


@pytest.mark.parametrize("hook", [falls_off_its_end, returns_none, has_a_function_that_returns])
def test_hooks_that_return_nothing(hook):
    assert not may_return(of(hook), "on_train_batch_start")


@pytest.mark.parametrize(
    "hook", [ends_the_epoch, returns_what_another_one_says, returns_either, returns_by_and, returns_by_or]
)
def test_hooks_that_may_return_something(hook):
    assert may_return(of(hook), "on_train_batch_start")


def test_a_hook_without_code_may_return_anything():
    module = L.LightningModule()
    module.on_train_batch_start = partial(print)
    assert may_return(module, "on_train_batch_start")


def test_a_hook_of_the_object_itself_is_asked():
    module = of(falls_off_its_end)
    module.on_train_batch_start = lambda batch, batch_idx: -1
    assert may_return(module, "on_train_batch_start")
