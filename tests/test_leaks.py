"""The check that guards every other test finds what it should, and lets go what has ended."""

import subprocess
import sys
import threading

import torch

import leaks


@torch.compile
def _compiled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().sum()


def test_finds_a_thread_and_forgets_it_when_it_ends():
    before, stop = leaks.running(), threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler", daemon=True)
    thread.start()
    assert leaks.left_behind(before, seconds=0.1) == ["thread 'straggler' (daemon=True)"]
    stop.set()
    assert leaks.left_behind(before) == []


def test_finds_a_process_and_forgets_it_when_it_ends():
    before = leaks.running()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        (found,) = leaks.left_behind(before, seconds=0.1)
        assert found.startswith(f"process {child.pid}: ")
    assert leaks.left_behind(before) == []


def test_waits_for_a_process_that_is_about_to_end():
    before = leaks.running()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert leaks.left_behind(before) == []
    assert child.wait() == 0


def test_collects_what_ends_with_its_owner():
    class Owner:
        def __init__(self):
            self.stop = threading.Event()
            threading.Thread(target=self.stop.wait).start()
            self.cycle = self

        def __del__(self):
            self.stop.set()

    before = leaks.running()
    Owner()
    assert leaks.left_behind(before) == []


def test_waits_for_the_workers_of_a_loader():
    before = leaks.running()
    assert next(iter(torch.utils.data.DataLoader(range(8), num_workers=1))) == 0
    assert leaks.left_behind(before) == []


def test_lets_the_compilers_of_inductor_be():
    before = leaks.running()
    _compiled(torch.ones(3))
    assert leaks.left_behind(before, seconds=0.1) == []
