"""Calls of metrics for steps in a row leave and return what they do one after another."""

import copy

import pytest
import torch
import torchmetrics
from torchmetrics import MetricCollection, aggregation, regression
from torchmetrics import classification as classes

from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.attributes import Same
from lightning_sink.trainer import metric_rows, metric_vmap
from lightning_sink.trainer.metric_rows import repeat_in_row
from lightning_sink.trainer.metrics import _TENSOR, MetricCall, Source

STEPS = 24


def scores():
    return torch.randn(8, 4)


def labels():
    return torch.randint(0, 4, (8,))


def flags():
    return torch.randint(0, 2, (8,))


def shares():
    return torch.rand(8)


def numbers():
    return torch.randn(8)


def number():
    return torch.rand(())


class Own(torchmetrics.Metric):
    """A user's, whose state is a sum like any other."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, values):
        self.total += values.sum()

    def compute(self):
        return self.total


AT_ONCE = {
    "accuracy": (lambda: classes.MulticlassAccuracy(4, average="micro"), scores, labels),
    "accuracy by class": (lambda: classes.MulticlassAccuracy(4), scores, labels),
    "accuracy of each class": (lambda: classes.MulticlassAccuracy(4, average=None), scores, labels),
    "accuracy of classes": (lambda: classes.MulticlassAccuracy(4), labels, labels),
    "accuracy among two": (lambda: classes.MulticlassAccuracy(4, top_k=2), scores, labels),
    "F1": (lambda: classes.MulticlassF1Score(4), scores, labels),
    "of pixels": (
        lambda: classes.MulticlassAccuracy(4),
        lambda: torch.randn(3, 4, 5),
        lambda: torch.randint(0, 4, (3, 5)),
    ),
    "confusion": (lambda: classes.MulticlassConfusionMatrix(4), scores, labels),
    "Jaccard": (lambda: classes.MulticlassJaccardIndex(4), scores, labels),
    "binary": (classes.BinaryAccuracy, shares, flags),
    "binary of logits": (classes.BinaryAccuracy, lambda: 3 * numbers(), flags),
    "binary of flags": (classes.BinaryF1Score, flags, flags),
    "several labels": (
        lambda: classes.MultilabelAccuracy(3),
        lambda: torch.rand(8, 3),
        lambda: torch.randint(0, 2, (8, 3)),
    ),
    "area, in bins": (lambda: classes.BinaryAUROC(thresholds=5), shares, flags),
    "squares": (regression.MeanSquaredError, numbers, numbers),
    "distances": (regression.MeanAbsoluteError, numbers, numbers),
    "mean": (aggregation.MeanMetric, number),
    "weighted mean": (aggregation.MeanMetric, number, number),
    "sum": (aggregation.SumMetric, numbers),
    "collection": (
        lambda: MetricCollection(
            [
                classes.MulticlassPrecision(4),
                classes.MulticlassRecall(4),
                classes.MulticlassAccuracy(4, average="micro"),
            ],
            prefix="train_",
        ),
        scores,
        labels,
    ),
    "collection without groups": (
        lambda: MetricCollection(
            {"a": classes.MulticlassPrecision(4), "b": classes.MulticlassRecall(4)}, compute_groups=False
        ),
        scores,
        labels,
    ),
    "a type of its own": (lambda: regression.MeanSquaredError().set_dtype(torch.float64), numbers, numbers),
}
ONE_BY_ONE = {
    "ignores a class": (lambda: classes.MulticlassAccuracy(4, ignore_index=1), scores, labels),
    "keeps all": (aggregation.CatMetric, numbers),
    "largest": (aggregation.MaxMetric, number),
    "area": (lambda: classes.BinaryAUROC(thresholds=None), shares, flags),
    "half precision": (lambda: regression.MeanSquaredError().set_dtype(torch.bfloat16), numbers, numbers),
    "user's": (Own, numbers),
    "wrapped": (
        lambda: torchmetrics.wrappers.ClasswiseWrapper(classes.MulticlassAccuracy(4, average=None)),
        scores,
        labels,
    ),
    "of two": (lambda: classes.MulticlassAccuracy(4) + classes.MulticlassRecall(4), scores, labels),
    "logits in some steps": (
        classes.BinaryAccuracy,
        lambda: 0.4 * torch.rand(8) - torch.randint(0, 2, ()),
        flags,
    ),
}


def call_of(metric, method, count):
    _, spec = pytree.tree_flatten(((0,) * count, {}))
    return MetricCall(Same(metric), method, (_TENSOR,) * count, spec, True, "cpu", None)


def metrics_of(metric):
    return [item for item in metric.modules() if isinstance(item, torchmetrics.Metric)]


def raises(error, step):
    raise AssertionError(f"step {step}") from error


@pytest.fixture
def at_once(monkeypatch):
    """Whether calls were made at once, in order."""
    made, original = [], metric_rows.made_at_once

    def make(*arguments):
        found = original(*arguments)
        made.append(found is not None)
        return found

    monkeypatch.setattr(metric_rows, "made_at_once", make)
    return made


def assert_same(one, other):
    for expected, found in zip(metrics_of(one), metrics_of(other), strict=True):
        assert set(vars(expected)) == set(vars(found))
        for name, value in vars(expected).items():
            alike = vars(found)[name]
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(alike, value, msg=name)
            elif isinstance(value, (bool, int, float, type(None))):
                assert alike == value, name
        if expected._update_count:
            torch.testing.assert_close(found.compute(), expected.compute(), equal_nan=True)


@pytest.mark.parametrize("method", ["update", "forward"])
@pytest.mark.parametrize("about", [*AT_ONCE, *ONE_BY_ONE])
def test_rows_of_calls_are_calls_one_after_another(about, method, at_once):
    make, *kinds = {**AT_ONCE, **ONE_BY_ONE}[about]
    torch.manual_seed(5)
    columns = [torch.stack([kind() for _ in range(STEPS)]) for kind in kinds]
    plain, rows = make(), make()
    calls = [call_of(metric, method, len(kinds)) for metric in (plain, rows)]
    for call in calls:  # in a training, some steps were trained one by one before
        call.repeat([column[0] for column in columns])
    returned = [calls[0].repeat([column[step] for column in columns]) for step in range(STEPS)]
    are_numbers = [isinstance(leaf, torch.Tensor) and leaf.numel() == 1 for leaf in returned[0]]
    sources = [Source(1, leaf=index) for index, is_number in enumerate(are_numbers) if is_number]
    found = repeat_in_row([calls[1]], columns, [None, *sources], STEPS, raises)
    assert any(at_once) == (about in AT_ONCE)
    assert found[0] is None
    for source, values in zip(sources, found[1:], strict=True):
        assert values.shape == (STEPS,)
        torch.testing.assert_close(values, torch.stack([leaves[source.leaf].reshape(()) for leaves in returned]))
    assert_same(plain, rows)


def test_what_a_metric_measured_in_each_step_is_told():
    columns = [torch.stack([scores() for _ in range(STEPS)]), torch.stack([labels() for _ in range(STEPS)])]
    of_all, of_each = classes.MulticlassAccuracy(4, average="micro"), classes.MulticlassAccuracy(4, average=None)
    calls = [call_of(of_all, "forward", 2), call_of(of_each, "forward", 2)]
    sources = [Source(2, metric=Same(of_all)), Source(2, metric=Same(of_each))]
    all_, each = repeat_in_row(calls, [*columns, *columns], sources, STEPS, raises)
    assert all_.shape == (STEPS,)
    assert len(each) == STEPS
    assert each[3].shape == (4,)
    torch.testing.assert_close(all_, (columns[0].argmax(2) == columns[1]).float().mean(1))
    assert of_all._forward_cache == all_[-1]
    updated = classes.MulticlassAccuracy(4)
    (nothing,) = repeat_in_row(
        [call_of(updated, "update", 2)], columns, [Source(1, metric=Same(updated))], STEPS, raises
    )
    assert nothing == [None] * STEPS


@pytest.mark.parametrize("where", [0, 1, STEPS - 1])
@pytest.mark.parametrize("method", ["update", "forward"])
def test_a_wrong_value_is_the_error_of_its_step(method, where):
    columns = [
        torch.stack([shares() for _ in range(STEPS)]),
        torch.stack([flags() for _ in range(STEPS)]),
    ]
    columns[1][where, 0] = 7
    plain, rows, told = classes.BinaryAccuracy(), classes.BinaryAccuracy(), []
    for step in range(where):
        getattr(plain, method)(*(column[step] for column in columns))
    before = plain.tp.clone()
    with pytest.raises(RuntimeError) as expected:
        getattr(plain, method)(*(column[where] for column in columns))
    with pytest.raises(RuntimeError) as found:
        repeat_in_row([call_of(rows, method, 2)], columns, [], STEPS, lambda error, step: told.append((error, step)))
    assert str(found.value) == str(expected.value)
    assert told == [(found.value, where)]
    assert torch.equal(rows.tp, before) or method == "forward", "`forward` begins anew before it looks at its arguments"
    assert torch.equal(rows.tp, plain.tp)
    assert rows.validate_args


def test_control_without_a_look_at_decisions_a_metric_is_another(monkeypatch):
    make, *kinds = ONE_BY_ONE["logits in some steps"]
    torch.manual_seed(5)
    columns = [torch.stack([kind() for _ in range(STEPS)]) for kind in kinds]
    columns[0][0] -= columns[0][0].floor() + 1  # logits, as all are taken to be then
    plain, rows = make(), make()
    for step in range(STEPS):
        plain.update(*(column[step] for column in columns))
    monkeypatch.setattr(metric_vmap, "as_decided", lambda asked, decided: True)
    repeat_in_row([call_of(rows, "update", 2)], columns, [], STEPS, raises)
    assert rows._update_count == plain._update_count
    assert not torch.equal(rows.tp, plain.tp)


def test_calls_that_share_a_metric_are_made_in_their_order():
    values = torch.rand(STEPS)
    plain, rows = aggregation.MeanMetric(), aggregation.MeanMetric()
    expected = []
    for value in values:
        before = plain._forward_cache
        plain(value)
        plain.update(2 * value)
        expected.append((before, plain._forward_cache, plain.compute()))
        plain.reset()
    calls = [call_of(rows, "forward", 1), call_of(rows, "update", 1)]
    calls += [call_of(rows, "compute", 0), call_of(rows, "reset", 0)]
    sources = [Source(0, metric=Same(rows)), Source(2, metric=Same(rows)), Source(3, leaf=0)]
    before, behind, computed = repeat_in_row(calls, [values, 2 * values], sources, STEPS, raises)
    assert before == [item[0] for item in expected]
    torch.testing.assert_close(behind, torch.stack([item[1] for item in expected]))
    torch.testing.assert_close(computed, torch.stack([item[2] for item in expected]))
    assert_same(plain, rows)


def test_a_metric_that_is_logged_before_its_call_is_logged_as_the_step_before_left_it():
    values = torch.rand(STEPS)
    metric = aggregation.MeanMetric()
    (found,) = repeat_in_row([call_of(metric, "forward", 1)], [values], [Source(0, metric=Same(metric))], STEPS, raises)
    assert found[0] is None
    assert torch.equal(torch.stack(found[1:]), values[:-1])


def test_a_metric_that_cannot_be_made_at_once_is_as_it_was(at_once):
    make, *kinds = ONE_BY_ONE["ignores a class"]
    metric = make()
    columns = [torch.stack([kind() for _ in range(STEPS)]) for kind in kinds]
    metric.update(*(column[0] for column in columns))
    before = copy.deepcopy(metric)
    call = call_of(metric, "update", 2)
    assert metric_vmap.made_at_once(call, metric_vmap.addable(call, columns), columns, STEPS, []) is None
    assert_same(before, metric)


def test_chunks_of_few_steps_are_added_up_like_one(monkeypatch, at_once):
    monkeypatch.setattr(metric_vmap, "_CHUNK", 500)
    columns = [torch.stack([scores() for _ in range(STEPS)]), torch.stack([labels() for _ in range(STEPS)])]
    plain, rows = classes.MulticlassAccuracy(4), classes.MulticlassAccuracy(4)
    for step in range(STEPS):
        plain.update(*(column[step] for column in columns))
    repeat_in_row([call_of(rows, "update", 2)], columns, [], STEPS, raises)
    assert at_once == [True]
    assert_same(plain, rows)
