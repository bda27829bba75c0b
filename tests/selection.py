"""Which tests run: all under `--wide`, and by default what takes ten minutes on two cores.

`narrow` marks a test that tries one thing in many ways: by default the first of its parameters runs and about one in so
many of the others, or none at all. Tests that are named on the command line (`tests/test_x.py::test_y`, `-k`) run
in all of their ways.
"""

from zlib import crc32

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wide", action="store_true", help="run each test in all of its ways, in half an hour")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.wide or config.option.keyword or any("::" in argument for argument in config.args):
        return
    met, kept, left = set[str](), [], []
    for item in items:
        name, _, parameters = item.nodeid.partition("[")
        (kept if _runs_by_default(item, name not in met, parameters) else left).append(item)
        met.add(name)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def _runs_by_default(item: pytest.Item, is_first: bool, parameters: str) -> bool:
    """Tells whether an item runs: by the text of its parameters, so that those that come to a test move no others."""
    number = crc32(parameters.encode())
    return all(mark.args and (is_first or number % mark.args[0] == 0) for mark in item.iter_markers("narrow"))
