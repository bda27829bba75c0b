"""The engine waits for a GPU where the user's steps may not, and puts that back."""

import pytest
import torch

from lightning_sink.engine.waits import may_wait


@pytest.fixture
def mode(monkeypatch):
    kept = [2]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: kept[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", kept.append)
    return kept


def test_it_waits_for_a_while(mode):
    with may_wait():
        assert mode[-1] == 0
    assert mode == [2, 0, 2]


def test_it_is_put_back_behind_an_error(mode):
    waiting = may_wait()
    waiting.__enter__()
    assert not waiting.__exit__(LookupError, LookupError(), None)
    assert mode == [2, 0, 2]


def test_control_where_waiting_is_allowed_nothing_is_set(mode):
    mode[:] = [0]
    with may_wait():
        pass
    assert mode == [0]
