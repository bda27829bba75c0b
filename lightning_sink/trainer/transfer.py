"""From what the loader yields to what the step sees: precision, the user's transfer hooks, the device.

`Transfer` knows how; `PresentBatch` owns the batch of the step that runs, and does it once.

Private names of Lightning (2.6): `LightningModule._on_before_batch_transfer` and
`_DataConnector._datahook_selector`, which decide between hooks of module and datamodule;
`_LoggerConnector.on_batch_start`, which takes the batch's size from the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer import call
from torch import Tensor

_NOTHING = object()

HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class PresentBatch:
    """The batch of the present step; the transfer makes what the user's hooks see of what the loader yields.

    Attributes:
        yielded: What the loader has yielded.
    """

    def __init__(self, trainer: Any, transfer: Transfer) -> None:
        self._connector = trainer._logger_connector
        self._transfer = transfer
        self.yielded: Any = None
        self._batch: Any = None
        self._announced = False

    def take(self, raw: Any) -> None:
        """The loader has yielded another batch."""
        self.yielded, self._batch, self._announced = raw, _NOTHING, False

    def get(self) -> Any:
        """Returns the batch as the user's hooks see it, transferred once."""
        if self._batch is _NOTHING:
            self._batch = self._transfer(self.yielded)
        return self._batch

    def announce(self) -> None:
        """Shows the batch to Lightning's logging, which looks at it when something is logged."""
        if not self._announced:
            self._announced = True
            self._connector.on_batch_start(self.get())


class Transfer:
    """Transfers batches as plain Lightning does, and knows when that changes nothing.

    With `done`, batches come here transferred already.
    """

    def __init__(self, trainer: Trainer, done: bool = False) -> None:
        self._trainer = trainer
        self._done = done
        self._device = trainer.strategy.root_device
        selector: Any = trainer._data_connector._datahook_selector
        self._selector = selector
        strategy = trainer.strategy
        moves = type(strategy).batch_to_device is Strategy.batch_to_device and "batch_to_device" not in vars(strategy)
        converts = type(trainer.precision_plugin).convert_input is Precision.convert_input
        self._plain = (moves and converts) and all(
            getattr(type(selector.get_instance(hook)), hook) is getattr(LightningModule, hook)
            and hook not in vars(selector.get_instance(hook))
            for hook in HOOKS
        )

    @property
    def is_plain(self) -> bool:
        """Whether none of the user's hooks run when a batch is transferred here."""
        return self._done or self._plain

    def __call__(self, batch: Any) -> Any:
        """Returns the batch on the device, through the user's hooks."""
        if self._done:
            return batch
        trainer = self._trainer
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

    def ahead(self, batch: Any) -> Any:
        """Returns the batch on the device, from another thread than the trainer's.

        The hooks are called directly: Lightning would note on the module which hook is running, and the step that runs
        beside it would read that.
        """
        trainer: Any = self._trainer
        hook = {name: getattr(self._selector.get_instance(name), name) for name in HOOKS}
        batch = hook["on_before_batch_transfer"](trainer.precision_plugin.convert_input(batch), 0)
        batch = hook["transfer_batch_to_device"](batch, self._device, 0)
        return hook["on_after_batch_transfer"](batch, 0)

    def is_identity(self, batch: Any) -> bool:
        """Tells whether the transfer would give back the same tensors in the same structure.

        Only structures that are read without running anybody's code are looked into; a program needs nothing but
        their tensors.
        """
        return self._done or (self._plain and self._is_here(batch))

    def _is_here(self, item: Any) -> bool:
        kind = type(item)
        if kind is Tensor:
            return bool(item.device == self._device)
        if kind in (tuple, list) or _is_named_tuple(kind):
            return all(map(self._is_here, item))
        if kind in (dict, OrderedDict):
            return all(map(self._is_here, item.values()))
        return item is None or kind in (int, float, bool, str)


def _is_named_tuple(kind: type[Any]) -> bool:
    """Tells whether this is a named tuple, and no more."""
    return kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not hasattr(kind, "to")
