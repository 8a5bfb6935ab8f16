"""The tables and the figure of the gradient study, from its `gradient.json`.

python experiments/gradient_figures.py docs/results/data/gradient.json --out results/gradient
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradient import COPY_RATES, FEEDS, GRID_SEED

Run = dict[str, Any]
BEFORE_DECAY = 2 / 3  # of the steps: rates fall after it, so that equal times compare only before


class Study:
    """Runs and times, asked for by what they are."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text("utf-8"))
        self.runs: list[Run] = [one for one in found["runs"] if one["seed"] != GRID_SEED]
        self.tried: list[Run] = [one for one in found["runs"] if one["seed"] == GRID_SEED]
        self.times: list[Run] = found["times"]

    def of(self, **wanted: Any) -> list[Run]:
        found = [one for one in self.runs if all(one[k] == v for k, v in wanted.items())]
        return sorted(found, key=lambda one: one["seed"])

    def values(self, name: str, **wanted: Any) -> list[Any]:
        found = {one[name] for one in self.runs if all(one[k] == v for k, v in wanted.items())}
        return sorted(found)

    def time(self, kind: str, width: int, classes: int, large: bool = False) -> Run | None:
        """With the batch of the runs, or with a large one."""
        batches = sorted({one["batch"] for one in self.times})
        for one in self.times:
            at = (one["kind"], one["width"], one["classes"], one["batch"])
            if at == (kind, width, classes, batches[-1 if large else 0]):
                return one
        return None


def end(run: Run, name: str = "loss") -> float:
    value: float = run["curve"][-1][name]
    return value


def spread(values: Iterable[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds."""
    found = list(values)
    if not found:
        return "–"
    if len(found) == 1:
        return f"{found[0]:.{digits}f}"
    return f"{statistics.mean(found):.{digits}f} ± {statistics.stdev(found):.{digits}f}"


def at_step(run: Run, step: float, name: str = "loss") -> float:
    """Between two looks, along a line over log steps."""
    looks = [(look["step"], look[name]) for look in run["curve"] if look["step"] > 0]
    for (before, low), (after, high) in pairwise(looks):
        if before <= step <= after:
            part = math.log(step / before) / math.log(after / before)
            return low + part * (high - low)
    return math.nan


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(titles: str, rows: Iterable[str]) -> str:
    names = titles.split("|")
    return "\n".join([_row(*names), _row(*["---"] * len(names)), *rows])


def widths_table(study: Study) -> str:
    rows = []
    for classes in study.values("classes", task="text"):
        for width in study.values("width", task="text", kind="softmax", classes=classes):
            runs = study.of(task="text", kind="softmax", width=width, classes=classes)
            rows.append(
                _row(
                    f"{runs[0]['words']:,}", width, f"{runs[0]['parameters'] / 1e6:.1f} M",
                    _passes(runs, 0), _passes(runs, -1), _mean(runs, "cosine"),
                    _share(runs, "share_frequent"), _share(runs, "share_rare"),
                    spread(end(one) for one in runs), spread(end(one, "train") for one in runs),
                    spread((100 * end(one, "accuracy") for one in runs), 1), len(runs),
                )
            )  # fmt: skip
    return _table(
        "V|d|parameters|passes, start|passes, end|cosine, end|of frequent words|of rare ones|"
        "loss|training loss|right, %|seeds", rows,
    )  # fmt: skip


def _passes(runs: list[Run], at: int) -> str:
    return f"{statistics.mean(one['curve'][at]['share'] for one in runs):.1%}"


def _share(runs: list[Run], name: str) -> str:
    found = [end(one, name) for one in runs if one["curve"][-1].get(name) is not None]
    return f"{statistics.mean(found):.1%}" if found else "–"


def _mean(runs: list[Run], name: str) -> str:
    found = [end(one, name) for one in runs if one["curve"][-1].get(name) is not None]
    return f"{statistics.mean(found):.3f}" if found else "–"


def _paired(runs: list[Run], plain: list[Run], of: Callable[[Run], float]) -> list[float]:
    """Differences seed by seed."""
    beside = {one["seed"]: one for one in plain}
    return [of(one) - of(beside[one["seed"]]) for one in runs if one["seed"] in beside]


def kinds_table(study: Study) -> str:
    rows = []
    for classes in study.values("classes", task="text"):
        for width in _compared(study, classes):
            plain = study.of(task="text", kind="softmax", width=width, classes=classes)
            for kind in [k for k in _order(study) if k not in FEEDS]:
                runs = study.of(task="text", kind=kind, width=width, classes=classes)
                if not runs:
                    continue
                rows.append(_kind(study, runs, plain))
    return _table(
        "V|d|head|passes, end|cosine, end|loss|beside softmax|at equal time|right, %|"
        "step, small batch|step, large|head, small|head, large|seeds", rows,
    )  # fmt: skip


def _compared(study: Study, classes: int) -> list[int]:
    """Widths at which there is another kind than softmax."""
    other = [k for k in _order(study) if k not in ("softmax", *FEEDS)]
    return sorted({w for k in other for w in study.values("width", task="text", kind=k,
                                                          classes=classes)})  # fmt: skip


def _order(study: Study) -> list[str]:
    kinds = study.values("kind")
    return ["softmax", *(kind for kind in kinds if kind != "softmax")]


def _kind(study: Study, runs: list[Run], plain: list[Run]) -> str:
    first = runs[0]
    kind, width, classes = first["kind"], first["width"], first["classes"]
    small, large = (study.time(kind, width, classes, big) for big in (False, True))
    differences = _paired(runs, plain, end)
    equal: list[float] = []
    if small:
        step = BEFORE_DECAY * first["steps"]
        slower = step / max(1.0, small["step_ratio"])
        beside = {one["seed"]: at_step(one, step) for one in plain}
        equal = [at_step(one, slower) - beside[one["seed"]]
                 for one in runs if one["seed"] in beside]  # fmt: skip
    return _row(
        f"{first['words']:,}", width, kind, _passes(runs, -1), _mean(runs, "cosine"),
        spread(end(one) for one in runs), "" if kind == "softmax" else signed(differences),
        "" if kind == "softmax" else signed(equal),
        spread((100 * end(one, "accuracy") for one in runs), 1),
        *(f"{one[f'{part}_ratio']:.2f}" if one else "–"
          for part in ("step", "head") for one in (small, large)),
        len(runs),
    )  # fmt: skip


def signed(values: list[float]) -> str:
    """Mean difference, and the seeds' least and largest."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):+.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):+.3f} to {max(values):+.3f})"


def feeds_table(study: Study) -> str:
    """Losses by who reads and who teaches."""
    rows = []
    for classes in study.values("classes", task="text"):
        state = study.values("state")[0]
        wide = study.of(task="text", kind="softmax", width=state, classes=classes)
        for width in study.values("width", task="text", kind=FEEDS[0], classes=classes):
            narrow_fed = study.of(task="text", kind=FEEDS[0], width=width, classes=classes)
            wide_fed = study.of(task="text", kind=FEEDS[1], width=width, classes=classes)
            if not wide_fed:
                continue
            rows.append(
                _row(
                    f"{wide_fed[0]['words']:,}", width,
                    spread(end(one) for one in narrow_fed),
                    spread(end(one) for one in wide_fed),
                    spread(end(one, "wide_loss") for one in narrow_fed),
                    spread(end(one, "wide_loss") for one in wide_fed),
                    spread(end(one) for one in wide), len(narrow_fed),
                )
            )  # fmt: skip
    return _table(
        "V|d|d reads, d teaches|d reads, 256 teaches|256 reads, d teaches|256 reads, 256 teaches|"
        "256 alone|seeds", rows,
    )  # fmt: skip


def copy_table(study: Study, task: str) -> str:
    """The better of the rates for each size, and each kind."""
    rows = []
    for classes in study.values("classes", task=task):
        for width in study.values("width", task=task, classes=classes):
            for kind in _order(study):
                by_rate = [
                    study.of(task=task, kind=kind, width=width, classes=classes, rate=rate)
                    for rate in COPY_RATES
                ]
                tried = [runs for runs in by_rate if runs]
                if not tried:
                    continue
                runs = max(
                    tried, key=lambda runs: statistics.mean(end(r, "accuracy") for r in runs)
                )
                rows.append(
                    _row(
                        f"{classes:,}", width, kind, f"{runs[0]['rate']:g}",
                        f"{statistics.mean(one['seen'] for one in runs):.1%}",
                        f"{statistics.mean(one['curve'][-1]['lost'] for one in runs):.3%}",
                        spread((100 * end(one, "accuracy") for one in runs), 1),
                        spread((100 * end(one, "accuracy_seen") for one in runs), 1),
                        _learned(runs), len(runs),
                    )
                )  # fmt: skip
    return _table(
        "V|d|head|rate|symbols seen|lost, end|right, %|right of those seen, %|"
        "half are right by step|seeds", rows,
    )  # fmt: skip


def _learned(runs: list[Run]) -> str:
    steps = [
        next((look["step"] for look in one["curve"] if look["accuracy"] >= 0.5), None)
        for one in runs
    ]
    return ", ".join("never" if step is None else str(step) for step in steps)


def rates_table(study: Study) -> str:
    kinds: dict[str, list[Run]] = {}
    for one in study.tried:
        kinds.setdefault(one["kind"], []).append(one)
    rates = sorted({one["rate"] for one in study.tried})
    rows = [
        _row(kind, *(f"{end(one):.3f}" for rate in rates for one in runs if one["rate"] == rate))
        for kind, runs in kinds.items()
    ]
    return _table("head|" + "|".join(f"{rate:g}" for rate in rates), rows)


def tables(study: Study) -> dict[str, str]:
    return {
        "softmax by width": widths_table(study), "who teaches": feeds_table(study),
        "copy": copy_table(study, "copy"), "spam": copy_table(study, "spam"),
        "kinds": kinds_table(study), "rates": rates_table(study),
    }  # fmt: skip


# The figure


def draw(study: Study, path: Path) -> None:
    """A copy is learned though its gradient is lost; who teaches the body hardly matters to who
    reads it; and heads that pass more are not better."""
    from uncork.report.drawing import INK, LOST, MISSED, REACHED, drawn_to

    with drawn_to(path, (13.0, 4.3)) as figure:
        copy, feeds, kinds = figure.subplots(1, 3)
        _draw_copy(copy, study, (LOST, MISSED, REACHED))
        _draw_feeds(feeds, study, (REACHED, LOST), INK)
        _draw_kinds(kinds, study, (REACHED, LOST), INK)
        for axes in (copy, feeds, kinds):
            axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()


def _draw_copy(axes: Any, study: Study, colours: tuple[str, ...]) -> None:
    classes = study.values("classes", task="copy")[-1]
    widths = study.values("width", task="copy", classes=classes)
    for width, colour in zip(widths, colours, strict=True):
        by_rate = [study.of(task="copy", kind="softmax", width=width, classes=classes, rate=rate)
                   for rate in COPY_RATES]  # fmt: skip
        runs = max((runs for runs in by_rate if runs), key=lambda runs: end(runs[0], "accuracy"))
        lost = statistics.mean(end(one, "lost") for one in runs)
        for one in runs:
            axes.plot([look["step"] for look in one["curve"]],
                      [100 * look["accuracy"] for look in one["curve"]], "-o", markersize=3,
                      color=colour, label=f"d = {width}: {100 * lost:.3f} % lost"
                      if one is runs[0] else None)  # fmt: skip
    axes.set_title(f"Say what was just read, {classes:,} symbols", fontsize=10.5)
    axes.set_xlabel("training steps")
    axes.set_ylabel("right, %")
    axes.legend(frameon=False, fontsize=9, loc="lower right", title="of the gradient's norm",
                title_fontsize=9)  # fmt: skip


def _draw_feeds(axes: Any, study: Study, colours: tuple[str, str], ink: str) -> None:
    classes = study.values("classes", task="text")[0]
    widths = study.values("width", task="text", kind="softmax", classes=classes)
    means = [statistics.mean(end(one) for one in _softmax(study, width, classes))
             for width in widths]  # fmt: skip
    for width in widths:
        for one in _softmax(study, width, classes):
            axes.plot(width, end(one), ".", color=ink, markersize=4)
    axes.plot(widths, means, "-", color=ink, linewidth=1.2, label="one head of d features")
    for feeds, colour, name, words, shift in (
        (FEEDS[1], colours[0], "loss", "d reads, 256 teaches", 1.06),
        (FEEDS[0], colours[1], "wide_loss", "256 reads, d teaches", 0.94),
    ):
        found = study.of(task="text", kind=feeds, classes=classes)
        axes.plot([shift * one["width"] for one in found], [end(one, name) for one in found], "D",
                  color=colour, markersize=4, label=words)  # fmt: skip
    both = [end(one, "wide_loss") for one in study.of(task="text", kind=FEEDS[1], classes=classes)]
    axes.axhline(statistics.mean(both), color=ink, linewidth=0.8, linestyle=":")
    axes.text(widths[0], statistics.mean(both), "256 reads, 256 teaches", fontsize=8.5, color=ink,
              va="bottom")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_title(f"Language model, {classes:,} words: two heads, one teaches", fontsize=10.5)
    axes.set_xlabel("d, features of the narrow head")
    axes.set_ylabel("held-out loss after 600 steps")
    axes.legend(frameon=False, fontsize=9)


def _softmax(study: Study, width: int, classes: int) -> list[Run]:
    return study.of(task="text", kind="softmax", width=width, classes=classes)


def _draw_kinds(axes: Any, study: Study, colours: tuple[str, str], ink: str) -> None:
    classes = study.values("classes", task="text")[0]
    widths = study.values("width", task="text", kind="wide", classes=classes)
    for width, colour in zip(widths, colours, strict=False):
        plain = _softmax(study, width, classes)
        for kind in _ALIKE:
            runs = study.of(task="text", kind=kind, width=width, classes=classes)
            if not runs:
                continue
            share = 100 * statistics.mean(end(one, "share") for one in runs)
            found = _paired(runs, plain, end)
            mean = statistics.mean(found)
            axes.plot([share] * 2, [min(found), max(found)], "-", color=colour, linewidth=1)
            axes.plot(share, mean, "o", color=colour, markersize=5,
                      label=f"d = {width}" if kind == "softmax" else None)  # fmt: skip
            if width == widths[0]:
                place = (6, _PUSHED.get(kind, -3))
                axes.annotate(_ALIKE[kind], (share, mean), xytext=place, fontsize=8.5,
                              textcoords="offset points", color=ink)  # fmt: skip
    axes.axhline(0, color=ink, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xticks([10, 20, 50, 100], ["10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_title("Heads of one width: more passes, no lower loss", fontsize=10.5)
    axes.set_xlabel("passes of the gradient's norm at the end, %")
    axes.set_ylabel("loss beside softmax's")
    axes.legend(frameon=False, fontsize=9)


_PUSHED = {"natural": -12}  # points, away from another dot
# Trained with −log p on the same features, and with words where the figure has room for them.
_ALIKE = {
    "softmax": "", "natural": "natural", "natural-quarter": "", "whitened": "whitened",
    "preconditioned": "preconditioned", "wide": "wide", "frequent": "frequent",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="the study's gradient.json")
    parser.add_argument("--draw", type=Path, help="the figure's file: .svg or .png")
    asked = parser.parse_args()
    study = Study(asked.data)
    for title, table in tables(study).items():
        print(f"\n{title}\n\n{table}")
    if asked.draw is not None:
        draw(study, asked.draw)


if __name__ == "__main__":
    main()
