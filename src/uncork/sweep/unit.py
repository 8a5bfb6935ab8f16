"""What a worker does: look at a model, or decide a range of its classes. Plain values in and out,
so that any engine can carry them to another process or machine."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from uncork.auditing.run import audit
from uncork.auditing.search.reference import PATIENCE
from uncork.auditing.search.together.iterations import classes_to_count, count_iterations
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import Reading
from uncork.domain import parse_domain
from uncork.loading import find
from uncork.loading.chosen_classes import chosen_classes
from uncork.store.keys import make_key
from uncork.sweep.manifest import RANDOM, Task
from uncork.theory.random_heads import random_head
from uncork.workers.ranges import Decided, packed

# Classes decided in one unit. The same everywhere, so that any engine makes the same units.
UNIT_CLASSES = 16_384
_MARKED_BYTES = 1 << 20  # at either end of a file that holds no head, to know it again
_RANDOM = re.compile(r"random:(normal|uniform),(\d+)x(\d+),seed=(\d+)(,bias)?")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Plan:
    """What a look at a model shows: how it is stored, and how many classes there are to decide."""

    key: str  # of the audit in the store
    fingerprint: str
    classes: int
    features: int
    asked: int
    source: str
    reading: Reading | None


@dataclass(frozen=True)
class Failed:
    """Why a model could not be looked at, or a range of it not decided, in one line.

    An answer like the others, and no exception: what an engine raises is about the engine.
    """

    error: str
    file: str  # known again by this as long as nobody changes it; "" where there is no file


def plan(task: Task) -> Plan | Failed:
    """Load the head and say what is to be done."""
    return _answer(_plan, task)


def decide(task: Task, start: int, stop: int) -> Decided | Failed:
    """Decide the classes from `start` to `stop` of those asked for."""
    # One thread, whatever the engine allows: sums then come out the same wherever they are made.
    with threadpool_limits(1):
        return _answer(_decide, task, start, stop)


def _answer(work: Callable[..., _Answer], task: Task, *args: int) -> _Answer | Failed:
    try:
        return work(task, *args)
    except UncorkError as error:
        said = str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return Failed(" ".join(said.split()), _file_mark(task.source))


def _file_mark(source: str) -> str:
    """A digest of a file's length, beginning and end: weights that cannot be read have none."""
    try:
        if not os.path.isfile(source):
            return ""
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(f"{size}\n".encode() + file.read(_MARKED_BYTES))
            file.seek(max(0, size - _MARKED_BYTES))
            digest.update(file.read(_MARKED_BYTES))
    except OSError:
        return ""
    return f"file:{digest.hexdigest()}"


def _plan(task: Task) -> Plan:
    head, asked = open_head(task)
    return Plan(
        make_key(
            head.fingerprint, head.domain.spec(), "fast",
            bool(task.options.get("approximate")), asked,
        ),
        head.fingerprint,
        head.classes,
        head.features,
        head.classes if asked is None else len(asked),
        head.source,
        head.reading,
    )  # fmt: skip


def _decide(task: Task, start: int, stop: int) -> Decided:
    head, asked = open_head(task)
    every = np.arange(head.classes) if asked is None else asked
    part = every[start:stop]
    options = task.options
    result = audit(
        head,
        classes=part,
        approximate=bool(options.get("approximate")),
        patience=options.get("patience"),
        time_limit=options.get("time_limit"),
        device="cpu",
        jobs=1,
    )
    iterations = None
    if options.get("iterations"):
        counts = count_iterations(head, classes_to_count(result), patience_of(task))
        iterations = tuple(counts[part].tolist())
    return Decided(packed(result, part), head.labels, iterations)


def patience_of(task: Task) -> int:
    """Patience of the reference algorithm whose iterations are counted."""
    return int(task.options.get("patience") or PATIENCE)


def open_head(task: Task) -> tuple[Head, np.ndarray | None]:
    """The head of a task, and the classes asked for: None for all."""
    options = task.options
    vocabulary = None
    if task.source.startswith(RANDOM):
        head = _random(task)
        if options.get("drop_bias"):
            head = head.replace(bias=None)
    else:
        names = ("weight", "bias", "transpose", "drop_bias", "labels", "domain", "base",
                 "metric")  # fmt: skip
        found = find(task.source, **{name: options[name] for name in names if name in options})
        head, vocabulary = found.head, found.vocabulary
    classes = options.get("classes")
    if classes is None:
        return head, None
    asked = np.unique(chosen_classes(classes, head, vocabulary))  # as an audit keeps them
    return head, None if len(asked) == head.classes else asked


def _random(task: Task) -> Head:
    match = _RANDOM.fullmatch(task.source)
    if match is None:
        raise UncorkError(
            f"{task.source!r} is not a random head: expected random:normal,10000x20,seed=0 with "
            ",bias at its end where there is one"
        )
    init, classes, features, seed, bias = match.groups()
    domain = str(task.options.get("domain", "auto")).strip()
    return random_head(
        int(classes), int(features), init, bias is not None, int(seed),
        None if domain == "auto" else parse_domain(domain),  # nothing to be seen precedes it
    )  # fmt: skip
