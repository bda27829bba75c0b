"""A strategy for one device and one Trainer after another: what each of them asked for, and nothing of the last one's.

A Trainer of Lightning 2.6 takes what it finds in the `_accelerator`, `_precision_plugin` and `_checkpoint_io` of a
strategy for the user's choice (`_AcceleratorConnector`): a second one of the same strategy would refuse its
`accelerator`, and not heed its `precision`. So these stay empty here. `_WrappingCheckpointIO` is private, too: one that
the user gives is to wrap what writes checkpoints, as Lightning's own strategies have it.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins import CheckpointIO, Precision, TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_sink.data.cuda import STREAMS
from lightning_sink.errors import UnsupportedError


class OneDevice(SingleDeviceStrategy):
    """Trains on the one device that the present Trainer was asked for."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._trainers_accelerator: Any = None
        self._trainers_precision: Precision | None = None
        self._trainers_checkpoint_io: CheckpointIO | None = None

    @property
    def accelerator(self) -> Any:
        """What the present Trainer trains on."""
        return self._trainers_accelerator

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        self._trainers_accelerator, self._trainers_checkpoint_io = accelerator, None  # the first that a Trainer sets

    @property
    def precision_plugin(self) -> Precision:
        """The present Trainer's."""
        return self._trainers_precision or Precision()

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Precision | None) -> None:
        self._trainers_precision = precision_plugin

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """What writes and reads the present Trainer's checkpoints."""
        if self._trainers_checkpoint_io is None:
            self._trainers_checkpoint_io = TorchCheckpointIO()
        elif isinstance(self._trainers_checkpoint_io, _WrappingCheckpointIO):
            self._trainers_checkpoint_io.checkpoint_io = TorchCheckpointIO()
        return self._trainers_checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._trainers_checkpoint_io = io

    @property
    def parallel_devices(self) -> list[torch.device]:
        """None of the strategy's own, so that each Trainer it serves tells it those that were asked for."""
        return []

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if not devices:
            return
        device = devices[0]  # a number where Lightning has XLA's
        if not isinstance(device, torch.device) or device.type not in ("cpu", *STREAMS):
            raise UnsupportedError(
                f"`SinkStrategy` trains on a CPU or a CUDA GPU; got `{type(self.accelerator).__name__}`. Pass"
                ' `Trainer(accelerator="cpu", ...)`, or leave the strategy out to train on this device without sinks.'
            )
        if len(devices) > 1:
            raise UnsupportedError(
                f"`SinkStrategy` trains on one device so far; got {len(devices)}. Pass `Trainer(devices=1, ...)`."
            )
        self._root_device = device

    @property
    def num_nodes(self) -> int:
        """One machine; the Trainer says here how many it was asked for."""
        return 1

    @num_nodes.setter
    def num_nodes(self, nodes: int) -> None:
        if nodes > 1:
            raise UnsupportedError(
                f"`SinkStrategy` trains on one node so far; got {nodes}. Pass `Trainer(num_nodes=1, ...)`."
            )
