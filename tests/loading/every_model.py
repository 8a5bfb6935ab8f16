"""Every model class of transformers against what the loader makes of its folder: `make models`.

A class agrees where the head that was found ranks the classes as the model itself does, at the
inputs that really arrived, and all of these inputs lie in the domain that was found; in the saved
folder and in the live model alike. What cannot be built small, what the loader refuses and what has
no domain is listed with the reason in model_classes.toml, and that list may only shrink.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_models import Made, NotBuiltError, architecture, make, registry, same_order

from uncork import UncorkError
from uncork.loading import find

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

LISTED = Path(__file__).with_name("model_classes.toml")
TOLERANCE = 1e-4  # of inputs computed in float32
_SECONDS = 60
_MOST_MEMORY = 14 << 30


@dataclass(frozen=True)
class Outcome:
    """`kind`: "not built", "refused", "wrong", "no domain" or "agrees"; why, in words."""

    kind: str
    why: str = ""


def listed() -> dict[str, dict[str, str]]:
    """What is listed: kind of outcome → class → reason."""
    with LISTED.open("rb") as file:
        return tomllib.load(file)


def expected(name: str) -> str:
    """The kind of outcome that the list announces for a class."""
    return next((kind for kind, names in listed().items() if name in names), "agrees")


def outcome(name: str, folder: Path, **options: Any) -> Outcome:
    """Build a class, save it, load it, and compare."""
    try:
        made = make(name, **options)
        made.save(folder)
    except Exception as error:  # whatever it is, the class was not built
        return Outcome("not built", _line(error))
    return compare(made, folder)


def compare(made: Made, folder: Path) -> Outcome:
    """What the loader makes of the folder and of the live model, against what the model did."""
    found = [_compared(made, source) for source in (folder, made.model)]
    return max(found, key=lambda one: ("agrees", "no domain", "refused", "wrong").index(one.kind))


def _compared(made: Made, source: Any) -> Outcome:
    try:
        found = find(source, domain="auto")
    except UncorkError as error:
        return Outcome("refused", _line(error))
    head, what = found.head, f"{found.weight_name} {found.head.weight.shape}"
    try:
        hidden = made.hidden
    except NotBuiltError:
        return Outcome("wrong", f"{what} was taken, and no matrix makes the logits")
    if head.features != hidden.shape[1] or head.classes != made.logits.shape[1]:
        return Outcome("wrong", f"{what} for {hidden.shape[1]} features, {made.logits.shape}")
    logits = hidden @ head.rows(0, head.classes).T + head.offsets
    if not same_order(logits, made.logits):
        return Outcome("wrong", f"{what} ranks the classes differently")
    if (made.logits < -1e30).any() and not any("never says" in note for note in found.notes):
        return Outcome("wrong", f"{what}: the model silences classes, and nothing says so")
    if found.shown_domain is None:
        return Outcome(
            "no domain", "; ".join(n for n in found.notes if "domain" in n or "table" in n)
        )
    if not head.domain.contains(hidden, tolerance=TOLERANCE).all():
        return Outcome("wrong", f"{what}: inputs outside the domain: {found.shown_domain.why}")
    return Outcome("agrees")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:160]


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """No more than a minute of computing: what else the machine does is not counted."""

    def stop(*_: Any) -> None:
        raise NotBuiltError(f"it takes longer than {_SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="classes of transformers; all of them if none")
    names = parser.parse_args().names or sorted(registry())
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    counts: collections.Counter[str] = collections.Counter()
    unexpected = []
    for number, name in enumerate(names):
        with contextlib.suppress(Exception):  # said by `outcome`
            architecture(name)  # an import that is cut short would spoil every class after it
        with tempfile.TemporaryDirectory() as folder, _limited():
            result = outcome(name, Path(folder))
        counts[result.kind] += 1
        if result.kind != expected(name):
            unexpected.append(f"{name}: {result.kind}, listed as {expected(name)}: {result.why}")
            print(unexpected[-1], flush=True)
        elif sys.stderr.isatty():
            print(f"\r{number + 1} of {len(names)}", end="", file=sys.stderr, flush=True)
    built = len(names) - counts["not built"]
    print(
        f"{len(names)} classes tried, {built} built, {counts['agrees'] + counts['no domain']} "
        f"agreeing ({counts['agrees']} with their domain), {counts['refused']} refused with a "
        f"reason, {counts['wrong']} wrong; {counts['not built']} cannot be built small"
    )
    return 1 if unexpected or counts["wrong"] else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
