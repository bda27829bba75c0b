"""What a recorded step gave and left, and what of it no program could do.

A program returns tensors, fills and clears slots, and appends to lists: what else a step leaves behind is a hazard.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from torch import Tensor

from lightning_sink.engine.numbers.given import Gives, tensors_of
from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.state.attributes import own_attributes
from lightning_sink.engine.state.slot import ItemSlot, Slot
from lightning_sink.engine.state.slots import Snapshot, shape_of, storages
from lightning_sink.engine.step import Result, Step
from lightning_sink.engine.tracing.moved import Follower
from lightning_sink.engine.tracing.record import Recorder

_ON_OTHERS = "a tensor that is no parameter of the module's or an optimizer's gets a gradient, or loses it"


class Observation:
    """One recorded step with what surrounded it; ends the recording.

    Attributes:
        filled: Slots in which its program has to put what it gives.
        cleared: Those that it clears.
        cleared_first: Gradients that the step clears before they matter.
        absent: Those of them that were not there.
        unread: Places that it fills, but for gradients, with what might be asked of what was there, and of what it puts
            there.
        followers: Those that need not be filled, since they hold the memory of what it writes to.
        gradients: Slots of gradients by which the step may decide, each with whether there was one.
        spec: How what it returns is put together, with `constants` in it, and `Gives` for what the step computes.
    """

    def __init__(self, recorder: Recorder, before: Snapshot, after: Snapshot, step: Step, result: Result) -> None:
        self.recorder, self.before, self.leaves, self.note = recorder, before, step.leaves, result.note
        flat, self.spec = pytree.tree_flatten(recorder.put_out.given(result.output))
        self.constants = [Gives.of(item) for item in flat]
        tensors = tensors_of(flat)
        self.num_outputs, self.num_logged = len(tensors), len(result.logged)
        self.loss = next((index for index, tensor in enumerate(tensors) if tensor is result.loss), None)
        self.cleared: list[Slot] = []
        self.followers: list[Follower] = []
        filled = self._filled(after)
        _look_at_containers(recorder, before, after)
        hidden = _check_gradients(recorder, after, step.leaves, filled)
        _check_aliases(recorder, filled)
        self.appends = Appends(recorder.taken)
        _check_collected(recorder, after, self.appends)
        placed = [(f"`{slot.name}`", tensor) for slot, tensor in filled]
        placed += [(f"`{name}`", tensor) for name, tensor in zip(self.appends.names, self.appends.tensors, strict=True)]
        _check_attributes(recorder, [*placed, *(("what it returns", tensor) for tensor in tensors)])
        given = [*tensors, *result.logged, *self.appends.tensors, *(tensor for _, tensor in filled)]
        self.recording = recorder.finish(given)
        self.filled = [slot for slot, _ in filled]
        old = recorder.old_gradients
        slots = [slot for slot in before.slots.values() if slot.is_gradient]
        self.gradients = hidden + [
            (slot, before.tensors[slot.name] is not None)
            for slot in slots
            if slot.owner_id in old.asked
            or (slot.owner_id not in old.cleared and (slot.may_gather or old.asks_unseen or slot.owner_id in old.given))
        ]
        # A step clears a gradient that somebody put where there was none, and may ask for the shape of what it
        # replaces: no operation shows either.
        self.cleared_first = [slot for slot in slots if slot.owner_id in old.cleared]
        self.absent = [s for s in self.cleared_first if before.tensors[s.name] is after.tensors.get(s.name) is None]
        self.unread = [
            (slot, shape_of(before.tensors[slot.name]), shape_of(tensor))
            for slot, tensor in filled
            if not slot.is_gradient
        ]

    def _filled(self, after: Snapshot) -> list[tuple[Slot, Tensor]]:
        """Compares the slots; returns those that hold other tensors behind the step, with these."""
        recorder, before = self.recorder, self.before
        filled: list[tuple[Slot, Tensor]] = []
        for name, slot in after.slots.items():
            if name not in before.slots:
                recorder.hazard(f"{name} appears")
            elif (tensor := after.tensors[name]) is not before.tensors[name]:
                if tensor is None:
                    self.cleared.append(slot)
                elif follower := recorder.moved.follower(slot, tensor):
                    self.followers.append(follower)
                else:
                    filled.append((slot, tensor))
            elif before.pointers.get(name) != after.pointers.get(name) and not recorder.moved.has(tensor):
                recorder.hazard(f"the step replaces `.data` of {name} (`.data.copy_()` is compiled)")
        for name in before.slots:
            if name not in after.slots:
                recorder.hazard(f"{name} disappears")
        return filled

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
