"""A sink's values, step by step."""

import math

import pytest
import torch

from lightning_sink.engine.history import History


def filled(*steps):
    history = History()
    for loss, named in steps:
        history.add(None if loss is None else torch.tensor(loss), [(n, torch.tensor(v)) for n, v in named])
    return history.tensors()


def test_every_step_has_a_row():
    history = filled((1.0, [("a", 3.0)]), (2.0, [("a", 4.0)]))
    assert {name: values.tolist() for name, values in history.items()} == {"loss": [1.0, 2.0], "a": [3.0, 4.0]}


def test_a_name_that_some_steps_did_not_log_is_nan_there():
    history = filled((1.0, []), (2.0, [("a", 4)]), (3.0, []))
    assert history["a"].is_floating_point()
    assert [math.isnan(value) for value in history["a"].tolist()] == [True, False, True]
    assert history["a"][1] == 4.0


def test_a_step_without_a_loss_is_nan():
    history = filled((1.0, []), (None, []))
    assert history["loss"][0] == 1.0
    assert math.isnan(history["loss"][1])


def test_no_loss_at_all():
    assert torch.isnan(filled((None, []), (None, []))["loss"]).all()


def test_whole_numbers_stay_whole_where_every_step_has_one():
    assert filled((1.0, [("n", 2)]), (1.0, [("n", 3)]))["n"].dtype == torch.int64


def test_a_name_logged_twice_in_a_step_keeps_the_last_value():
    assert filled((1.0, [("a", 1.0), ("a", 2.0)]), (1.0, [("a", 3.0)]))["a"].tolist() == [2.0, 3.0]


def test_a_logged_loss_gives_way_to_the_steps_own():
    assert filled((1.0, [("loss", 9.0)]))["loss"].tolist() == [1.0]


def test_a_history_holds_no_graph():
    history = History()
    weight = torch.ones((), requires_grad=True)
    history.add(weight * 2, [("a", weight * 3)])
    assert not any(values.requires_grad for values in history.tensors().values())


def test_an_empty_history_has_a_loss_of_length_zero():
    assert History().tensors()["loss"].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_are_kept(dtype):
    history = History()
    history.add(torch.ones((), dtype=dtype), [])
    assert history.tensors()["loss"].dtype == dtype
