"""Kernels that Inductor generates for several threads, made to hand out their errors.

Such a kernel checks indices and values inside of a parallel region of OpenMP, which no exception may leave: the process
would end. So each loop and single part of the region catches what is thrown in it (`caught.cpp`), and the kernel throws
it again where the region has ended. Other iterations go on; the step has failed all the same.
"""

from __future__ import annotations

import re

_KERNEL = re.compile(r'extern "C"\s+void\s+cpp_fused_\w+\([^;{]*\)\s*\{')
_PART = re.compile(r"#pragma omp (for|single)\b([^\n]*)\n")
_COLLAPSE = re.compile(r"collapse\((\d+)\)")
_LOOP = re.compile(r"\s*for\s*\(")
_BLOCK = re.compile(r"\s*\{")

_THROWS = ("_CHECK(", "throw ")


def hand_out_errors(code: str) -> str:
    """Returns generated code whose kernels throw what their threads threw; a kernel of another form stays as it is."""
    for kernel in reversed(list(_KERNEL.finditer(code))):
        begin, end = kernel.end(), _closing(code, kernel.end() - 1)
        body = code[begin:end]
        if "#pragma omp" in body and any(word in body for word in _THROWS):
            caught = f"\n    lightning_sink::Caught caught;{_with_parts_caught(body)}    caught.rethrow();\n"
            code = code[:begin] + caught + code[end:]
    return code


def _with_parts_caught(body: str) -> str:
    for part in reversed(list(_PART.finditer(body))):
        collapsed = _COLLAPSE.search(part[2])
        loops = 0 if part[1] == "single" else int(collapsed[1]) if collapsed else 1
        opening = _innermost(body, part.end(), loops)
        if opening is None:
            continue
        closing = _closing(body, opening)
        inside = f" try {{{body[opening + 1 : closing]}}} catch (...) {{ caught.keep(); }} "
        body = body[: opening + 1] + inside + body[closing:]
    return body


def _innermost(body: str, place: int, loops: int) -> int | None:
    """Returns where the block inside of so many loops begins; between them may stand opening brackets."""
    for loop_number in range(loops):
        block = _BLOCK.match(body, place) if loop_number else None
        loop = _LOOP.match(body, block.end() if block is not None else place)
        if loop is None:
            return None
        place = _closing(body, loop.end() - 1) + 1
    block = _BLOCK.match(body, place)
    return None if block is None else block.end() - 1


def _closing(code: str, opening: int) -> int:
    """Returns where the bracket that opens there is closed."""
    opens, closes = code[opening], {"(": ")", "{": "}"}[code[opening]]
    depth = 0
    for found in re.finditer(rf"[{re.escape(opens + closes)}]", code[opening:]):
        depth += 1 if found[0] == opens else -1
        if depth == 0:
            return opening + found.start()
    return len(code)
