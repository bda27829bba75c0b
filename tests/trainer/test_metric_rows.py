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
    "accuracy among two": (lambda: classes.MulticlassAccuracy(4, top_k=2), scores, labels),
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


def values_of(calls, columns, sources):
    found = repeat_in_row(calls, columns, sources, STEPS)
    assert (found.done, found.error) == (STEPS, None)
    return found.values


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
    found = values_of([calls[1]], columns, [None, *sources])
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
    all_, each = values_of(calls, [*columns, *columns], sources)
    assert all_.shape == (STEPS,)
    assert len(each) == STEPS
    assert each[3].shape == (4,)
    torch.testing.assert_close(all_, (columns[0].argmax(2) == columns[1]).float().mean(1))
    assert of_all._forward_cache == all_[-1]
    updated = classes.MulticlassAccuracy(4)
    (nothing,) = values_of([call_of(updated, "update", 2)], columns, [Source(1, metric=Same(updated))])
    assert nothing == [None] * STEPS


@pytest.mark.parametrize("where", [0, 1, STEPS - 1])
@pytest.mark.parametrize("method", ["update", "forward"])
@pytest.mark.parametrize("make", [
    lambda: (classes.BinaryAccuracy(), shares),
    lambda: (classes.MulticlassAccuracy(4, validate_args=False), scores),
    lambda: (classes.MulticlassAccuracy(4, top_k=2, validate_args=False), scores),
    lambda: (classes.MulticlassConfusionMatrix(4, validate_args=False), scores),
], ids=["checked", "counted", "one-hot", "confused"])  # fmt: skip
def test_a_wrong_value_is_the_error_of_its_step(make, method, where):
    (plain, kind), (rows, _) = make(), make()
    columns = [torch.stack([kind() for _ in range(STEPS)]), torch.stack([flags() for _ in range(STEPS)])]
    columns[1][where, 0] = 77
    for step in range(where):
        getattr(plain, method)(*(column[step] for column in columns))
    with pytest.raises(RuntimeError) as expected:
        getattr(plain, method)(*(column[where] for column in columns))
    found = repeat_in_row([call_of(rows, method, 2)], columns, [None, Source(1, metric=Same(rows))], STEPS)
    assert found.done == where == len(found.values[1])
    assert (type(found.error), str(found.error)) == (expected.type, str(expected.value))
    assert torch.equal(
        rows.tp if hasattr(rows, "tp") else rows.confmat, plain.tp if hasattr(plain, "tp") else plain.confmat
    )
    assert rows.validate_args == plain.validate_args


@pytest.mark.parametrize("steps", [STEPS, 2])
def test_an_error_of_the_first_step_is_its_own(steps):
    columns = [torch.stack([shares() for _ in range(steps)]), torch.stack([flags() for _ in range(steps)])]
    columns[1][0, 0] = 7
    refuses = classes.BinaryAccuracy()
    sources = [None, Source(1, leaf=0), Source(1, metric=Same(refuses))]
    found = repeat_in_row([call_of(refuses, "forward", 2)], columns, sources, steps)
    assert "Detected the following values" in str(found.error)
    assert (found.values, found.done) == ([None, [], []], 0)


def test_behind_an_error_other_calls_are_made_for_the_steps_before_it():
    columns = [torch.stack([shares() for _ in range(STEPS)]), torch.stack([flags() for _ in range(STEPS)])]
    columns[1][9, 0] = 7
    refuses, mean = classes.BinaryAccuracy(), aggregation.MeanMetric()
    calls = [call_of(refuses, "update", 2), call_of(mean, "forward", 1)]
    found = repeat_in_row(calls, [*columns, torch.arange(float(STEPS))], [Source(2, leaf=0)], STEPS)
    assert found.done == 9
    assert torch.equal(found.values[0], torch.arange(9.0))
    assert refuses._update_count == mean._update_count + 1 == 10  # it is counted before it is looked at


class Reads(torchmetrics.Metric):
    """A user's, that computes with what another one, which is no part of it, holds by then."""

    def __init__(self, other):
        super().__init__()
        self.others = [other]
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, value):
        self.total += value * self.others[0].sum_value

    def compute(self):
        return self.total


def test_a_users_metric_may_read_another_one():
    values = torch.rand(STEPS)

    def made(repeats):
        total = aggregation.SumMetric()
        reads = Reads(total)
        repeats([call_of(total, "update", 1), call_of(reads, "update", 1)])
        return reads.total

    def plainly(calls):
        for value in values:
            for call in calls:
                call.repeat([value])

    expected, found = made(plainly), made(lambda calls: values_of(calls, [values, values], []))
    assert torch.equal(expected, found)


def test_sums_of_floats_are_added_in_their_order():
    values = 100 + torch.rand(STEPS)
    plain, rows = aggregation.SumMetric(), aggregation.SumMetric()
    for value in values:
        plain.update(value)
    values_of([call_of(rows, "update", 1)], [values], [])
    assert torch.equal(plain.sum_value, rows.sum_value)


def test_what_is_large_is_not_made_at_once(at_once):
    columns = [torch.stack([scores() for _ in range(STEPS)]), torch.stack([labels() for _ in range(STEPS)])]
    values_of([call_of(classes.MulticlassConfusionMatrix(200), "update", 2)], [columns[1], columns[1]], [])
    assert not at_once
    values_of([call_of(classes.MulticlassConfusionMatrix(4), "update", 2)], columns, [])
    assert at_once == [True]


def test_what_was_refused_is_not_tried_again(at_once):
    make, *kinds = ONE_BY_ONE["ignores a class"]
    metric, columns = make(), [torch.stack([kind() for _ in range(STEPS)]) for kind in kinds]
    for _ in range(3):
        values_of([call_of(metric, "update", 2)], columns, [])
    assert at_once == [False]


def test_control_without_a_look_at_decisions_a_metric_is_another(monkeypatch):
    make, *kinds = ONE_BY_ONE["logits in some steps"]
    torch.manual_seed(5)
    columns = [torch.stack([kind() for _ in range(STEPS)]) for kind in kinds]
    columns[0][0] -= columns[0][0].floor() + 1  # logits, as all are taken to be then
    plain, rows = make(), make()
    for step in range(STEPS):
        plain.update(*(column[step] for column in columns))
    monkeypatch.setattr(metric_vmap, "as_decided", lambda asked, decided: True)
    values_of([call_of(rows, "update", 2)], columns, [])
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
    before, behind, computed = values_of(calls, [values, 2 * values], sources)
    assert before == [item[0] for item in expected]
    torch.testing.assert_close(behind, torch.stack([item[1] for item in expected]))
    torch.testing.assert_close(computed, torch.stack([item[2] for item in expected]))
    assert_same(plain, rows)


def test_a_metric_that_is_logged_before_its_call_is_logged_as_the_step_before_left_it():
    values = torch.rand(STEPS)
    metric = aggregation.MeanMetric()
    (found,) = values_of([call_of(metric, "forward", 1)], [values], [Source(0, metric=Same(metric))])
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
    values_of([call_of(rows, "update", 2)], columns, [])
    assert at_once == [True]
    assert_same(plain, rows)
