"""What a recorded step gave and left, and what of it no program could do.

A program returns tensors, fills and clears slots, and appends to lists: what else a step leaves behind is a hazard.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.state.attributes import own_attributes
from lightning_sink.engine.state.slot import ItemSlot, Slot
from lightning_sink.engine.state.slots import Snapshot, shape_of, storages
from lightning_sink.engine.step import Result, Step
from lightning_sink.engine.tracing.moved import Follower
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.tracing.recording import Recording

TENSOR = object()
"""Stands for a tensor among the values that a step returns."""

_ON_OTHERS = "a tensor that is no parameter of the module's or an optimizer's gets a gradient, or loses it"


@dataclass
class Observation:
    """One recorded step with what surrounded it.

    `cleared_first` are gradients that the step clears before they matter, `absent` those of them that were not there;
    `unread` are other places that it fills, with what might be asked of what was there, and of what it puts there;
    `followers` those that need not be filled, since they hold the memory of what it writes to.
    """

    recorder: Recorder
    recording: Recording
    leaves: list[Tensor]
    before: Snapshot
    filled: list[Slot]
    cleared: list[Slot]
    spec: Any
    constants: list[Any]
    num_outputs: int
    num_logged: int
    loss: int | None
    appends: Appends
    note: Any
    gradients: list[tuple[Slot, bool]]
    unread: list[tuple[Slot, Any, Any]]
    cleared_first: list[Slot]
    absent: list[Slot]
    followers: list[Follower]

    def clears(self, known: Collection[str]) -> None:
        """Has its program clear gradients by these names, which steps before this one had left nothing in."""
        others = [slot for slot in self.absent if slot.name in known]
        self.cleared += others
        self.absent = [slot for slot in self.absent if slot not in others]

    @property
    def way(self) -> Hashable:
        """What must be equal for two steps to have done the same: branches, and gradients that were there before."""
        branches = tuple((guard.name, guard.outcome) for guard in self.recording.guards)
        answers = tuple((question.name, question.value) for question in self.recording.questions)
        truths = tuple((assumed.where, assumed.outcome) for assumed in self.recording.assumed)
        gradients = tuple((slot.name, there) for slot, there in self.gradients)
        return branches, answers, truths, gradients, tuple(slot.name for slot in self.cleared_first)


def observe(recorder: Recorder, before: Snapshot, after: Snapshot, step: Step, result: Result) -> Observation:
    """Ends a recording: works out what the program has to return and which slots it fills."""
    leaves = step.leaves
    flat, spec = pytree.tree_flatten(result.output)
    tensors = [item for item in flat if isinstance(item, Tensor)]
    filled: list[tuple[Slot, Tensor]] = []
    cleared: list[Slot] = []
    followers: list[Follower] = []
    for name, slot in after.slots.items():
        if name not in before.slots:
            recorder.hazard(f"{name} appears")
        elif (tensor := after.tensors[name]) is not before.tensors[name]:
            if tensor is None:
                cleared.append(slot)
            elif follower := recorder.moved.follower(slot, tensor):
                followers.append(follower)
            else:
                filled.append((slot, tensor))
        elif before.pointers.get(name) != after.pointers.get(name) and not recorder.moved.has(tensor):
            recorder.hazard(f"the step replaces `.data` of {name} (`.data.copy_()` is compiled)")
    for name in before.slots:
        if name not in after.slots:
            recorder.hazard(f"{name} disappears")
    _look_at_containers(recorder, before, after)
    hidden = _check_gradients(recorder, after, leaves, filled)
    _check_aliases(recorder, filled)
    appends = Appends(recorder.taken)
    _check_collected(recorder, after, appends)
    placed = [(f"`{slot.name}`", tensor) for slot, tensor in filled]
    placed += [(f"`{name}`", tensor) for name, tensor in zip(appends.names, appends.tensors, strict=True)]
    _check_attributes(recorder, [*placed, *(("what it returns", tensor) for tensor in tensors)])
    recording = recorder.finish([*tensors, *result.logged, *appends.tensors, *(tensor for _, tensor in filled)])
    constants = [TENSOR if isinstance(item, Tensor) else item for item in flat]
    loss = next((index for index, tensor in enumerate(tensors) if tensor is result.loss), None)
    old = recorder.old_gradients
    slots = [slot for slot in before.slots.values() if slot.is_gradient]
    gradients = hidden + [
        (slot, before.tensors[slot.name] is not None)
        for slot in slots
        if slot.owner_id in old.asked
        or (slot.owner_id not in old.cleared and (slot.may_gather or old.asks_unseen or slot.owner_id in old.given))
    ]
    # A step clears a gradient that somebody put where there was none, and may ask for the shape of what it replaces: no
    # operation shows either.
    cleared_first = [slot for slot in slots if slot.owner_id in old.cleared]
    absent = [s for s in cleared_first if before.tensors[s.name] is after.tensors.get(s.name) is None]
    unread = [
        (slot, shape_of(before.tensors[slot.name]), shape_of(tensor)) for slot, tensor in filled if not slot.is_gradient
    ]
    return Observation(
        recorder=recorder,
        recording=recording,
        leaves=leaves,
        before=before,
        filled=[slot for slot, _ in filled],
        cleared=cleared,
        spec=spec,
        constants=constants,
        num_outputs=len(tensors),
        num_logged=len(result.logged),
        loss=loss,
        appends=appends,
        note=result.note,
        gradients=gradients,
        unread=unread,
        cleared_first=cleared_first,
        absent=absent,
        followers=followers,
    )


def _look_at_containers(recorder: Recorder, before: Snapshot, after: Snapshot) -> None:
    """Finds out which lists and dictionaries the step has made anew; a program does so for each place by itself."""
    places: dict[int, set[Hashable]] = {}
    for name, slot in after.slots.items():
        if isinstance(slot, ItemSlot):
            held = after.containers[name]
            pairs = zip(before.containers.get(name, ()), held, strict=False)
            slot.makes_anew = tuple(type(new) is not tuple and new is not old for old, new in pairs)
            for depth in (depth for depth, is_new in enumerate(slot.makes_anew) if is_new):
                where = (id(held[depth - 1]), slot.path[depth - 1]) if depth else (slot.owner_id, slot.key)
                places.setdefault(id(held[depth]), set()).add(where)
    if any(len(of_one) > 1 for of_one in places.values()):
        recorder.hazard("the step puts one new list or dictionary into two places")


def _check_gradients(
    recorder: Recorder, after: Snapshot, leaves: list[Tensor], filled: list[tuple[Slot, Tensor]]
) -> list[tuple[Slot, bool]]:
    """A program fills the gradients of parameters; another tensor's would stay what it is, or be lost.

    Returns places of such, which are empty behind the step, with whether there was a gradient before it.
    """
    for slot, kept in filled:
        if kept.requires_grad and (kept.is_leaf or kept.retains_grad):
            recorder.hazard(f"the step keeps a tensor that has a gradient of its own in `{slot.name}`")
    known = {id(tensor) for tensor in leaves} | {slot.owner_id for slot in after.slots.values() if slot.is_gradient}
    old, hidden = recorder.old_gradients, list[tuple[Tensor, bool]]()
    met = {*old.switched, *old.given, *old.asked}
    for tensor, where in zip(recorder.recording.inputs, recorder.recording.first_use, strict=True):
        key, gathers = id(tensor), tensor.requires_grad or id(tensor) in met
        if key in known or not tensor.is_leaf or not gathers:
            continue
        if tensor.grad is not None:
            recorder.hazard(_ON_OTHERS, where)
        elif key not in old.given and key not in old.found:
            hidden.append((tensor, False))
    others = [each for key, each in old.given.items() if key not in known and not recorder.made(each[0])]
    if any(tensor.grad is not before for tensor, before in others):
        recorder.hazard(_ON_OTHERS)
    hidden += [each for key, each in old.found.items() if key not in known and not recorder.made(each[0])]
    hidden += [(tensor, before is not None) for tensor, before in others if id(tensor) not in old.found]
    return [
        (Slot(f"a hidden tensor's gradient {i}", tensor, "grad"), there) for i, (tensor, there) in enumerate(hidden)
    ]


def _check_aliases(recorder: Recorder, filled: list[tuple[Slot, Tensor]]) -> None:
    """A program puts a copy where the step puts a view of what it writes to."""
    for (slot, _), pointer in zip(filled, storages(tensor for _, tensor in filled), strict=True):
        if pointer in recorder.recording.written:
            recorder.hazard(f"{slot.name} shares its memory with a tensor that the step writes to")
    for tensor, where in zip(recorder.recording.inputs, recorder.recording.first_use, strict=True):
        if recorder.moved.left(tensor):
            recorder.hazard("a tensor whose `.data` the step replaces shares its memory with another one", where)


def _check_collected(recorder: Recorder, after: Snapshot, appends: Appends) -> None:
    """A program appends copies: what is written to later would be seen through the tensor itself."""
    if appends.problem is not None:
        recorder.hazard(appends.problem)
    held = {place for place in storages(after.tensors.values()) if place is not None} | recorder.recording.written
    for name, place in zip(appends.names, storages(appends.tensors), strict=True):
        if place in held:
            recorder.hazard(f"the step appends to `{name}` what shares its memory with a tensor of the training's")


def _check_attributes(recorder: Recorder, placed: list[tuple[str, Tensor]]) -> None:
    """A program gives tensors on which nobody has put anything."""
    for place, tensor in placed:
        if own_attributes(tensor):
            recorder.hazard(f"the step puts a tensor with attributes of its own into {place}")
