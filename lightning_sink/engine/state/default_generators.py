"""The random generators that PyTorch draws from where it is given none: the host's, and the device's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""What generators go on from."""


class Generators:
    """The default generators of a training that computes on a device; `host`: with the host's own."""

    def __init__(self, device: torch.device, *, host: bool = True) -> None:
        # Their methods, as `torch.get_rng_state` and its like are watched in steps, whoever calls them.
        self._generators: list[Any] = [torch.default_generator] if host else []
        if device.type != "cpu":
            self._generators.append(torch.get_device_module(device).default_generators[device.index or 0])

    def state(self) -> State:
        """Returns their states. A device's generator is on the host: nothing waits."""
        return tuple([generator.get_state() for generator in self._generators])

    def restore(self, state: State) -> None:
        """Puts states back."""
        for generator, kept in zip(self._generators, state, strict=True):
            generator.set_state(kept)

    def drew_since(self, state: State) -> bool:
        """Tells whether something was drawn since the generators were in a state."""
        return not all(map(torch.equal, state, self.state()))
