"""A fetch on another thread computes as the owner of the queue would."""

import threading
from contextlib import nullcontext

import pytest
import torch

from lightning_sink.data.thread_state import ThreadState


def elsewhere(function):
    """Returns what a function gives on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def as_here(state):
    with state.here():
        product = torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)
        made = torch.ones(1).device.type
    return product.dtype, product.requires_grad, made, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()


CONTEXTS = {
    "nothing": (nullcontext, (torch.float32, True, "cpu")),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), (torch.bfloat16, True, "cpu")),
    "no gradients": (torch.no_grad, (torch.float32, False, "cpu")),
    "a device": (lambda: torch.device("meta"), (torch.float32, True, "meta")),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_another_thread_computes_as_this_one(name):
    context, expected = CONTEXTS[name]
    with context():
        state = ThreadState()
    *found, casts, grads = elsewhere(lambda: as_here(state))
    assert tuple(found) == expected
    assert (casts, grads) == (False, True), "the thread is left as it was"


def test_what_autocast_keeps_is_not_forgotten(monkeypatch):
    with torch.autocast("cpu", torch.bfloat16):
        state = ThreadState()
    cleared = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(True))
    elsewhere(lambda: as_here(state))
    assert not cleared


def test_a_gpu_and_its_stream_are_those_of_the_owner(monkeypatch):
    entered, stream = [], object()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda given: entered.append(given) or nullcontext())
    with ThreadState().here():
        assert entered == [stream]
