"""The steps of one call of `data_sink`'s function, as an engine sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Sequence
from types import FunctionType
from typing import Any

from torch import Tensor

from lightning_sink.data.batch import flatten, values_in
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.run import Part
from lightning_sink.data.traversals import Traversals
from lightning_sink.engine.interrupt import DeferredInterrupt
from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.schedulers import keep_schedulers, may_set, only_computes, options_set_by
from lightning_sink.engine.step import Result, Sink, Step, Tape
from lightning_sink.functional.batches import Signature, as_arguments
from lightning_sink.functional.outputs import Outputs, values_of
from lightning_sink.functional.state import State


class FunctionSink(Sink):
    """The next `length` steps of a function; the sink ends early on Ctrl-C.

    Args:
        schedulers: Schedulers that are stepped behind each step.
        signature: What each batch must look like; None where it may be anything.
        may_change: Whether a fetch may change what the step takes for granted.

    Attributes:
        outputs: What each step returned.
        done: Steps that were run.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        queue: BatchQueue,
        length: int,
        state: State,
        schedulers: Sequence[Any],
        signature: Signature | None,
        interrupt: DeferredInterrupt,
        may_change: bool,
    ) -> None:
        super().__init__()
        self.outputs = Outputs()
        self.done = 0
        self.disturbed = may_change or not all(map(only_computes, schedulers))
        self._function, self._queue, self._length, self._state = function, queue, length, state
        self._schedulers, self._signature, self._interrupt = schedulers, signature, interrupt
        self._place = ""
        self._result: Callable[[], Result] = lambda: Result(None, [])

    @property
    def output(self) -> Any:
        """What the last step returned."""
        return self._result().output

    @property
    def owns_batch(self) -> bool:
        """Whether the queue has made the batch, or torch's own code has for it."""
        return self._queue.gives_own

    # -- the steps --------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Yields each step when its batch is there."""
        while self.done < self._length and not self._interrupt.requested:
            arguments = as_arguments(self._next())
            if self._signature is not None:
                self._signature.check(arguments, self._place)
            leaves, signature = flatten(arguments)
            yield Step(arguments, leaves, signature, "step")

    def _next(self) -> Any:
        """Fetches a batch; Ctrl-C takes effect here at once."""
        self._interrupt.held = False
        try:
            if not self._queue.ready:
                self._interrupt.raise_for_children()
            batch, place = self._queue.take()
            self._place = Traversals.name(place)
        finally:
            self._interrupt.held = True
        return batch

    def place(self) -> str:
        """Names the present batch."""
        return self._place

    def values(self, step: Step) -> dict[str, Hashable]:
        """Returns what a step's batch holds besides tensors."""
        return dict(values_in(step.batch[0] if len(step.batch) == 1 else step.batch))

    def run(self, step: Step, tape: Tape) -> Result:
        """Calls the function."""
        tape.gets(step.batch, step.batch)
        tape.puts_out(self._function)
        output = tape.span(lambda: _detached(self._function(*step.batch)), lambda: None)
        loss, named = values_of(output)
        result = Result(output, list(named.values()), note=tuple(named), loss=loss)
        self.account(step, lambda: result, loss, result.logged, result.note)
        return result

    def account(
        self, step: Step, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Any
    ) -> None:
        """Takes note of a step."""
        # The step may have returned tensors that the next one writes to.
        values = [value.clone() for value in logged]
        self.outputs.add(None if loss is None else loss.clone(), zip(note, values, strict=True))
        self.done += 1
        self._result = result
        self._step_schedulers()

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()

    def schedules(self, note: Any) -> bool:
        """Tells whether there are schedulers."""
        return bool(self._schedulers)

    def sets_any(self, names: Collection[str], note: Any) -> bool:
        """Tells whether a scheduler may set options of these names."""
        return bool(names) and may_set(names, self._schedulers)

    # -- steps in a row ----------------------------------------------------------------------------------------------

    def ahead(self, step: Step, note: Any, most: int, behind: int = 0) -> Part | None:
        """Returns the next steps' batches, as far as they look like this one's."""
        room = self._length - self.done - behind
        if self.disturbed or self._interrupt.requested or room < 1:
            return None
        self._interrupt.held = False
        try:
            batches = self._queue.look_ahead(min(most, room), behind)
        finally:
            self._interrupt.held = True
        is_alike = batches is not None and flatten(as_arguments(batches.batch(0)))[1] == step.signature
        return batches if is_alike else None

    def passing(self, steps: int, note: Any, seen: Callable[[], None]) -> Generator[None, None, None]:
        """Steps the schedulers behind each of some steps, before these are run."""
        restore = keep_schedulers(self._schedulers, self._state.optimizers, options_set_by(self._schedulers))
        return self.passages.go(steps, restore, self._step_schedulers, begin=seen)

    def account_chunk(
        self, steps: int, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Any
    ) -> None:
        """Takes note of steps that a program ran in a row."""
        _, places = self._queue.skip(steps)
        self._place = Traversals.name(places[-1])
        self.passages.end()  # where there are schedulers, all of the steps were gone through
        self.outputs.add(loss, zip(note, logged, strict=True), steps)
        self.done += steps
        self._result = result


def _detached(output: Any) -> Any:
    """Returns a step's output with its tensors detached.

    A container of a class that trees do not know becomes a plain one; so does one with a function of the step's own.
    """
    return pytree.tree_map(_leaf_detached, output, is_leaf=_has_a_function)


def _has_a_function(output: Any) -> bool:
    return type(output) is defaultdict and isinstance(output.default_factory, FunctionType)


def _leaf_detached(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    kind = next((kind for kind in (dict, list, tuple) if isinstance(leaf, kind)), None)
    return leaf if kind is None else _detached(kind(leaf))
