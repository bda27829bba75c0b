"""Every name of PyTorch's that is not public, with the reason; checked against torch 2.11 to 2.15.

Those of Inductor, but for one table, are in `generated.py`, `native.py` and `combined.py`.

`tests/engine/test_private.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

# Nothing public lists the hooks on every optimizer's step, or the function modes that are entered.
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack

# A mode is the one way to see every operation below autograd; documented, though the module's name is private.
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Tensors compare by value and outlive their Python object; a dictionary by identity with weak keys exists only here.
from torch.utils.weak import WeakIdKeyDictionary

from lightning_sink.engine.operands import members
from lightning_sink.engine.shadows import replaced, shadowed

__all__ = ["TorchDispatchMode", "WeakIdKeyDictionary", "pytree"]
"""What others import from here under PyTorch's own name."""

T = TypeVar("T")

# Nothing public checks a value without looking at it, so that the check is an operation like any other.
assert_async = torch._assert_async

# What `torch.distributions` asks of the parameters and values that it checks: `Distribution.__init__` and
# `Distribution._validate_sample` raise where it is false and do nothing else with it.
is_all_true = torch._is_all_true

# Functions of torchmetrics (1.0 to 1.9) that look at values. All whose name ends so raise an error or do nothing, and
# know the number of classes as `num_classes`, one value that does not count as `ignore_index`.
TORCHMETRICS_CHECKS = "_tensor_validation"
# This one makes probabilities of `tensor` where it holds others: on a CPU it asks, elsewhere it computes both.
TORCHMETRICS_NORMALIZES = "normalize_logits_if_needed"
TORCHMETRICS_COUNTS = "_bincount"

# Hooks of a module: `register_forward_hook` and its like add to these, and nothing public lists them. Those of every
# module are in `torch.nn.modules.module`, by these names behind `_global`.
MODULE_HOOKS = frozenset(["_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"])

_OURS = "lightning_sink."
_UNSCALES = "_step_supports_amp_scaling"


def sees_functions(mode: type) -> bool:
    """Tells whether a mode of this type sees the functions of torch's that Python calls now: nothing public tells."""
    return any(type(entered) is mode for entered in _get_current_function_mode_stack())


def saves_by_hooks() -> bool:
    """Tells whether hooks see what is saved for a backward pass, as checkpointing has them: nothing public tells."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


_GOES_BACKWARD = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
_backward_pass = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def is_computed_again() -> bool:
    """Tells whether a backward pass, at what it does now, computes what activation checkpointing has not kept.

    Nothing public tells whether there is one (torch's own checkpointing asks this); what of it computes again is told
    by the lines that the engine has called. Where those have moved, nothing is told apart, and is computed early.
    """
    if _backward_pass() < 0:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _GOES_BACKWARD:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


def copy_alike(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors of one type into others, by one kernel on a GPU: `torch._foreach_copy_` has no public name."""
    torch._foreach_copy_(targets, sources)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors of whichever types into others, those of a type by one kernel on a GPU."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        to, given = by_type.setdefault(target.dtype, ([], []))
        to.append(target)
        given.append(source)
    for to, given in by_type.values():
        copy_alike(to, given)


def end_allocating_to_pool(device: torch.device, pool: Any) -> None:
    """Has CUDA's allocator give memory as ever, behind a capture whose end failed: nothing public does that.

    Until then it takes none back that was used on two streams. Does nothing where that has been seen to already.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with suppress(RuntimeError):
            end(torch.cuda.current_device() if device.index is None else device.index, pool)


_LOOPS = ("begin_capture_to_while_node", "set_conditional_handle_for_current_node", "end_capture_to_conditional_node")


def can_repeat_graphs() -> bool:
    """Tells whether there are names to capture a loop by: from torch 2.14 on, and without documentation."""
    return all(hasattr(torch.cuda.CUDAGraph, name) for name in _LOOPS)


def capture_repeated(graph: Any, body: Callable[[], T], left: Tensor) -> T:
    """Captures what a function gives the device as a loop, repeated there as long as a number is above 0.

    Draws on the device are refused in it. The condition is looked at before each turn. `torch.while_loop` is captured
    so, too (`torch._higher_order_ops.cudagraph_conditional_nodes`), and would copy all that a step writes to each time.
    """
    graph.begin_capture_to_while_node(left > 0)
    try:
        result = body()
        graph.set_conditional_handle_for_current_node(left > 0)
    except BaseException:
        with suppress(RuntimeError):  # the capture may have ended with the error
            graph.end_capture_to_conditional_node()
        raise
    graph.end_capture_to_conditional_node()
    return result


def own_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Returns a module's own parameters by name.

    `named_parameters(recurse=False)` gives the same in twice the time, 1.5 us, of which looks at a training between
    sinks had twenty.
    """
    return [(name, parameter) for name, parameter in module._parameters.items() if parameter is not None]


def own_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Returns a module's own buffers by name, as `own_parameters` does."""
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]


def own_tensors(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Returns modules' own parameters and buffers, those of `parameters()` and `buffers()` in a seventh of the time."""
    held = [tensor for module in modules for own in (module._parameters, module._buffers) for tensor in own.values()]
    return [tensor for tensor in held if tensor is not None]


def own_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns a module's own submodules by name; `named_children()` leaves out a second name of one."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def names_within(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Returns the names of all that a module itself holds, in their order, in which loops go through them.

    The last are those of buffers that are no part of its `state_dict()`, which nothing public lists.
    """
    fleeting = sorted(module._non_persistent_buffers_set)
    return tuple(module._modules), tuple(module._parameters), tuple(module._buffers), tuple(fleeting)


def tensor_hooks(tensor: Tensor) -> list[Any]:
    """Returns a leaf's hooks on its gradient. `register_hook` and its like add to these; nothing public lists them."""
    return [tensor._backward_hooks, tensor._post_accumulate_grad_hooks]


def global_hooks() -> tuple[Any, ...]:
    """Returns what of the user's is asked in every step, whatever module and optimizer it has; nothing public lists it.

    These are the hooks on every module (`register_module_forward_hook`) and every optimizer's step, those on what is
    saved for backward passes (`saved_tensors_hooks`), and function modes that are entered.
    """
    of_modules = [getattr(nn.modules.module, f"_global{name}") for name in MODULE_HOOKS]
    held = *of_modules, _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    hooks = [hook for each in held for hook in each.values()]
    saved = torch._C._autograd._top_saved_tensors_default_hooks(False) or ()
    modes = [mode for mode in _get_current_function_mode_stack() if not type(mode).__module__.startswith(_OURS)]
    return (*hooks, *saved, *modes)


def step_hooks(optimizer: Optimizer) -> list[Any]:
    """Returns the hooks on an optimizer's step, those on every optimizer's among them; nothing public lists them."""
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    hooks = *own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    return [hook for held in hooks for hook in held.values()]


class TakesSteps(Protocol):
    """Who makes optimizer steps in the place of a `GradScaler`."""

    def takes(self, scaler: GradScaler, optimizer: Optimizer) -> bool:
        """Tells whether it makes this optimizer's, for this scaler."""

    def keeping(self) -> AbstractContextManager[None]:
        """For gradients that are unscaled, and that a step which is left out leaves as they are."""

    def run(self, is_left_out: Tensor, make: Callable[[], Any]) -> Any:
        """Makes a step, or not where a tensor is not 0."""


@contextmanager
def scaler_steps_by(other: TakesSteps) -> Iterator[None]:
    """Has a `GradScaler` ask somebody else for optimizer steps that it would leave out by the value of a tensor.

    It asks in `_maybe_opt_step`, of what `unscale_` has found on each device. The steps of fused optimizers, which
    `_step_supports_amp_scaling` marks, look by themselves; these are had as the others. Nothing public comes between.
    """
    unscale, step, ask = GradScaler.unscale_, GradScaler.step, GradScaler._maybe_opt_step

    def unscaled(scaler: Any, optimizer: Any) -> None:
        if scaler.is_enabled():
            other.takes(scaler, optimizer)
        unscale(scaler, optimizer)

    def in_plain_form(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        looks = scaler.is_enabled() and getattr(optimizer, _UNSCALES, False)
        if not looks or not other.takes(scaler, optimizer):
            if looks and optimizer.defaults.get("fused"):  # in its plain form it would fail half-way
                raise RuntimeError("an optimizer in its fused form looks at what a `GradScaler` has found")
            return step(scaler, optimizer, *args, **kwargs)
        with other.keeping(), shadowed(optimizer, {_UNSCALES: False}):
            return step(scaler, optimizer, *args, **kwargs)

    def maybe_step(scaler: Any, optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not other.takes(scaler, optimizer):
            return ask(scaler, optimizer, state, *args, **kwargs)
        first, *others = state["found_inf_per_device"].values()
        found = sum((item.to(first.device) for item in others), start=first)
        return other.run(found, lambda: optimizer.step(*args, **kwargs))

    with ExitStack() as stack:
        for name, method in (("unscale_", unscaled), ("step", in_plain_form), ("_maybe_opt_step", maybe_step)):
            stack.enter_context(replaced(GradScaler, name, method))
        yield


# Normalizations that write to their running statistics while training, of which their schemas say nothing.
_NORMALIZES = frozenset(
    [
        "aten::native_batch_norm",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::batch_norm_update_stats",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
    ]
)


def is_mutable(operation: Any) -> bool:
    """Tells whether an operation writes to an argument, or may. Only `OpOverload._schema` knows."""
    return bool(operation._schema.is_mutable) or schema_name(operation) in _NORMALIZES


def takes_dtype(operation: Any) -> bool:
    """Tells whether an operation may be told the type of its result by name. Only `OpOverload._schema` knows."""
    return any(argument.name == "dtype" and argument.kwarg_only for argument in operation._schema.arguments)


def is_view(operation: Any) -> bool:
    """Tells whether an operation gives other views of its first argument's memory. Only `OpOverload._schema` knows."""
    aliases = (returned.alias_info for returned in operation._schema.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)


def has_kernel(operation: Any, device: torch.device) -> bool:
    """Tells whether an operation is there for a kind of device, itself or made of others. Only the dispatcher knows."""
    key = torch._C._dispatch_key_for_device(device.type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(operation.name(), key))


@contextmanager
def without_fallback() -> Iterator[None]:
    """Has `torch.vmap` refuse operations that it has no rule for, which it would make one by one, with a warning.

    The switch is public in functorch's C module only.
    """
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def draws_otherwise(operation: Any, dtype: torch.dtype = torch.float32) -> bool:
    """Tells whether Inductor's code draws other numbers than an operation does, of which the result has a type.

    That of torch 2.11 does for `RReLU`: it draws for each number, and the operation for those below 0. For
    `torch.bernoulli` it draws in float32, and the operation in float64 if the probabilities are of that. Only
    Inductor's table of decompositions shows it.
    """
    from torch._inductor.decomposition import decompositions

    if operation is torch.ops.aten.bernoulli.default and dtype is torch.float64:
        return operation in decompositions
    functional = getattr(torch.ops.aten, "rrelu_with_noise_functional", None)
    is_random_slope = schema_name(operation).removesuffix("_") == "aten::rrelu_with_noise"
    return is_random_slope and functional is not None and functional.default in decompositions


def is_on_lists(operation: Any) -> bool:
    """Tells whether an operation is one on each of some tensors, as optimizers and clipping call them.

    Not where it takes numbers for each out of a tensor: torch reads those past its dispatcher, and nobody sees it.
    """
    if not schema_name(operation).startswith("aten::_foreach_"):
        return False
    return not any(item.name == "scalars" and str(item.type) == "Tensor" for item in operation._schema.arguments)


def one_by_one(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operation on lists as torch does where it has no kernel for them: by operations on each tensor.

    `_op_dk` calls that kernel, which has no name of its own. All operations that are `is_on_lists` have it.
    """
    return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def schema_name(operation: Any) -> str:
    """Returns an operation's name without its overload."""
    return str(operation._schema.name)


def written_arguments(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], kind: type[T]) -> Iterator[T]:
    """Yields the arguments that an operation is about to write to, tensors or what stands for them."""
    arguments = operation._schema.arguments
    given = {argument.name: kwargs.get(argument.name) for argument in arguments}
    given |= {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    written = [item.name for item in arguments if item.alias_info is not None and item.alias_info.is_write]
    if schema_name(operation) in _NORMALIZES and given.get("training", True):
        written += ["running_mean", "running_var"]
    for name in written:
        yield from members(kind, (given[name],))


def version(tensor: Tensor) -> int:
    """Returns how often PyTorch wrote to a tensor in place; `Tensor._version` alone counts that.

    Of a tensor that was made in inference mode nobody counts: outside of it none is written to.
    """
    return 0 if not is_lazy(tensor) and tensor.is_inference() else int(tensor._version)


def holders_of_memory(tensor: Tensor) -> int:
    """Returns by how many tensors a tensor's memory is held, and this look; `torch._C._storage_Use_Count` knows."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
