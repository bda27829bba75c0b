"""Checks of options: numbers as numbers of any library, and no array by mistake."""

import numpy as np
import pytest
import torch

from lightning_sink.checks import boolean, choice, integer, seconds


def test_a_number_of_any_library_is_given_back_as_pythons():
    assert type(integer("n", np.int64(3), "a number", least=1)) is int
    assert type(seconds("t", np.float32(0.5), "seconds")) is float


def test_one_number_may_be_accepted_besides():
    assert integer("n", -1, "a number", least=1, besides=-1) == -1
    with pytest.raises(ValueError, match=r"^`n` takes a number; got 0\.$"):
        integer("n", 0, "a number", least=1, besides=-1)


@pytest.mark.parametrize("value", [torch.zeros(2), np.zeros(2), ["a"], {"a"}], ids=["tensor", "array", "list", "set"])
def test_what_holds_several_values_is_of_another_type(value):
    for check in (
        lambda: integer("x", value, "a number", least=0),
        lambda: seconds("x", value, "seconds"),
        lambda: boolean("x", value),
        lambda: choice("x", value, ("a", "b")),
        lambda: choice("x", value, ("a", None)),
    ):
        with pytest.raises(TypeError, match="^`x` takes "):
            check()


def test_none_is_a_choice_only_where_it_is_named():
    assert choice("x", None, ("a", None)) is None
    with pytest.raises(TypeError, match="takes 'a', 'b'; got None"):
        choice("x", None, ("a", "b"))
