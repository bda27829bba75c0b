"""What is read out of code and its source."""

from lightning_sink.engine.source import line_that_sets


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
