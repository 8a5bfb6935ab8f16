"""Bounds on what reading a file may cost: for files made to harm."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOST_MEMORY = 1 << 30
_MOST_SECONDS = 60.0  # no measure of speed: what some of these files ask for never ends


@contextmanager
def bounded() -> Iterator[None]:
    """No more than another gigabyte of memory and a few seconds of work."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_MEMORY, before[1]))
    began = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - began < _MOST_SECONDS
