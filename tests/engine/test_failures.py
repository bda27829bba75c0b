"""Errors of compiled steps have the types of plain training, and say which step they are of."""

import pytest
import torch

from lightning_sink.engine.failures import error_of, note_step, with_type

KINDS = {
    "index.cpp:12, index out of bounds: 0 <= tmp2 < 10L": IndexError,
    "linalg.cholesky: the input is not positive-definite": torch.linalg.LinAlgError,
    "torch.linalg.solve: the input matrix is singular": torch.linalg.LinAlgError,
    "all elements of target should be between 0 and 1": RuntimeError,
}


@pytest.mark.parametrize("message", KINDS)
def test_a_text_becomes_the_error_that_plain_training_raises(message):
    error = error_of(message)
    assert type(error) is KINDS[message]
    assert str(error) in message


def test_only_a_runtime_error_gets_another_type():
    for error in (KeyError("index out of bounds: 1"), RuntimeError("of an operation"), torch.OutOfMemoryError("2 GB")):
        assert with_type(error) is error
    raised = RuntimeError("x.cpp, index out of bounds: 0 <= i < 3")
    assert type(with_type(raised)) is IndexError


def test_the_step_is_noted_behind_other_notes():
    error = ValueError("a word")
    error.__notes__ = ["the user's"]
    note_step(error, "batch 3 of epoch 0")
    assert error.__notes__[0] == "the user's"
    assert "in a compiled step, of batch 3 of epoch 0:" in error.__notes__[1]
