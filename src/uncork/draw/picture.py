"""draw: a picture of a head, written to a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from uncork.auditing import Audit, audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.draw import braid
from uncork.draw.colouring import coloured
from uncork.draw.globe import VIEW
from uncork.draw.hull import draw_hull
from uncork.draw.regions import draw_regions, seen_of, touching
from uncork.draw.style import INK, figure_to
from uncork.theory import counting
from uncork.theory.braid import rankings

WHAT = ("both", "regions", "hull", "braid")
MOST_CLASSES = 1000
_PANEL, _GAP = 4.1, 0.35  # inches
SAID = {
    "hull": "weights and their convex hull",
    "plane": "inputs: which class wins where",
    "front": "directions of inputs, seen from one side",
    "back": "and from the other side",
    "solids": "inputs: where each class wins, moved apart",
}


def check(head: Head, what: str) -> None:
    """Raise if this head cannot be drawn so."""
    if what not in WHAT:
        raise UncorkError(f"{what!r} cannot be drawn: expected {', '.join(WHAT)}")
    if what == "braid":
        if head.classes not in (3, 4) or head.features > 3:
            raise UncorkError(
                "the braid arrangement is drawn of 3 or 4 classes and up to 3 features, not of "
                f"{head.classes:,} classes and {head.features:,} features"
            )
    elif head.features not in (2, 3):
        raise UncorkError(
            f"{'regions and hull' if what == 'both' else what} can be drawn of 2 or 3 features, "
            f"not of {head.features:,}"
        )
    if head.classes > MOST_CLASSES:
        raise UncorkError(f"{head.classes:,} classes: at most {MOST_CLASSES:,} can be drawn")


def draw(
    head: Head,
    path: str | os.PathLike[str],
    what: str = "both",
    *,
    extent: float | None = None,
    title: bool = True,
) -> None:
    """Draw a head of 2 or 3 features to a .png, .svg or .pdf file.

    what     "regions": which class wins where; "hull": the rows and their convex hull; "both";
             "braid": the braid arrangement of 3 or 4 classes, cut by what the head reaches
    extent   half-width of the inputs shown (default: as far as there is something to see)
    title    whether to say above the picture what it shows

    Classes that can never win are known from an audit, exactly, over the head's domain.
    """
    check(head, what)
    if what == "braid":
        _draw_braid(head, path, extent, title)
        return
    verdicts = audit(head, jobs=1)
    lost = np.zeros(head.classes, dtype=bool)
    lost[verdicts.unargmaxable] = True
    panels = ["hull", *seen_of(head)] if what == "both" else ["hull"] if what == "hull" else []
    panels = panels or [*seen_of(head)]
    shades = coloured(head.classes, [] if what == "hull" else touching(head, lost, extent))
    with figure_to(path, _size(len(panels), title)) as figure:
        for k, panel in enumerate(panels):
            space = head.features == 3 and panel in ("hull", "solids")
            axes = _panel(figure, k, space, title)
            if panel == "hull":
                draw_hull(axes, head, lost, shades)
            else:
                draw_regions(axes, head, lost, shades, panel, extent)
            bias = " (the bias decides too)" if head.bias is not None and panel == "hull" else ""
            _subtitle(figure, k, title, SAID[panel] + bias)
        if title:
            _title(figure, summary(verdicts))


def _draw_braid(
    head: Head, path: str | os.PathLike[str], extent: float | None, title: bool
) -> None:
    domain = head.domain if head.domain.outline(head.features).is_box else None
    found = rankings(head, domain=domain)
    if found.groups:
        raise UncorkError("two classes are equal in weight and bias: they have no wall to draw")
    orders = {ranking.order for ranking in found}
    rank = _rank(head)
    panels = 2 if head.features == 2 or rank == 3 else 1
    with figure_to(path, _size(panels, title)) as figure:
        if rank == 3:
            for k, view in enumerate((VIEW, -VIEW)):
                braid.draw_all_four(_panel(figure, k, False, title), head, orders, view)
            _subtitle(figure, 0, title, "logits: the head reaches all of them")
            _subtitle(figure, 1, title, "and from the other side")
        else:
            axes = _panel(figure, 0, head.classes == 4, title)
            (braid.draw_three if head.classes == 3 else braid.draw_four)(axes, head, orders)
            reached = ["a point", "a line", "a plane"][rank]
            reached = "all of them" if rank == head.classes - 1 else reached
            _subtitle(figure, 0, title, f"logits: the head reaches {reached}")
        if head.features == 2:
            braid.draw_cut(_panel(figure, 1, False, title), head, orders, extent)
            _subtitle(figure, 1, title, "inputs: where each ranking lives")
        if title:
            total = counting.rankings(head.classes, head.classes)
            how = "with a bias" if head.bias is not None else "without a bias"
            _title(figure, f"{len(found)} of {total} rankings, {how}")


def _rank(head: Head) -> int:
    rows = head.rows(0, head.classes)
    return int(np.linalg.matrix_rank(rows - rows.mean(axis=0)))


def _size(panels: int, title: bool) -> tuple[float, float]:
    return panels * (_PANEL + _GAP), _PANEL + (0.55 if title else 0.15)


def _panel(figure: Any, k: int, space: bool, title: bool) -> Any:
    width, height = figure.get_size_inches()
    top = height - (0.68 if title else 0.28)
    side = top - 0.42
    left = k * (_PANEL + _GAP)
    if space:
        place = (left - 0.1, 0.0, _PANEL + 0.2, top)
        axes = figure.add_axes(_share(place, width, height), projection="3d", computed_zorder=False)
        return axes
    side = min(side, _PANEL - 0.55)
    place = (left + (_PANEL + _GAP - side) / 2 + 0.12, 0.42, side, side)
    return figure.add_axes(_share(place, width, height))


def _share(
    place: tuple[float, float, float, float], width: float, height: float
) -> tuple[float, float, float, float]:
    return place[0] / width, place[1] / height, place[2] / width, place[3] / height


def _subtitle(figure: Any, k: int, title: bool, words: str) -> None:
    width, height = figure.get_size_inches()
    left = (k + 0.5) * (_PANEL + _GAP) + 0.06
    figure.text(left / width, 1 - (0.52 if title else 0.14) / height, words, ha="center",
                va="center", fontsize=9, color=INK)  # fmt: skip


def _title(figure: Any, words: str) -> None:
    height = figure.get_size_inches()[1]
    figure.text(0.5, 1 - 0.2 / height, words, ha="center", va="center", fontsize=11,
                fontweight="bold", color=INK, parse_math=False)  # fmt: skip


def summary(audit: Audit) -> str:
    """What came of the classes, in one line."""
    classes, counts = audit.classes, audit.counts
    lost, tied, unknown = counts["unargmaxable"], counts["tied"], counts["undecided"]
    if not (lost or tied or unknown):
        return f"{classes:,} classes, and each of them can win"
    if tied == classes and len(audit.proofs.groups) == 1:
        return f"{classes:,} classes, all equal: they can only tie"
    said = [f"{lost:,} of {classes:,} classes can never win"] if lost else [f"{classes:,} classes"]
    if tied:
        said.append(f"{tied:,} can only tie")
    if unknown:
        said.append(f"{unknown:,} undecided")
    if not lost and not unknown and tied < classes:
        said.append("the others can win")
    return ", ".join(said)
