"""What a training leaves in Python beside the tensors that a checkpoint has: attributes, options, counters."""

from __future__ import annotations

import io
import random
from collections import deque
from typing import Any
from weakref import ProxyTypes

import lightning as L
import numpy as np
import torch
from torch import Tensor

from parity import Run, assert_tensors

_LIGHTNINGS = frozenset(vars(L.LightningModule()))
_MACHINERY = frozenset([*vars(torch.nn.Module()), "_torchdynamo_wrapper_id"]) - {"training"}


def kept(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns what is left in attributes, optimizers and schedulers: tensors by name, and other values by name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for path, module in run.module.named_modules():
        attributes = {**vars(module), **module._buffers}
        for name, value in attributes.items():
            if name not in _MACHINERY and not (module is run.module and name in _LIGHTNINGS and name != "training"):
                _take(f"{path}.{name}", value, tensors, values)
    for name, parameter in run.module.named_parameters():
        values[f"gradients of {name}"] = parameter.requires_grad, parameter.grad is None
    for number, optimizer in enumerate(run.trainer.optimizers):
        for index, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            _take(f"optimizer {number} group {index}", options, tensors, values)
        for index, state in enumerate(optimizer.state.values()):
            _take(f"optimizer {number} state {index}", state, tensors, values)
    for number, config in enumerate(run.trainer.lr_scheduler_configs):
        state = {key: value for key, value in config.scheduler.state_dict().items() if not key.startswith("_sched")}
        _take(f"scheduler {number}", state, tensors, values)
    return tensors, values


def assert_kept(plain: Run, sink: Run, exact: bool, tolerance: float) -> None:
    """Asserts that both trainings left the same."""
    (tensors, values), (found_tensors, found_values) = kept(plain), kept(sink)
    others = sorted(values.keys() ^ found_values.keys())
    assert not others, others[:5]
    for name, value in values.items():
        if isinstance(value, float) and not exact and value != found_values[name]:
            assert abs(value - found_values[name]) <= tolerance * abs(value) + 1e-9, name
        else:
            assert value == found_values[name], name
    assert_tensors(tensors, found_tensors, exact, tolerance)


def _take(name: str, value: Any, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    if type(value) in ProxyTypes or getattr(type(value), "cannot_be_looked_at", False):
        return
    if isinstance(value, Tensor):
        if not isinstance(value, torch.nn.parameter.UninitializedParameter):
            tensors[name] = value.detach()
    elif value is None or isinstance(value, (bool, int, float, complex, str)):
        values[name] = value
    elif isinstance(value, dict):
        for key, item in value.items():
            _take(f"{name}[{key!r}]" if isinstance(key, (str, int)) else name, item, tensors, values)
    elif isinstance(value, (list, tuple, deque)):
        values[f"length of {name}"] = len(value)
        for index, item in enumerate(value):
            _take(f"{name}[{index}]", item, tensors, values)
    elif isinstance(value, torch.Generator):
        tensors[name] = value.get_state()
    elif isinstance(value, io.StringIO):
        values[name] = value.getvalue()
    elif isinstance(value, random.Random):
        values[name] = value.getstate()
    elif isinstance(value, np.random.Generator):
        values[name] = repr(value.bit_generator.state)
    elif isinstance(value, (np.ndarray, np.generic)):
        values[name] = value.tolist()
    elif "gallery" in type(value).__module__ or type(value).__module__ == "__main__":
        _take(name, vars(value), tensors, values)
    else:
        values[f"type of {name}"] = type(value).__qualname__
