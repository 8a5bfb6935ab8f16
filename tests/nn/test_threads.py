"""Rows shared out over threads: the same results, and nothing about torch's threads changes."""

import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import uncork.nn.functional as F  # noqa: E402
from uncork.nn import _threads  # noqa: E402

ROWS, CLASSES = 96, 1024  # three times what torch runs in the calling thread
TARGET = torch.arange(ROWS) * 7 % CLASSES
FUNCTIONS = {
    "sparsemax": F.sparsemax,
    "entmax 1.25": lambda z: F.entmax(z, 1.25),
    "entmax 1.5": F.entmax,
    "entmax 3": lambda z: F.entmax(z, 3.0),
    "entmax by row": lambda z: F.entmax(z, torch.linspace(1.1, 2.5, ROWS)[:, None]),
    "alpha_relu": lambda z: F.alpha_relu(z, 1.5, 0.2),
    "alpha_relu 3": lambda z: F.alpha_relu(z, 3.0, 0.2),
    "normmax": F.normmax,
    "budget": F.budget,
    "entmax_loss": lambda z: F.entmax_loss(z, TARGET, reduction="none"),
    "entmax_loss by row": lambda z: F.entmax_loss(
        z, TARGET, alpha=torch.linspace(1.1, 2.0, ROWS), reduction="none"
    ),
    "entmax_loss soft": lambda z: F.entmax_loss(z, torch.full_like(z, 1 / CLASSES)),
    "alpha_relu_loss": lambda z: F.alpha_relu_loss(z, TARGET, tau=0.2, reduction="none"),
}


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def logits():
    z = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0))
    # Flat rows and peaked ones among them.
    return (z * torch.logspace(-2, 1, ROWS)[:, None]).requires_grad_()


def value_and_gradient(function):
    z = logits()
    value = function(z)
    value.square().sum().backward()
    return value.detach(), z.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_three_threads_compute_what_one_does(name):
    found = value_and_gradient(FUNCTIONS[name])
    torch.set_num_threads(1)
    torch.testing.assert_close(found, value_and_gradient(FUNCTIONS[name]))


def test_every_row_is_taken_once_and_by_a_thread_that_torch_leaves_alone():
    taken, threads, lock = torch.zeros(10, dtype=torch.int64), set(), threading.Lock()

    def work(rows):
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        with lock:
            threads.add(threading.get_ident())
        taken[rows] += 1
        _threads.over_rows(nested, 4, _threads.SERIAL_BELOW)

    def nested(rows):
        assert threading.get_ident() in threads
        assert rows == slice(0, 4)

    _threads.over_rows(work, 10, _threads.SERIAL_BELOW)
    assert taken.tolist() == [1] * 10
    assert threading.get_ident() not in threads


def test_few_elements_stay_in_the_calling_thread():
    seen = []
    _threads.over_rows(lambda rows: seen.append(threading.get_ident()), 10, 8)
    assert seen == [threading.get_ident()]


def test_other_threads_keep_the_number_they_would_have_had():
    F.entmax(logits())
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *found] == [3, 3]


def test_an_error_reaches_the_caller_and_the_threads_live_on():
    def work(rows):
        raise ArithmeticError("in a thread")

    for _ in range(2):
        with pytest.raises(ArithmeticError, match="in a thread"):
            _threads.over_rows(work, 10, _threads.SERIAL_BELOW)
    assert float(F.entmax(logits().detach()).sum()) == pytest.approx(ROWS, rel=1e-4)


def test_inference_mode_is_that_of_the_caller():
    with torch.inference_mode():
        z = logits().detach().clone()
        assert F.entmax(z).is_inference()
        assert F.alpha_relu(z).is_inference()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs fork")
def test_a_forked_process_starts_threads_of_its_own():
    # In a process of its own: what else a test's process has running may not survive a fork.
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "3"), done.stderr


FORKING = """
import os, torch
from uncork.nn import _threads

torch.set_num_threads(3)
_threads.over_rows(lambda rows: None, 6, _threads.SERIAL_BELOW)
child = os.fork()
if not child:
    done = []
    _threads.over_rows(done.append, 6, _threads.SERIAL_BELOW)
    os.write(1, b"%d" % len(done))
    os._exit(0)
os.waitpid(child, 0)
"""
