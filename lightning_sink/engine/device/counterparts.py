"""What steps on a device take from the host, and leave there: its tensors, and their counterparts on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_sink.engine.compiler.copies import copy_of, memory_of
from lightning_sink.engine.compiler.row import Outputs
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.private import copy_all


class Counterparts:
    """Tensors on the device in the place of inputs that lie on the host. They stay where they are.

    While steps that were launched have not been waited for, what they write is newer here than on the host. What is the
    same on the host, bit by bit, as it was when it was brought over last, or back, is not brought again.

    Args:
        graphs: The device.
        placement: Which inputs lie on the host.
    """

    def __init__(self, graphs: Graphs, placement: Placement) -> None:
        self._graphs, self._placement = graphs, placement
        self._there: dict[int, Tensor] = {}
        self._same: dict[int, Tensor] = {}  # as the counterparts are, where that is known
        self._launched = 0

    def instead(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns inputs with the counterparts in the place of those on the host; None stays."""
        found = [*inputs]
        for number in self._placement.inputs:
            tensor = inputs[number]
            if tensor is not None:
                there = self._there.get(number)
                if there is None or (there.shape, there.stride()) != (tensor.shape, tensor.stride()):
                    (there,) = self._graphs.bring([tensor])
                    self._there[number] = there = copy_of(there)
                    self._same.pop(number, None)
                found[number] = there
        return found

    def launch(self, inputs: Sequence[Tensor | None]) -> None:
        """Brings the inputs over, for steps that are about to be launched."""
        newer = self._placement.written if self._launched else frozenset()
        tensors = {n: tensor for n in self._placement.inputs - newer if (tensor := inputs[n]) is not None}
        changed = self._changed(tensors)
        for number in (*changed, *self._placement.written):
            self._same.pop(number, None)
        brought = self._graphs.bring([tensors[number] for number in changed])
        copy_all([memory_of(self._there[number]) for number in changed], [memory_of(tensor) for tensor in brought])
        self._same |= {n: t for n, t in changed.items() if t.is_cpu and n not in self._placement.written}
        self._launched += 1

    @torch.no_grad()
    def _changed(self, tensors: dict[int, Tensor]) -> dict[int, Tensor]:
        """Returns those inputs, with copies, that may not be what the counterparts are; all that are alike, or none."""
        changed, alike = dict[int, Tensor](), dict[tuple[torch.device, torch.dtype, torch.Size], list[int]]()
        for number, tensor in tensors.items():
            alike.setdefault((tensor.device, tensor.dtype, tensor.shape), []).append(number)
        for (device, dtype, shape), numbers in alike.items():
            now = torch.stack([tensors[number] for number in numbers])
            then = [same for n in numbers if (same := self._same.get(n)) is not None]
            is_known = len(then) == len(numbers) and all((t.dtype, t.shape) == (dtype, shape) for t in then)
            # What has moved to the device meanwhile is not looked at, which would be waited for. 0.0 and -0.0 differ.
            if device.type != "cpu" or not is_known or not torch.equal(_bits(now), _bits(torch.stack(then))):
                changed.update(zip(numbers, now.unbind(), strict=True))
        return changed

    def give_up(self) -> None:
        """Nothing is to be brought back behind steps: they were not launched, or others run behind them by now."""
        self._launched -= 1

    def bring_back(self, inputs: Sequence[Tensor | None], outputs: Outputs) -> Outputs:
        """Brings what steps left on the host, if anything, once they have run: that is waited for.

        Args:
            inputs: The inputs; those that lie on the host and were written to are as the steps left them then.
            outputs: What the last step gave, on the device; nothing if none was run.

        Returns:
            The outputs, with those on the host that eager steps have there; one that occurs twice does so again.
        """
        self._launched -= 1
        hosts = self._placement.outputs if outputs else frozenset[int]()
        to_host = {id(outputs[number]): outputs[number] for number in sorted(hosts)}
        numbers = [n for n in sorted(self._placement.inputs & self._placement.written) if inputs[n] is not None]
        wanted = [*(self._there[number] for number in numbers), *to_host.values()]
        if not wanted:
            return outputs
        fetched = self._graphs.fetch(wanted)
        self._graphs.wait(self._graphs.mark())
        targets = [tensor for number in numbers if (tensor := inputs[number]) is not None]
        copy_all(targets, fetched[: len(numbers)])
        self._same |= dict(zip(numbers, fetched[: len(numbers)], strict=True))
        here = dict(zip(to_host, fetched[len(numbers) :], strict=True))
        return tuple([here[id(output)] if number in hosts else output for number, output in enumerate(outputs)])

    def fetch(self, columns: dict[int, Tensor]) -> dict[int, Tensor]:
        """Returns what is kept of steps' outputs where eager steps have it, to be read when that was waited for."""
        hosts = [number for number in columns if number in self._placement.outputs]
        fetched = self._graphs.fetch([columns[number] for number in hosts]) if hosts else []
        return {**columns, **dict(zip(hosts, fetched, strict=True))}


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.uint8)
