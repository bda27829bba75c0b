"""What stays of a recorded step: its graph, and what must hold for the graph to stand for other steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from lightning_sink.engine.numbers.guards import Guard, Host
from lightning_sink.engine.state.ahead import Left
from lightning_sink.engine.state.slots import storages
from lightning_sink.engine.tracing.count import Add, Count
from lightning_sink.engine.tracing.questions import Question
from lightning_sink.engine.watch import Hazard, user_line

Paused = Callable[[], AbstractContextManager[None]]
"""For what is done in the midst of a step and is no part of it: operations in it are not recorded."""


@dataclass(frozen=True)
class Assumed:
    """A truth that Python took out of what a recorded step computed.

    Attributes:
        what: How Python came by it, for users.
        where: The user's line.
        outcome: How it came out.
        way_out: What has steps compiled that go other ways often.
    """

    what: str
    where: str
    outcome: bool
    way_out: str = Hazard.way_out


@dataclass
class Recording:
    """The graph of one step.

    Attributes:
        graph: Placeholders first, ATen operations, one flat tuple of outputs.
        inputs: The tensor behind each placeholder.
        first_use: Where the user's code first used each input.
        batch: Which inputs are the batch's own tensors.
        text: A canonical text of the graph; equal texts mean equal programs.
        hazards: Why the recording may not stand for other steps.
        frozen: Which numbers decided what Python did; the recording stands for steps in which its guards hold.
        guards: What they decided.
        questions: What was asked of the batch; the recording stands for batches that give the same answers.
        largest: Elements of the largest tensor that an operation gave.
        dtypes: Of the tensors that operations gave.
        written: Storages of inputs that the step writes to.
        moved: Tensors to which the step gives other memory; a program writes what that holds into what they have.
        written_first: The identities of those to which the step writes before that.
        grad_mode: Whether an operation gives something else where gradients are off.
        read: Inputs whose values Python looked at; a program takes them to stay as they are.
        asked: Inputs that questions take beside the batch; a program takes them to stay where they are.
        equal: Pairs of optimizer state of which the second was taken to be the first.
        parts_counts: Whether an optimizer's counts differ that were equal: in each recording after it they are apart.
        counts: Numbers in tensors by which guards decide.
        adds: What the step adds to each input of one number that it writes to; None where it does anything else to it.
        is_alone: Whether its program may not run twice in a row.
        carries: The attributes that the step sets and the generators that it draws from, with what gives the values.
        assumed: The truths that Python took out of what it computed; its program finds out by itself whether they hold.
        needs_own_batch: Whether the step leaves something on a batch that must be nobody else's.
        failed: Whether it failed, so that the step was run again.
        failed_by_raise: Whether by an error that code of the user's raised by itself.
        acts_twice: Whether not all that it had done by then was undone, as far as one can tell.
        is_no_example: Whether the step left out what others of its kind do, as where a scaler skips the optimizer, or
            will be seen otherwise.
    """

    graph: fx.Graph
    inputs: list[Tensor] = field(default_factory=list)
    first_use: list[str] = field(default_factory=list)
    batch: set[int] = field(default_factory=set)
    text: str = ""
    hazards: list[Hazard] = field(default_factory=list)
    frozen: list[Hazard] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    largest: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    moved: list[Tensor] = field(default_factory=list)
    written_first: set[int] = field(default_factory=set)
    grad_mode: bool = False
    read: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    equal: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    parts_counts: bool = False
    counts: list[Count] = field(default_factory=list)
    adds: dict[int, list[Add] | None] = field(default_factory=dict)
    is_alone: bool = False
    carries: list[tuple[Left, Host]] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)
    needs_own_batch: bool = False
    failed: bool = False
    failed_by_raise: bool = False
    acts_twice: bool = False
    is_no_example: bool = False

    def hazard(self, what: str, where: str | None = None, *, lasts: bool = False) -> None:
        """Notes once why it may not stand for other steps, with the user's line, and whether that is to last."""
        _note(self.hazards, what, where, lasts)

    def freeze(self, what: str, where: str | None = None) -> None:
        """Notes once which number decided what Python did, with the user's line."""
        _note(self.frozen, what, where)

    @property
    def looked_at(self) -> frozenset[int]:
        """The inputs by whose values Python decided something."""
        return frozenset([*self.read, *self.asked, *(count.input for count in self.counts)])

    @property
    def written_inputs(self) -> frozenset[int]:
        """The inputs that lie in storages that the step writes to."""
        return frozenset(number for number, place in enumerate(storages(self.inputs)) if place in self.written)


def _note(known: list[Hazard], what: str, where: str | None, lasts: bool = False) -> None:
    if not any(hazard.what == what for hazard in known):
        known.append(Hazard(what, user_line() if where is None else where, lasts=lasts))
