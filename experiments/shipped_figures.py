"""The figures of `shipped_models.py`: what is lost by shape of head, what is read, and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uncork.report.drawing import INK, LOST, REACHED, drawn_to


def draw(out: Path, rows: list[dict[str, Any]], lost: dict[str, Any], fonts: list[str]) -> None:
    """Every figure there are results for, into the folder."""
    draw_shapes(out / "shapes.png", rows)
    if any(row["readings"] for row in rows):
        draw_reading(out / "reading.png", [row for row in rows if row["readings"]])
    for name, found in lost.items() if fonts else ():
        if found["lost"] and name == "PP-OCRv4 Chinese":
            draw_characters(out / "characters.png", name, found["lost"], fonts[0])


def draw_shapes(path: Path, rows: list[dict[str, Any]]) -> None:
    """Share of classes lost against classes a feature, one point a head; below, the same heads by
    kind."""
    kinds = sorted({row["kind"] for row in rows}, key=lambda kind: _of_kind(rows, kind))
    with drawn_to(path, (7.6, 4.9 + 0.19 * len(kinds))) as figure:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 0.19 * len(kinds) + 0.2])
        ratios = [row["classes"] / row["features"] for row in rows]
        shares = [100 * row["counts"]["unargmaxable"] / row["classes"] for row in rows]
        losers = sorted(
            (share, ratio, row["name"])
            for share, ratio, row in zip(shares, ratios, rows, strict=True)
            if share
        )
        axes.plot(ratios, shares, "o", color=REACHED, markersize=5, alpha=0.8, zorder=2)
        column = min((ratio for _, ratio, _ in losers), default=1.0) / 2.5
        height, gap = 0.0, max((share for share, _, _ in losers), default=1.0) / 22
        for share, ratio, name in losers:
            height = max(height + gap, share)  # names in a column, none over another
            axes.plot(ratio, share, "o", color=LOST, markersize=5, zorder=3)
            axes.plot([column * 1.05, ratio], [height, share], color=LOST, lw=0.5, alpha=0.6)
            axes.text(column, height, name, fontsize=8, ha="right", va="center")
        axes.text(
            0.02, 0.09, f"{len(rows) - len(losers)} heads lose nothing", transform=axes.transAxes,
            color=REACHED, fontsize=8,
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylabel("unargmaxable classes, %")
        for ratio, share, row in zip(ratios, shares, rows, strict=True):
            below.plot(
                ratio, kinds.index(row["kind"]), "o", color=LOST if share else REACHED,
                markersize=5, alpha=0.8, zorder=3 if share else 2,
            )  # fmt: skip
        below.set_yticks(range(len(kinds)), kinds, fontsize=8)
        below.grid(axis="y", lw=0.3, alpha=0.6)
        below.set_axisbelow(True)
        below.tick_params(axis="y", length=0)
        below.set_xlabel("classes for each feature")
        for one in (axes, below):
            one.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()


def _of_kind(rows: list[dict[str, Any]], kind: str) -> float:
    """The most classes a feature in heads of the kind."""
    return max(row["classes"] / row["features"] for row in rows if row["kind"] == kind)


def draw_reading(path: Path, rows: list[dict[str, Any]]) -> None:
    """Share of rendered characters read as themselves: two fonts and two verdicts a model."""
    with drawn_to(path, (7.6, 0.62 * len(rows) + 1.3)) as figure:
        axes = figure.subplots()
        for k, row in enumerate(rows):
            for j, reading in enumerate(row["readings"][:2]):
                y = k + 0.4 * j - 0.2
                for verdict, colour, shift in (
                    ("argmaxable", REACHED, -0.09), ("unargmaxable", LOST, 0.09),
                ):  # fmt: skip
                    right, tried = reading[verdict]
                    if not tried:
                        continue
                    axes.barh(y + shift, 100 * right / tried, 0.17, color=colour)
                    axes.text(
                        100 * right / tried + 0.8, y + shift, f"{right:,} of {tried:,}",
                        va="center", fontsize=6.5, color=colour,
                    )  # fmt: skip
        axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
        axes.set_xlabel("characters read as themselves, % (two fonts a model)")
        axes.spines[["top", "right"]].set_visible(False)
        for label, colour, x in (("argmaxable", REACHED, 0.0), ("unargmaxable", LOST, 0.16)):
            axes.text(x, 1.02, label, color=colour, transform=axes.transAxes, fontsize=9)
        figure.tight_layout()


def draw_characters(path: Path, name: str, lost: str, font: str, columns: int = 26) -> None:
    """The lost characters themselves, most common first."""
    from matplotlib.font_manager import FontProperties

    lines = -(-len(lost) // columns)
    with drawn_to(path, (7.6, 0.30 * lines + 0.3)) as figure:
        axes = figure.add_axes((0.02, 0.02, 0.96, 1 - 0.3 / (0.30 * lines + 0.3)))
        for k, character in enumerate(lost):
            axes.text(
                (k % columns + 0.5) / columns, 1 - (k // columns + 0.5) / lines, character,
                ha="center", va="center", fontproperties=FontProperties(fname=font, size=13),
                color=LOST,
            )  # fmt: skip
        axes.set_axis_off()
        figure.suptitle(
            f"The {len(lost):,} characters that {name} can never read, most common first",
            fontsize=9, color=INK, y=0.995,
        )  # fmt: skip
