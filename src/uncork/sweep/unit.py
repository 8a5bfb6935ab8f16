"""What a worker does: look at a model, or decide a range of its classes. Plain values in and out,
so that any engine can carry them to another process or machine."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from uncork.audit.iterations import classes_to_count, count_iterations
from uncork.audit.reference import PATIENCE
from uncork.audit.run import audit
from uncork.chosen_classes import chosen_classes
from uncork.domain import parse_domain
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load import find
from uncork.random_heads import random_head
from uncork.store.keys import make_key
from uncork.sweep.manifest import RANDOM, Task

# Classes decided in one unit. The same everywhere, so that any engine makes the same units.
UNIT_CLASSES = 16_384
_RANDOM = re.compile(r"random:(normal|uniform),(\d+)x(\d+),seed=(\d+)(,bias)?")


@dataclass(frozen=True)
class Plan:
    """What a look at a model shows: how it is stored, and how many classes there are to decide."""

    key: str  # of the audit in the store
    fingerprint: str
    classes: int
    features: int
    asked: int


@dataclass(frozen=True)
class Decided:
    """The answer for one range of classes."""

    certificates: bytes  # a certificate file
    labels: tuple[str, ...] | None  # of all classes
    source: str
    seconds: dict[str, float]
    device: str
    iterations: tuple[int, ...] | None  # of the classes in the range, −1 where not found


def plan(task: Task) -> Plan:
    """Load the head and say what is to be done."""
    head, asked = _open(task)
    return Plan(
        make_key(
            head.fingerprint, head.domain.spec(), "fast",
            bool(task.options.get("approximate")), asked,
        ),
        head.fingerprint,
        head.classes,
        head.features,
        head.classes if asked is None else len(asked),
    )  # fmt: skip


def decide(task: Task, start: int, stop: int) -> Decided:
    """Decide the classes from `start` to `stop` of those asked for."""
    # One thread, whatever the engine allows: sums then come out the same wherever they are made.
    with threadpool_limits(1):
        return _decide(task, start, stop)


def _decide(task: Task, start: int, stop: int) -> Decided:
    head, asked = _open(task)
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
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "unit.npz"
        result.save(file)
        return Decided(
            file.read_bytes(), head.labels, head.source, dict(result.seconds), result.device,
            iterations,
        )  # fmt: skip


def patience_of(task: Task) -> int:
    """Patience of the reference algorithm whose iterations are counted."""
    return int(task.options.get("patience") or PATIENCE)


def _open(task: Task) -> tuple[Head, np.ndarray | None]:
    options = task.options
    vocabulary = None
    if task.source.startswith(RANDOM):
        head = _random(task)
        if options.get("drop_bias"):
            head = head.replace(bias=None)
    else:
        names = ("weight", "bias", "transpose", "drop_bias", "labels", "domain", "base")
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
            f"{task.source!r} is no random head: expected random:normal,10000x20,seed=0 with ,bias "
            "at its end where there is one"
        )
    init, classes, features, seed, bias = match.groups()
    domain = str(task.options.get("domain", "auto")).strip()
    return random_head(
        int(classes), int(features), init, bias is not None, int(seed),
        None if domain == "auto" else parse_domain(domain),  # nothing to be seen precedes it
    )  # fmt: skip
