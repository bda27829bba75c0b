"""Every name of PyTorch's that is not public, with the reason; checked against torch 2.11 to 2.13.

`tests/engine/test_private.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

# A mode is the one way to see every operation below autograd; documented, though the module's name is private.
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Tensors compare by value and outlive their Python object; a dictionary by identity with weak keys exists only here.
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "TorchDispatchMode",
    "WeakIdKeyDictionary",
    "compile_graph",
    "find_compiler",
    "is_mutable",
    "pytree",
    "schema_name",
    "written_arguments",
]


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


def compile_graph(graph: fx.GraphModule, inputs: list[Any], options: dict[str, Any]) -> Any:
    """Compiles a graph of ATen operations with Inductor.

    `torch._inductor.standalone_compile` gives a callable that is entered with less Python than what `torch.compile`
    returns, and takes a graph as it is. Public entry points trace Python again.
    """
    import torch._inductor

    return torch._inductor.standalone_compile(
        graph, inputs, dynamic_shapes="from_example_inputs", options={"config_patches": options}
    )


def find_compiler() -> str:
    """Returns the C++ compiler that Inductor would call.

    Raises:
        Exception: What Inductor raises where there is none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    return str(get_cpp_compiler())
