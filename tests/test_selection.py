"""By default a test in many ways runs in some of them; `--wide`, and who names it, runs all."""

import re

import pytest

pytest_plugins = "pytester"

TESTS = """
    import pytest

    @pytest.mark.narrow(5)
    @pytest.mark.parametrize("number", range(100))
    def test_many(number):
        pass

    @pytest.mark.narrow
    def test_slow():
        pass

    @pytest.mark.parametrize("number", range(3))
    def test_all(number):
        pass
"""
"""101 that are narrow, of which some run, and 3 others."""


@pytest.fixture
def ran(pytester):
    pytester.makeini("[pytest]\nmarkers = narrow(every): some run\n")
    pytester.makeconftest("from selection import pytest_addoption, pytest_collection_modifyitems")
    pytester.makepyfile(test_some=TESTS)

    def run(*arguments):
        result = pytester.runpytest("-p", "no:cacheprovider", *arguments)
        items = result.reprec.getreports("pytest_runtest_logreport")
        return [item.nodeid.partition("::")[2] for item in items if item.when == "call"]

    return run


def test_some_run_by_default(ran):
    found = ran()
    many = [name for name in found if "test_many" in name]
    assert 10 < len(many) < 30
    assert many[0] == "test_many[0]"
    numbers = [int(re.search(r"\d+", name).group()) for name in many]
    assert {number % 5 for number in numbers} == {*range(5)}  # no stride leaves out a value
    assert [name for name in found if name not in many] == [f"test_all[{number}]" for number in range(3)]


@pytest.mark.parametrize("arguments", [["--wide"], ["-k", "test"]])
def test_all_run(ran, arguments):
    assert len(ran(*arguments)) == 104


def test_who_is_named_runs(ran):
    assert ran("test_some.py::test_slow") == ["test_slow"]
    assert len(ran("test_some.py::test_many")) == 100
