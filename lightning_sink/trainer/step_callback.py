"""The callback that takes part in the step."""

from __future__ import annotations

from lightning.pytorch import Callback


class StepCallback(Callback):
    """A callback that belongs to the step: in a sink, too, its batch hooks are called for every batch.

    `on_train_batch_start` and `on_train_batch_end` of a subclass are recorded with the training step and become part of
    its program, like the LightningModule's hooks of the same names, which they come right before. What the program
    cannot repeat makes the step run eagerly, with a warning that names the line; tensors kept in attributes, and
    modules, are part of the training's state. Under plain Lightning it is a `Callback` like any other.
    """
