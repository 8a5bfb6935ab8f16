"""A copy of a model's file with another head: drafted, read back, put in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.loading.source import Found, find
from uncork.repair import Repair
from uncork.repair.prevention import Prevention
from uncork.repair.silence import Silence

Made = Prevention | Repair | Silence  # what a head was changed to


@contextmanager
def drafted(out: str, kind: str) -> Iterator[Path]:
    """A name beside the file that `out` is, or links to; no file is left under that name."""
    # The name as it was given tells the format; a link's file may be called anything.
    draft = Path(os.path.realpath(out)).with_name(f".{kind}-{os.getpid()}-{Path(out).name}")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def put_in_place(draft: Path, out: str) -> None:
    """Replace the file by the draft."""
    try:
        os.replace(draft, os.path.realpath(out))  # a link stays one
    except OSError as error:
        raise UncorkError(f"{out} cannot be written: {error.strerror or error}") from None


def read_back(found: Found, made: Made, draft: Path) -> Head:
    """The head as a reader of the new file finds it."""
    weight, bias = found.weight_name, found.bias_name
    rounded: str | None = None
    for transpose in (False, True):
        for names in ((None, None), (weight, None), (weight, bias)):
            try:
                head = find(
                    draft, weight=names[0], bias=names[1], transpose=transpose,
                    domain=found.head.domain,
                ).head  # fmt: skip
            except UncorkError:
                continue
            if _is(head, made):
                return head.replace(labels=found.head.labels, source=found.head.source)
            rounded = rounded or _rounded_away(head, made)
    if rounded is not None:
        larger = ", or choose a larger --scale" if isinstance(made, Prevention) else ""
        raise UncorkError(f"{found.contents.path}: {rounded}: scale the weights up first{larger}")
    raise UncorkError(
        f"{found.contents.path}: the changed copy reads back as another head than was "
        "written: write .npz instead, and please report this"
    )


def _is(head: Head, made: Made) -> bool:
    if not _has_weight(head, made) or (made.bias is not None and head.bias is None):
        return False
    if made.bias is None and head.bias is not None and head.offsets.any():
        return False
    near = np.abs(head.offsets - (0 if made.bias is None else made.bias))
    small = 2.0**-7 * (np.abs(made.bias).max() if made.bias is not None else 0.0)
    return bool((near <= small).all())


def _rounded_away(head: Head, made: Made) -> str | None:
    """What to say of a bias that was written as asked but is too small for its type."""
    if head.bias is None or made.bias is None or not _has_weight(head, made):
        return None
    if not np.array_equal(head.bias, made.bias.astype(head.bias.dtype)):
        return None
    largest = float(np.abs(made.bias).max())
    return f"the new bias, at most {largest:g} in size, is rounded away as {head.bias.dtype}"


def _has_weight(head: Head, made: Made) -> bool:
    wanted = np.asarray(made.weight).astype(head.weight.dtype)
    return bool(np.array_equal(head.weight, wanted))
