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


def test_steps_in_a_row_come_as_one_tensor():
    history = History()
    history.add(torch.tensor(1.0), [("a", torch.tensor(5))])
    history.add(torch.tensor([2.0, 3.0]), [("a", torch.tensor([6, 7]))], steps=2)
    history.add(None, [], steps=2)
    found = history.tensors()
    assert found["loss"].tolist()[:3] == [1.0, 2.0, 3.0]
    assert found["loss"].isnan().tolist() == [False, False, False, True, True]
    assert found["a"].tolist()[:3] == [5.0, 6.0, 7.0]


@pytest.mark.parametrize("absent", [None, 100, 700])
def test_a_long_history_has_every_step(absent):
    history, expected = History(), []
    for step in range(1000):
        value = None if step == absent else torch.tensor(float(step))
        history.add(value, [("a", torch.tensor(0.0)), ("a", torch.tensor(step * 2.0))])
        expected.append(float("nan") if value is None else float(step))
    found = history.tensors()
    assert torch.equal(found["loss"].nan_to_num(), torch.tensor(expected).nan_to_num())
    assert found["a"].tolist() == [step * 2.0 for step in range(1000)]
    if absent is None:
        assert len(history._columns["loss"].parts) < 300


def test_further_values_belong_to_the_last_step():
    history = History()
    history.add(torch.tensor(1.0), [("a", torch.tensor(1.0))])
    history.add(torch.tensor(2.0), [("a", torch.tensor(2.0))])
    assert history.tensors()["a"].tolist() == [1.0, 2.0]  # what was asked for is not what is kept
    history.note([("a", torch.tensor(3.0)), ("b", torch.tensor(4.0))])
    assert history.tensors()["a"].tolist() == [1.0, 3.0]
    assert history.tensors()["b"].nan_to_num(-1.0).tolist() == [-1.0, 4.0]
    assert len(history) == 2


@pytest.mark.parametrize(
    ("losses", "begins"),
    [
        ([1.0, 2.0], ()),
        ([1.0, math.nan], (1,)),
        ([math.inf, 1.0, math.nan, math.nan], (0, 2)),
        ([1.0, None, -math.inf, None, math.nan], (2,)),
        ([None, None], ()),
        ([None, 1.0, None], ()),
        ([], ()),
    ],
)
def test_where_the_loss_is_finite_no_more(losses, begins):
    history = History()
    for loss in losses:
        history.add(None if loss is None else torch.tensor(loss), [])
    assert history.invalid_from() == begins


def test_where_the_loss_is_finite_no_more_among_steps_in_a_row():
    history = History()
    history.add(torch.tensor([1.0, 2.0, 3.0]), [], 3)
    history.add(None, [], 2)
    history.add(torch.tensor([4.0, math.nan, math.inf]), [], 3)
    assert history.invalid_from() == (6,)
    for _ in range(600):  # so many that parts are joined
        history.add(torch.tensor(1.0), [])
    assert history.invalid_from() == (6,)


@pytest.mark.parametrize("every", [2, 300])
def test_many_steps_of_which_some_gave_no_value(every):
    """Their values are joined all the same, where they lie beside each other."""
    history = History()
    for step in range(2000):
        history.add(None if step % every == 0 else torch.tensor(float(step)), [])
    losses = history.tensors()["loss"]
    assert losses.nan_to_num(-1.0).tolist() == [-1.0 if step % every == 0 else float(step) for step in range(2000)]


def test_losses_that_are_whole_numbers_are_finite():
    history = History()
    history.add(torch.tensor(3), [])
    assert history.invalid_from() == ()


def test_values_are_of_a_type_that_holds_them_all():
    values = filled((torch.tensor(1.0).half().item(), [("a", 0)]), (1.0, [("a", 0.75)]))
    assert values["a"].tolist() == [0.0, 0.75]
    history = History()
    history.add(torch.tensor(1.0, dtype=torch.float16), [])
    history.add(torch.tensor(1e6), [])
    assert history.tensors()["loss"].tolist() == [1.0, 1e6]


def test_a_loss_of_several_numbers_is_none():
    history = History()
    history.add(torch.ones(3), [])
    history.add(torch.ones(2, 3), [], 2)
    history.add(torch.tensor([5.0]), [])
    assert history.tensors()["loss"].nan_to_num(-1.0).tolist() == [-1.0, -1.0, -1.0, 5.0]
