"""The optimizers' options in a recorded step: stand-ins for what a program has, plain numbers for who sets them.

A program has one value of each option: the one that the optimizer steps with. The owner of a training, or code of the
user's that the owner runs by itself before a program, may change it in the step; what the step computes with on the
other side of such a change would be another value, and makes no program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch.optim import Optimizer

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.state.hyper import Hyperparameters


class RecordedOptions:
    """Lifts options, and puts them back while somebody changes them.

    With `set_in_step` the step computes with other options than it finds.

    Attributes:
        are_being_set: Whether code of the user's sets them, and gets plain numbers of everything.
    """

    def __init__(
        self, hyper: Hyperparameters, uses: Uses, paused: Callable[[], AbstractContextManager[None]], set_in_step: bool
    ) -> None:
        self._hyper, self._uses, self._paused = hyper, uses, paused
        self.are_being_set = False
        hyper.begin(spent=set_in_step)

    @contextmanager
    def changing(self, of: Optimizer) -> Iterator[None]:
        """The owner changes those of an optimizer."""
        with self._hyper.plain(self._uses, of), self._paused():
            yield

    @contextmanager
    def setting(self, last: bool) -> Iterator[None]:
        """Code of the user's sets them; operations in it are hazards.

        If it is the last, they are then what the step computes with.
        """
        self.are_being_set = True
        try:
            with self._hyper.plain(self._uses):
                yield
                if last:
                    self._take()
        finally:
            self.are_being_set = False

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The step computes with them, in the midst of `setting`."""
        self.are_being_set = False
        self._take()
        try:
            with self._hyper.lifted(self._uses):
                yield
        finally:
            self._hyper.spend()
            self.are_being_set = True

    def _take(self) -> None:
        with self._paused():
            self._hyper.take()
