"""Rows shared out over threads: one parallel region a call, however many steps a row takes.

torch runs every operation as a parallel region of its own, which ends when the last thread does. A
row's threshold takes dozens of short ones, and beside a busy neighbour each of them waits for a
thread that is not running. Here a call's rows are cut into pieces that stay in a core's cache, and
each thread takes piece after piece through all steps by itself: who is held up takes fewer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

from uncork.nn._torch import torch

# torch runs an operation on fewer elements than these in the calling thread.
SERIAL_BELOW = 1 << 15
_PIECES_EACH = 4  # at least: a thread that is held up leaves the rest of its share to the others
_SMALLEST = 1 << 18  # elements of a piece: calling torch takes its time, one thread after the other
_MOST_THREADS = 32  # Python takes turns between operations: more would wait for it

#: False leaves every operation to torch's own threads; `benchmarks/nn_load.py` compares the two
shared_out = True

_here = threading.local()  # .alone: this thread is one of ours, with one thread to itself
_lock = threading.Lock()
_queue: SimpleQueue[Any] = SimpleQueue()
_started = 0


def over_rows(work: Callable[[slice], None], rows: int, width: int) -> None:
    """Call `work` with slices that cover `rows` rows of `width` elements, on several threads.

    `work` reads and writes plain CPU tensors; gradients are not recorded in it, and it sees no
    autocast. It may call `over_rows` itself: that one runs where it is.
    """
    threads = min(torch.get_num_threads(), _MOST_THREADS)
    alone = threads == 1 or not shared_out or getattr(_here, "alone", False)
    pieces = _pieces(rows, width, 1 if alone else threads)
    if alone or rows * width < SERIAL_BELOW:
        # Off is said only where it is on: saying it takes as long as a few operations.
        quiet = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else None
        with quiet or nullcontext():
            for piece in pieces:
                work(piece)
        return
    _Call(work, pieces, min(threads, len(pieces))).run()


def _pieces(rows: int, width: int, threads: int) -> list[slice]:
    """Slices of whole rows, a few for each thread."""
    if threads == 1:
        return [slice(0, rows)] if rows else []
    elements = max(rows * width // (_PIECES_EACH * threads), _SMALLEST)
    elements = min(elements, max(rows * width // threads, SERIAL_BELOW))
    step = max(1, -(-elements // max(1, width)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class _Call:
    """Pieces of one call, and how many threads are still at them."""

    def __init__(self, work: Callable[[slice], None], pieces: list[slice], threads: int) -> None:
        self.work, self.threads = work, threads
        self.inference = torch.is_inference_mode_enabled()
        self.left = iter(pieces)
        self.at_work = threads
        self.lock = threading.Lock()
        self.done = threading.Lock()  # held until the last thread has finished
        self.error: BaseException | None = None

    def run(self) -> None:
        _start(self.threads)
        self.done.acquire()
        for _ in range(self.threads):
            _queue.put(self)
        self.done.acquire()
        if self.error is not None:
            raise self.error

    def take(self) -> None:
        """What one thread does of it."""
        try:
            # Tensors made in inference mode can be written to in inference mode only.
            with torch.inference_mode() if self.inference else torch.no_grad():
                while self.error is None:
                    with self.lock:
                        piece = next(self.left, None)
                    if piece is None:
                        break
                    self.work(piece)
        except BaseException as error:
            self.error = error
        with self.lock:
            self.at_work -= 1
            last = self.at_work == 0
        if last:
            self.done.release()


def _start(threads: int) -> None:
    """Have at least so many threads; they stay."""
    global _started
    if _started >= threads:
        return
    with _lock:
        if _started >= threads:
            return
        before = torch.get_num_threads()
        ready = threading.Barrier(threads - _started + 1)
        for _ in range(_started, threads):
            threading.Thread(target=_serve, args=(_queue, ready), daemon=True).start()
        ready.wait()
        # Each told torch that it has one thread, which torch would hand on to threads yet to come:
        # those are to have as many as before.
        torch.set_num_threads(before)
        _started = threads


def _forget() -> None:
    """In a process that was forked: the threads stayed behind."""
    global _started, _queue, _lock
    _started, _queue, _lock = 0, SimpleQueue(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _serve(queue: SimpleQueue[Any], ready: threading.Barrier) -> None:
    _here.alone = True
    torch.get_num_threads()  # the first to ask is given as many as all: asked before it is told
    torch.set_num_threads(1)  # for this thread
    ready.wait()
    del ready
    while True:
        call = queue.get()
        call.take()
        del call  # and with it the caller's tensors
