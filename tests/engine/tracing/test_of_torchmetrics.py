"""Functions of torchmetrics give in the mode what they give without it, and refuse what they refuse."""

import ast
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torchmetrics
from torch.overrides import TorchFunctionMode
from torchmetrics import functional as F
from torchmetrics.utilities import compute, data

from lightning_sink.engine import private
from lightning_sink.engine.tracing.stand_in import StandInMode

GENERATOR = torch.Generator().manual_seed(1)
LOGITS = torch.randn(24, 4, generator=GENERATOR)
CLASSES = torch.randint(0, 4, (24,), generator=GENERATOR)
LABELS, FEW = LOGITS.argmax(1), {"task": "multiclass", "num_classes": 4}
TRUTHS, MANY = (CLASSES > 1).long(), {"task": "multilabel", "num_labels": 4}
OF_MANY = torch.nn.functional.one_hot(CLASSES, 4)
NOT_A_NUMBER = torch.where(torch.arange(24) == 3, float("nan"), LOGITS[:, 0].sigmoid())

FUNCTIONS = {
    "accuracy of classes": lambda: F.accuracy(LABELS, CLASSES, **FEW),
    "accuracy of images": lambda: F.accuracy(LABELS.view(2, 3, 4), CLASSES.view(2, 3, 4), **FEW),
    "accuracy of scores": lambda: F.accuracy(LOGITS, CLASSES, **FEW),
    "average accuracy": lambda: F.accuracy(LABELS, CLASSES, average="macro", **FEW),
    "accuracy but for a class": lambda: F.accuracy(LABELS, CLASSES, ignore_index=2, **FEW),
    "f1": lambda: F.f1_score(LABELS, CLASSES, average="macro", **FEW),
    "confusion": lambda: F.confusion_matrix(LABELS, CLASSES, **FEW),
    "jaccard": lambda: F.jaccard_index(LABELS, CLASSES, **FEW),
    "accuracy of truths": lambda: F.accuracy(LABELS > 1, TRUTHS, task="binary"),
    "accuracy of whole truths": lambda: F.accuracy((LABELS > 1).long(), TRUTHS, task="binary"),
    "accuracy of probabilities": lambda: F.accuracy(LOGITS[:, 0].sigmoid(), TRUTHS, task="binary"),
    "accuracy of no probabilities": lambda: F.accuracy(LOGITS[:, 0], TRUTHS, task="binary"),
    "accuracy with a NaN": lambda: F.accuracy(NOT_A_NUMBER, TRUTHS, task="binary"),
    "f1 of several truths": lambda: F.f1_score(LOGITS, OF_MANY, **MANY),
    "precision by thresholds": lambda: F.average_precision(LOGITS[:, 0], TRUTHS, task="binary", thresholds=5),
    "calibration": lambda: F.calibration_error(LOGITS[:, 0].sigmoid(), TRUTHS, task="binary"),
    "rank correlation": lambda: F.kendall_rank_corrcoef(LOGITS[:, 0], LOGITS[:, 1]),
    "similarity": lambda: F.cosine_similarity(LOGITS, LOGITS + 1),
}
WRONG = {
    "classes": lambda: F.accuracy(LABELS, torch.arange(24), **FEW),
    "classes of predictions": lambda: F.accuracy(torch.arange(24), CLASSES, **FEW),
    "a class": lambda: F.f1_score(torch.where(LABELS == 0, 9, LABELS), CLASSES, average="macro", **FEW),
    "truths": lambda: F.accuracy(LABELS > 1, CLASSES, task="binary"),
    "whole truths of predictions": lambda: F.accuracy(LABELS, TRUTHS, task="binary"),
    "several truths": lambda: F.f1_score(LOGITS, OF_MANY * 2, **MANY),
}


class Sees(TorchFunctionMode):
    """Takes note of the names of functions that look at a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def in_mode(function):
    with Sees() as below, StandInMode(lambda tensor, caller: None, None, nullcontext):
        return function(), below.seen


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_what_they_give(name):
    found, _ = in_mode(FUNCTIONS[name])
    torch.testing.assert_close(found, FUNCTIONS[name](), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WRONG)
def test_what_they_refuse_is_an_error(name):
    with pytest.raises(RuntimeError) as expected:
        WRONG[name]()
    with pytest.raises(RuntimeError) as found:
        in_mode(WRONG[name])
    assert str(found.value)[:40] == str(expected.value)[:40]


def test_others_are_called_as_they_are():
    found, _ = in_mode(lambda: (torch.unique(CLASSES), torch.bincount(CLASSES, minlength=2), bool(CLASSES.any())))
    assert len(found[0]) == 4
    assert len(found[1]) == 4
    assert found[2] is True


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_names_of_torchmetrics_are_there(kind):
    said = "torchmetrics has moved a private name that `engine/tracing/of_torchmetrics.py` goes by"
    stat_scores = import_module("torchmetrics.functional.classification.stat_scores")
    assert hasattr(stat_scores, f"_{kind}_stat_scores{private.TORCHMETRICS_CHECKS}"), said
    assert hasattr(compute, private.TORCHMETRICS_NORMALIZES), said
    assert hasattr(data, private.TORCHMETRICS_COUNTS), said


def checks():
    """The checks of torchmetrics, as they are written."""
    for path in Path(torchmetrics.__file__).parent.rglob("*.py"):
        if private.TORCHMETRICS_CHECKS in (text := path.read_text()):
            nodes = ast.walk(ast.parse(text))
            yield from (node for node in nodes if isinstance(node, ast.FunctionDef) and is_check(node.name))


def is_check(name):
    return name.endswith(private.TORCHMETRICS_CHECKS)


def asks_for_a_value(test):
    return "torch." in (text := ast.unparse(test)) or text == "check" or "unique" in text


def test_all_that_checks_ask_of_values_is_whether_to_raise_an_error():
    asked = [node for check in checks() for node in ast.walk(check) if isinstance(node, ast.If)]
    asked = [node for node in asked if asks_for_a_value(node.test)]
    assert len(asked) > 10
    for node in asked:
        assert isinstance(node.body[0], ast.Raise), ast.unparse(node)
        assert not node.orelse, ast.unparse(node)
        assert not isinstance(node.test, ast.UnaryOp), ast.unparse(node)
