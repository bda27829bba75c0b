"""What is read out of code and its source; what is said of a function's variables is found once, and unwatched."""

import ast
import sys

from lightning_sink.engine.source import Source, bound_in, line_that_sets, scope_of

TEXT = """
def step(self, batch):
    x = batch * self.scale
    with open(x) as file:
        total = [file for y in x]
    def inner(x):
        return hidden
    import os.path as path
    return total
"""


def function_of(text):
    return Source(ast.parse(text), compile(text, "", "exec")).function(compile(text, "", "exec").co_consts[0])


def test_the_names_in_a_function_and_what_it_sets():
    function = function_of(TEXT)
    own, inner = scope_of(function)
    assert {node.id for node in own} == {"batch", "file", "open", "self", "total", "x", "y"}
    assert inner == {"hidden"}
    assert bound_in(function) == {"file", "inner", "path", "total", "x", "y"}


def test_a_long_function_is_gone_through_once_and_no_hook_is_called_for_it():
    function, seen = function_of("def step(x):\n" + "    x = x + 1\n" * 500), []
    previous = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        first = [scope_of(function), bound_in(function)]
        again = [scope_of(function), bound_in(function)]
    finally:
        sys.setprofile(previous)
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert len(seen) < 100


def sets(item):
    item.size = (
        item.size
        + 1
    )  # fmt: skip
    return item.count


def sets_it_again(item):
    item.size = 2


def test_the_line_that_sets_an_attribute():
    code, again = sets.__code__, sets_it_again.__code__
    assert line_that_sets("size", [code, code]) == f"{__file__}:{code.co_firstlineno + 1}"
    assert line_that_sets("size", [code, again]) == ""  # which of the two it is, nobody knows
    assert line_that_sets("count", [code]) == ""  # which is only read
