"""The contract between an engine and whoever owns the training.

The owner hands an engine a `Sink`: the steps of one visit to the host, one after another. For each step the engine
either asks the owner to run it the plain way, or runs a program in its place and tells the owner so. The owner keeps
every counter, schedule, log and callback; an engine touches tensors only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from lightning_sink.engine.passages import Passages
from lightning_sink.engine.watch import Hazard

Column = Tensor | list[Tensor]
"""Tensors of one shape and type, one for each of some steps in a row, or all side by side: `[steps, ...]`."""


def taken_apart(column: Column) -> list[Tensor]:
    """Returns each step's tensor."""
    return [*column.unbind()] if isinstance(column, Tensor) else column


def in_order(values: Sequence[Tensor], turns: int) -> Tensor:
    """Returns what steps gave in their order, `[steps, ...]`, of what those of each of so many turns gave."""
    found = values[0].new_empty((sum(map(len, values)), *values[0].shape[1:]))
    for turn, own in enumerate(values):
        found[turn::turns] = own
    return found


Key = tuple[Hashable, Hashable]
"""The kind and the signature of a step."""


@dataclass
class Step:
    """One step that is about to run.

    Attributes:
        batch: What the user's step is called with.
        leaves: The batch's tensors in a fixed order.
        signature: Equal for batches that the same program serves; it says where one tensor is twice.
        kind: What the owner will do in this step besides calling the user's code (clear gradients, step the
            optimizer); equal for steps that the same program serves.
        is_met: Whether somebody is to meet it in its midst, so that no program can run it.
    """

    batch: Any
    leaves: list[Tensor]
    signature: Hashable
    kind: Hashable
    is_met: bool = False

    @property
    def key(self) -> Key:
        """What steps have in common that the same programs may serve."""
        return self.kind, self.signature


@dataclass
class Result:
    """What a step gave.

    Attributes:
        output: Any nested structure of tensors and other values.
        logged: The tensors that the step logged, in the order of the calls.
        note: What the owner wants back when a program runs such a step; equal for steps that log the same names.
        loss: The tensor of the output that is the loss, if one is.
    """

    output: Any
    logged: list[Tensor]
    note: Any = None
    loss: Tensor | None = None


class Batches(Protocol):
    """The batches of steps that come next, all of one signature."""

    def __len__(self) -> int: ...

    def columns(self) -> list[Column]:
        """Returns, for each leaf, that of each batch."""


class Tape:
    """Watches the part of a step that is the user's; as it stands here, it watches nothing.

    The owner runs that part through `span`, once or several times a step, and leaves its own bookkeeping outside.
    """

    records = False
    """Whether the step is recorded, so that a part of it may have to be run again, and numbers may be stand-ins."""

    def span(self, body: Callable[[], Any], rewind: Callable[[], None]) -> Any:
        """Runs `body` and returns what it returns; may call `rewind` and run it again."""
        return body()

    def gets(self, batch: Any, yielded: Any) -> None:
        """Takes note of the batch as the user's code gets it, and of what the loader has yielded for it."""

    def watched(self, name: str, value: int) -> Any:
        """Returns a stand-in for a number of the owner's that changes with every step.

        To be asked for inside the span: the second run of a body gets the number itself.
        """
        return value

    def decided(self, what: str, of: object, outcome: bool, decide: Callable[[], bool]) -> None:
        """Takes note of a question of the owner's on whose answer depends what the step does.

        Args:
            what: The question, as users know it: "`is_last_batch`".
            of: Of which object it is asked.
            outcome: The answer in this step.
            decide: Gives the answer for a step that is about to run.
        """

    def goes_to(self, holder: Any, method: str) -> None:
        """Takes note of a method of an object to which a number of a tensor may go as a stand-in (`loss.item()`).

        It shows the number to nobody, and for a step that a program runs the owner does the same with the tensor.
        """

    def puts_out(self, function: Callable[..., Any]) -> None:
        """Takes note of a function to whose caller, the owner, a number of a tensor may go as a stand-in.

        The owner has the span return it, in what the step puts out, and does nothing else with it.
        """

    def hazard(self, what: str) -> None:
        """Takes note of something that no program may repeat."""

    def is_no_example(self) -> None:
        """Takes note that the step did less than others of its kind; what is seen of it counts for none of them."""

    def paused(self) -> AbstractContextManager[None]:
        """For what the owner does in the middle of a span and does by itself for a step that a program runs."""
        return nullcontext()

    def changing_options(self, of: Optimizer) -> AbstractContextManager[None]:
        """For a change of an optimizer's options that the owner makes by itself behind a step that a program runs."""
        return nullcontext()

    def options_may_be_others(self) -> None:
        """Takes note that a schedule may have stepped since the last part of the step."""

    def apart(self, what: str, given: Sequence[Tensor]) -> AbstractContextManager[None]:
        """For what the owner does after the step where a program runs it: paused, and checked to be the same there.

        Args:
            what: What it is, for the user: "`Accuracy.update()`".
            given: Tensors that it gets from the step; nothing else of the step may go into it.
        """
        return nullcontext()

    def foreign(self, tensors: Iterable[Tensor], what: str, used: Callable[[], None] = lambda: None) -> None:
        """Takes note of tensors that no program has; a step that computes with one makes none, and that is told."""


class Sink(ABC):
    """The steps between two visits to the host, as an engine sees them.

    Attributes:
        passages: Steps that were gone through and are not accounted for.
    """

    eager_reason: Hazard | None = None
    """Why every step of this sink has to run the plain way; None where an engine may choose."""

    disturbed: bool = False
    """Whether code of the user's runs between its steps, which may change what programs take for granted."""

    ran_seconds: float = 0.0
    """Time in which steps ran in a row, counted by the engine: the owner may have fetched batches meanwhile."""

    def __init__(self) -> None:
        self.passages = Passages()

    @property
    def owns_batch(self) -> bool:
        """Whether the present batch's tensors are known to be nobody else's, so that none of them comes again."""
        return False

    @property
    def shows_batch(self) -> bool:
        """Whether code of the user's that is no part of a step looks at the last batch behind the sink."""
        return False

    @abstractmethod
    def steps(self) -> Iterator[Step]:
        """Yields each step when it is about to run; ends with the sink."""

    @abstractmethod
    def place(self) -> str:
        """Names the step that was yielded last, for an error in it: "batch 3 of epoch 0"."""

    @abstractmethod
    def values(self, step: Step) -> dict[str, Hashable]:
        """Returns what a step's batch holds besides tensors, by the place as users write it: "batch['name'][0]"."""

    @abstractmethod
    def run(self, step: Step, tape: Tape) -> Result:
        """Runs a step the plain way, with all that belongs to it."""

    @abstractmethod
    def account(
        self, step: Step, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Any
    ) -> None:
        """Does the owner's part of a step that a program ran.

        Args:
            step: The step.
            result: Makes the step's full result; called only where somebody looks at it.
            loss: The step's loss; None where it gives none.
            logged: The tensors that the step logged.
            note: The note of the step that was recorded.
        """

    def begun(self, step: Step) -> None:  # noqa: B027  # owners that count no more than what has ended need none
        """Takes note that a program has begun a step and fails in it; the error is raised behind this."""

    def turns(self) -> int:
        """Returns how many of the last steps will be repeated, in turns, by those behind the present one.

        One where steps do not differ by what the owner does; 0 for more in the middle of which the present step is.
        """
        return 1

    def note_of_turns(
        self, kinds: Sequence[Hashable], notes: Sequence[Any], layouts: Sequence[Sequence[Hashable]]
    ) -> Any | None:
        """Returns a note for steps that take turns; None where they cannot be run in a row.

        Args:
            kinds: The kinds of the last steps: as many as `turns` says, or that came again in this order.
            notes: Their notes.
            layouts: Shapes and types of the values that each of them logs.
        """
        return None

    def schedules(self, note: Any) -> bool:
        """Tells whether the owner changes the optimizers' options between steps with such a note."""
        return False

    def sets_any(self, names: Collection[str], note: Any) -> bool:
        """Tells whether the optimizers' options of any of these names may be set beside steps with such a note."""
        return False

    def ahead(self, step: Step, note: Any, most: int, behind: int = 0) -> Batches | None:
        """Returns the batches of steps that come next and need nothing but what a program does; None for no such steps.

        They stay the owner's: those that the engine does not account for, it is given again.

        Args:
            step: The step that a program has just run; the ones that come next are of its kind and signature.
            note: Its note; theirs will be equal. Of steps that take turns, that of `note_of_turns`: they are of the
                kinds that these have, in turns, all of the present one's signature, and whole rounds.
            most: How many at most.
            behind: How many were given before and are being run: these come behind them.
        """
        return None

    def passing(self, steps: int, note: Any, seen: Callable[[], None]) -> Generator[None, None, None]:
        """Goes through steps that `ahead` returned, before they are run: counts them and changes the options.

        Yields for each when the counters and the options are what it is to be run with. One that it is closed at is not
        run. To be gone through where a program takes any of these as an input, or the owner `schedules`.

        Args:
            steps: How many.
            note: Their note.
            seen: Called for each when the options are what it computes with, before it yields.
        """
        raise NotImplementedError

    def pass_again(self, steps: int, note: Any) -> None:
        """Takes back that steps were gone through, if any were: all that are not accounted for, but the first ones."""
        for _ in self.passing(self.passages.take_back(steps), note, lambda: None):
            pass

    def account_chunk(
        self, steps: int, result: Callable[[], Result], loss: Tensor | None, logged: list[Tensor], note: Any
    ) -> None:
        """Does the owner's part of steps that a program ran in a row.

        Args:
            steps: How many: on the first of the batches that `ahead` returned, and gone through, if any were.
            result: Makes the last one's full result.
            loss: Their losses, of shape `[steps]`; None where they give none.
            logged: The values that they logged, of the same shape each. Of steps that take turns, those of each turn
                that was reached, one behind the other.
            note: The note of the step that was recorded.
        """
        raise NotImplementedError


class Engine(ABC):
    """Runs the steps of sinks."""

    name: str

    @abstractmethod
    def run(self, sink: Sink) -> None:
        """Runs all steps of a sink."""

    @property
    def active(self) -> str:
        """What the steps really run on."""
        return self.name

    def shows_options(self) -> AbstractContextManager[None]:
        """Lets the optimizers' options be what they are without this engine, for who saves them in a step."""
        return nullcontext()

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything that the engine holds."""
