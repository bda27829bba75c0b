"""What Inductor may make one kernel of, of a step for a GPU: private names of its scheduler, in torch 2.11 to 2.15.

`tests/engine/compiler/test_combined.py` fails with the name when an upgrade removes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.compiler import config

_SMALL = 1 << 16
"""Numbers that are summed up to which a sum may be part of a kernel with others."""


@contextmanager
def combined_where_small() -> Iterator[None]:
    """Has larger sums kept out of kernels for several things that do not depend on each other (`combo_kernels`).

    All parts of such a kernel have one size of blocks. The gradient of LeNet-5's largest weight took 21 us on an H200
    so, with a small one beside it, and takes 5 by itself. `group_algorithm_for_combo_kernels` says what
    may be made one; a node's `group` are its device, its numbers, and how many of others each is a sum of.
    `cache_key_tag` is public: Inductor's cache knows nothing of the former.
    """
    from torch._inductor.scheduler import ForeachKernelSchedulerNode as Combined

    usual = Combined.group_algorithm_for_combo_kernels

    def groups(scheduler: Any) -> list[list[Any]]:
        return [[node for node in nodes if _is_small(node)] for nodes in usual(scheduler)]

    with (
        patch.object(Combined, "group_algorithm_for_combo_kernels", staticmethod(groups)),
        config.patch(cache_key_tag=f"{config.cache_key_tag} combined up to {_SMALL}"),  # type: ignore[attr-defined]
    ):
        yield


def _is_small(node: Any) -> bool:
    """Tells whether a node of Inductor's scheduler is no sum, or a small one."""
    if not node.is_reduction():
        return True
    _, (numbers, each) = node.group
    return int(numbers * each) <= _SMALL
