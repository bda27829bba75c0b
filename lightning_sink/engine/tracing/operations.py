"""The operations of a step that is being recorded: what a dispatch mode below autograd sees, and writes down.

`Operations` owns the graph while it grows, and with it what is known of the step's tensors: which are inputs, what
their values come from, what was overwritten, what was drawn. Tensors that no operation gave are inputs of the graph,
whoever holds them: parameters, optimizer state, a closed-over tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from lightning_sink.engine.operands import members
from lightning_sink.engine.private import (
    TorchDispatchMode,
    is_computed_again,
    is_mutable,
    schema_name,
    written_arguments,
)
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.state.slots import PLAIN_TENSORS, Snapshot, place_of
from lightning_sink.engine.tracing.apart import Apart
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.moved import Moved
from lightning_sink.engine.tracing.origins import Origin, Origins, memory_of
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.tracing.redraws import Redraws
from lightning_sink.engine.tracing.rewritten import (
    WHOLE,
    by_places,
    distinct,
    in_parts,
    of_one_value,
    sorted_with_firsts,
    with_types,
)
from lightning_sink.engine.tracing.scaled_steps import ScaledSteps
from lightning_sink.engine.tracing.undo import Undo
from lightning_sink.engine.tracing.unrepeatable import BY_MASKS, Unfilled, why_unrepeatable
from lightning_sink.engine.tracing.values import Values
from lightning_sink.engine.watch import innermost_line, user_line

# Keeps what its backward needs only where gradients are on.
_READS_GRAD_MODE = {"aten::mkldnn_rnn_layer"}


class Operations(TorchDispatchMode):
    """Writes down the operations of one recording.

    Args:
        recording: What they are written to.
        before: What every slot holds before the step.
        leaves: The batch's tensors.
        changing: Other tensors that change with the step although no operation writes to them.
        values: Returns what is told of values that operations give to Python.
        appended: Returns the name of the attribute to which steps have appended a tensor.

    Attributes:
        writer: Knows which node stands for which tensor.
        undo: Keeps what operations overwrite.
        generators: What the step draws from.
        redraws: What it draws again.
        moved: The tensors to which the step gives other memory.
        outside: Checks what is done apart from the step.
        scaled: Makes the steps that a `GradScaler` may leave out.
        hook: The profile hook; it is taken out while operations run, which call nothing of the user's.
        are_paused: Whether operations are not written down now.
    """

    def __init__(
        self,
        recording: Recording,
        before: Snapshot,
        leaves: Sequence[Tensor],
        changing: Sequence[Tensor],
        values: Callable[[], Values],
        appended: Callable[[Tensor], str | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording, self._before = recording, before
        self._values, self._appended = values, appended
        self.writer = GraphWriter(recording, self._take_input)
        self.undo = Undo()
        self.generators = Generators(before.parts.device)
        self.redraws = Redraws(self.generators, recording.hazard)
        self.moved = Moved(before, self.writer)
        self.outside = Apart(recording, self.generators)
        self.scaled = ScaledSteps(recording, before, self, self.paused)
        self.hook: Any = None
        self.are_paused = False
        self._leaves = {id(leaf) for leaf in leaves}
        self._origins, self._unfilled = Origins(leaves, changing), Unfilled()
        self._gos, self._is_again = 0, False
        self._places: list[int] = []
        self._places_in: dict[fx.Node, list[Tensor]] = {}  # of ones, of which each batch has as many

    def origin(self, tensor: Tensor) -> Origin | None:
        """Returns what a tensor's value comes from."""
        self.writer.node(tensor)  # an input that stays as it is has to be known as one
        return self._origins.of([tensor])

    def stays(self, tensor: Tensor) -> bool:
        """Tells whether a tensor holds the same in every step, of which a program makes sure."""
        origin = self.origin(tensor)
        if origin is None or origin.of_batch:
            return False
        self._values().look_at(origin, user_line() or innermost_line())
        return True

    def _made_once(self, made: Any, of: Sequence[Tensor]) -> Any:
        """Returns what a program has as it was made: a copy, since the step may write to it."""
        if not isinstance(made, Tensor):
            return made
        self._origins.operation(self._origins.of(of), [made], ())
        self.writer.constant(made)
        return self._operation(torch.ops.aten.clone.default, (made,), {})

    def put_data(self, put: Callable[..., None], tensor: Tensor, value: Any) -> None:
        """Gives a tensor other memory; a program has a copy to the memory that it has."""
        if self.are_paused or not isinstance(value, Tensor):
            put(tensor, value)
            return
        if self.writer.made(tensor):
            put(tensor, value)
            self.writer.rebind(tensor, value)
            return
        if self.writer.made(value) and self.moved.may_take(tensor, value):
            node, origin = self.writer.node(tensor), self._origins.of([value])
            self.writer.write(torch.ops.aten.copy_.default, (node, self.writer.node(value)), {}, None, draws=False)
            if memory_of(tensor) in self._recording.written and not self.moved.has(tensor):
                self._recording.written_first.add(id(tensor))
            self.moved.take(tensor, value)
            self._recording.written |= {memory_of(tensor), memory_of(value)}
            self._recording.moved.append(tensor)
            put(tensor, value)
            self._origins.operation(origin, (), [tensor])
            self.undo.watch(tensor)
            self._places[node.meta["input"]] = place_of(tensor)
            return
        place = place_of(tensor)
        put(tensor, value)
        if place_of(tensor) != place:
            name = next(iter(self._before.names.get(id(tensor), [])), "a tensor")
            self._recording.hazard(f"the step replaces `.data` of {name} (`.data.copy_()` is compiled)")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Operations in here are not recorded."""
        paused, self.are_paused = self.are_paused, True
        try:
            yield
        finally:
            self.are_paused = paused

    def finish(self) -> None:
        """The graph has ended: sees whether inputs still lie where they lay, and draws nothing twice."""
        recording = self._recording
        for tensor, place, where in zip(recording.inputs, self._places, recording.first_use, strict=True):
            if place != place_of(tensor):
                recording.hazard("the step replaces `.data` of a tensor (`.data.copy_()` is compiled)", where)
        self.redraws.finish(recording.graph)
        self.undo.forget()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation and writes it down."""
        kwargs = kwargs or {}
        if self.are_paused or func.namespace in ("profiler", "prim"):
            self.outside.check(func, args, kwargs)
            return func(*args, **kwargs)
        if (run := in_parts(func, args, kwargs)) is not None:
            with self:
                return run()
        if torch.is_inference_mode_enabled():
            # Elsewhere what is made of other operations is seen as these. As a whole, `bool(tensor)` is none of which
            # one knows that it takes a value out of a tensor.
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        # PyTorch's own operations call nothing of the user's, and the hook would double the time of writing them down.
        # Written out: `watch.unwatched` would make that a tenth longer.
        watched = func.namespace == "aten" and self.hook is not None and sys.getprofile() is self.hook
        if watched:
            sys.setprofile(None)
        try:
            return self._operation(func, args, kwargs)
        finally:
            if watched:
                sys.setprofile(self.hook)

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_made_of_numbers(func, args):
            self.writer.constant(args[0])
            func = torch.ops.aten.clone.default  # a program has what was made once, and may not write to that
        func, args = by_places(func, args, self._places_of, self._operation)
        leaves = members(Tensor, (*args, *kwargs.values()))
        if torch.Tag.dynamic_output_shape in func.tags and leaves and all(map(self.stays, leaves)):
            return map_aggregate(func(*args, **kwargs), lambda made: self._made_once(made, leaves))
        if func is torch.ops.aten._unique2.default and (found := self._distinct(*args, **kwargs)) is not None:
            return found
        self._recording.grad_mode |= schema_name(func) in _READS_GRAD_MODE
        node_args, node_kwargs = map_aggregate((args, kwargs), self._as_node)
        origin = self._origins.of(leaves)
        decides = torch.Tag.data_dependent_output in func.tags
        if not decides and (why := why_unrepeatable(func, args, kwargs)) is not None:
            self._recording.hazard(why, lasts=schema_name(func) not in BY_MASKS)
        written = list(written_arguments(func, args, kwargs, Tensor)) if is_mutable(func) else []
        self._recording.written |= self.undo.keep(written)
        self.scaled.about_to_write(written)
        may_draw = torch.Tag.nondeterministic_seeded in func.tags
        generated = self.generators.state() if may_draw else None
        out = func(*args, **kwargs)
        if (filled := of_one_value(func, args, out)) is not None:
            func, origin, (node_args, node_kwargs) = torch.ops.aten.full.default, Origin(), filled
        # Attention without dropout has the tag and draws nothing.
        draws = generated is not None and self.generators.drew_since(generated)
        made = members(Tensor, (out,))
        if decides:
            self._values().taken(func, node_args, node_kwargs, out, origin)
        self._origins.operation(None if draws else origin, made, written)
        if self.moved.are_used(leaves):
            self._recording.hazard(
                "the step computes with what it put into a tensor's `.data`, or with what was there before"
            )
        if self._unfilled.operation(func, leaves, written, made):
            self._recording.hazard(
                "the step computes with memory that a kernel past torch's dispatcher has filled, or none"
            )
        self._note_made(made)
        self.scaled.made(made, leaves)
        if isinstance(out, (Tensor, tuple, list)) or out is None:
            node_args, node_kwargs = with_types(func, node_args, node_kwargs, out, self.writer.cast)
            node = self.writer.write(func, node_args, node_kwargs, out, draws)
            self._note_go(node)
            if generated is not None and draws:
                self.writer.repeats(node, self.redraws.drew(node, generated))
                node.meta["where"] = user_line()
        return out

    def _note_go(self, node: fx.Node) -> None:
        """Notes what is computed again, and which operations of that follow one another."""
        if is_computed_again():
            node.meta["again"] = self._gos
        elif self._is_again:
            self._gos += 1
        self._is_again = "again" in node.meta

    def _places_of(self, mask: Tensor, asks: bool) -> list[Tensor] | None:
        """Returns the places of a mask's ones, by dimension; None where their number is not known before a step.

        It is if the mask stays as it is, or if each batch is asked for it, as it may be where `asks`.
        """
        if mask.numel() == 0:
            return None
        if self.stays(mask):
            places = [place.clone() for place in mask.nonzero().unbind(1)]
            for place in places:
                self.writer.constant(place)
            return places
        node, origin = self.writer.node(mask), self._origins.of([mask])
        if not asks or origin is None:
            return None
        if origin.is_written or node not in self._places_in:
            many = self._values().ones(mask, node, origin)
            if many is None:
                return None
            found = self._operation(torch.ops.aten.nonzero_static.default, (mask,), {"size": many})
            self._places_in[node] = [
                self._operation(torch.ops.aten.select.int, (found, 1, dim), {}) for dim in range(mask.dim())
            ]
        return self._places_in[node]

    def _distinct(
        self, values: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Returns the distinct ones of whole numbers; None where each batch cannot be asked how many there are."""
        is_known = sorted and values.dtype in WHOLE and values.numel() > 0
        if not is_known or self._origins.of([values]) is None:
            return None
        with self:
            ordered, mask = sorted_with_firsts(values)
        places = self._places_of(mask, True)
        if places is None:
            return None
        with self:
            return distinct(values, ordered, places[0], return_inverse, return_counts)

    def _as_node(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.writer.node(value)
        # What is given memory makes no program, and the text of that has a line for each byte.
        return "memory" if torch.is_storage(value) else value

    def _take_input(self, tensor: Tensor, index: int) -> None:
        self._origins.input(tensor, index)
        if id(tensor) in self._leaves:
            self._recording.batch.add(index)
        elif (name := self._appended(tensor)) is not None:
            self._recording.hazard(f"the step reads `{name}`, to which steps append")
        self._places.append(place_of(tensor))
        self._recording.first_use.append(user_line())
        self.outside.use(tensor)
        if type(tensor) not in PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else f"with layout {tensor.layout}"
            self._recording.hazard(f"a tensor of type `{type(tensor).__name__}` {kind} takes part")
        elif tensor.is_conj() or tensor.is_neg():
            self._recording.hazard(
                "a tensor takes part that is conjugated or negated when it is read; `resolve_conj().resolve_neg()`"
                " gives one that is so in memory"
            )
        else:
            self.undo.watch(tensor)

    def _note_made(self, made: list[Tensor]) -> None:
        recording = self._recording
        for tensor in made:
            if tensor.layout is not torch.strided:
                self._recording.hazard(f"an operation gives a tensor with layout {tensor.layout}")
            recording.largest = max(recording.largest, tensor.numel())
            recording.dtypes.add(tensor.dtype)


def _is_made_of_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Tells whether an operation gives a tensor that was made of Python's numbers, in memory of its own."""
    return schema_name(func) == "aten::lift_fresh" and bool(args[0].untyped_storage().resizable())
