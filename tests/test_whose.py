"""Whose code something is."""

import inspect
import os

import pytest

from lightning_sink.whose import is_installed, is_library, is_pythons


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_a_package_that_lies_in_pythons_own_folder_is_none_of_pythons(folder):
    file = os.path.join(os.path.dirname(os.__file__), folder, "package", "module.py")
    code = compile("", file, "exec")
    assert is_installed(code)
    assert not is_pythons(code)


def test_pythons_own():
    for code in (inspect.signature.__code__, compile("", "<frozen os>", "exec")):
        assert is_pythons(code)
        assert not is_installed(code)


def test_users():
    code = test_users.__code__
    assert not is_pythons(code)
    assert not is_installed(code)


def test_a_file_of_the_users_that_lies_in_pythons_own_folder_is_none_of_pythons():
    assert not is_pythons(compile("", os.path.join(os.path.dirname(os.__file__), "my_own.py"), "exec"))


@pytest.mark.parametrize("module", ["pandas.core.indexes.base", "pyarrow.lib", "torch.nn"])
def test_libraries_whose_functions_are_not_gone_through_for_what_they_see(module):
    assert is_library(module)
    assert not is_library("pandas_of_mine")
