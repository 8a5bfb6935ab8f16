"""Graphs in a child process, which is started anew where the run-time itself dies on one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from fuzz_domains.hold import Count

Hold = Callable[[int, Count], None]


def held(seeds: range, hold: Hold) -> Iterator[Count]:
    """What each graph showed, one after the other; one that ended its process counts as crashed."""
    context = multiprocessing.get_context("spawn")
    while seeds:
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(seeds, hold, send), daemon=True)
        child.start()
        send.close()  # the child's end alone stays open, and closes with it
        try:
            while seeds:
                count = receive.recv()
                seeds = seeds[1:]
                yield count
        except EOFError:
            child.join()
            if not child.exitcode or child.exitcode > 0:  # not a signal: an error of our own
                raise RuntimeError(
                    f"seed {seeds[0]}: the child ended with {child.exitcode}"
                ) from None
            yield Count(graphs=1, crashed=[seeds[0]])
            seeds = seeds[1:]
        finally:
            if not seeds:
                child.join()
            elif child.is_alive():
                child.terminate()


def _work(seeds: range, hold: Hold, send: Connection) -> None:
    for seed in seeds:
        count = Count()
        hold(seed, count)
        send.send(count)
