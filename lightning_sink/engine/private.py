"""Every name of PyTorch's that is not public, with the reason; checked against torch 2.11 to 2.13.

`tests/engine/test_private.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

# A mode is the one way to see every operation below autograd; documented, though the module's name is private.
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Tensors compare by value and outlive their Python object; a dictionary by identity with weak keys exists only here.
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "MODULE_HOOKS",
    "TorchDispatchMode",
    "WeakIdKeyDictionary",
    "compile_graph",
    "find_compiler",
    "global_hooks",
    "is_mutable",
    "pytree",
    "schema_name",
    "version",
    "tensor_hooks",
    "written_arguments",
]


# Hooks of a module: `register_forward_hook` and its like add to these, and nothing public lists them.
MODULE_HOOKS = frozenset(["_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"])


_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def tensor_hooks(tensor: Tensor) -> list[Any]:
    """Returns a leaf's hooks on its gradient. `register_hook` and its like add to these; nothing public lists them."""
    return [tensor._backward_hooks, tensor._post_accumulate_grad_hooks]


def global_hooks() -> tuple[Any, ...]:
    """Returns the hooks on every module (`register_module_forward_hook`); nothing public lists them."""
    from torch.nn.modules import module

    return tuple(hook for name in _GLOBAL_HOOKS for hook in getattr(module, name).values())


def is_mutable(operation: Any) -> bool:
    """Tells whether an operation writes to an argument. Only `OpOverload._schema` knows."""
    return bool(operation._schema.is_mutable)


def schema_name(operation: Any) -> str:
    """Returns an operation's name without its overload."""
    return str(operation._schema.name)


def written_arguments(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the tensors that an operation is about to write to."""
    for index, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def version(tensor: Tensor) -> int:
    """Returns how often PyTorch wrote to a tensor in place; `Tensor._version` alone counts that."""
    return int(tensor._version)


def compile_graph(graph: fx.GraphModule, inputs: list[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Compiles a graph of ATen operations with Inductor, for inference: its writes to inputs happen in place.

    `torch._inductor.standalone_compile` takes a graph as it is; public entry points trace Python again. What it returns
    wraps the compiled code in several layers of Python that a graph without autograd does not need: a quarter of a
    small step. Where the code itself gives the same on the same inputs, it is called without them.
    """
    import torch._functorch.config as functorch_config
    from torch._inductor import standalone_compile
    from torch._inductor.compile_fx import compile_fx_inner

    inner: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        inner.append(compile_fx_inner(*args, **kwargs))
        return inner[-1]

    settings = {"config_patches": options, "inner_compile": keep}
    # This cache would give back the layers without calling `keep`; the cache below it, of compiled code, stays.
    with functorch_config.patch(enable_autograd_cache=False):
        artifact = standalone_compile(
            graph, [tensor.clone() for tensor in inputs], dynamic_shapes="from_example_inputs", options=settings
        )
    callable_code = getattr(inner[0], "current_callable", None) if len(inner) == 1 else None
    if callable_code is None:
        return artifact
    direct: Callable[..., Any] = lambda *arguments: callable_code(list(arguments))  # noqa: E731
    return direct if _same(artifact, direct, inputs) else artifact


def _same(first: Callable[..., Any], second: Callable[..., Any], inputs: list[Tensor]) -> bool:
    results = []
    generator = torch.get_rng_state()
    for function in (first, second):
        copies = [tensor.clone() for tensor in inputs]
        torch.set_rng_state(generator)
        results.append([*function(*copies), *copies])
    pairs = list(zip(*results, strict=False))
    return len(results[0]) == len(results[1]) and all(
        a.shape == b.shape and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in pairs
    )


def find_compiler() -> str:
    """Returns the C++ compiler that Inductor would call.

    Raises:
        Exception: What Inductor raises where there is none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    return str(get_cpp_compiler())
