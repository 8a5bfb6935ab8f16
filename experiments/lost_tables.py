"""The tables of docs/results/lost_in_practice.md, from the data beside it.

python experiments/lost_tables.py [docs/results/data]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "docs/results/data"
# What is read, as the table calls it, and which texts and characters that is.
READ = (
    ("lost, in lines", ("lines",), "lost"),
    ("lost, alone", ("alone",), "lost"),
    ("others, in those lines", ("lines",), "able"),
    ("others, alone", ("alone",), "able"),
    ("others, alone, read for lost ones before", ("alike",), "able"),
    ("others, in lines without lost ones", ("plain",), "able"),
    ("sentences", ("sentences",), "able"),
)


def per_cent(share: float) -> str:
    """Two digits, written out."""
    value = 100 * share
    if value >= 99.95:
        return "100 %"
    return f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".") + " %"


def span(values: list[float]) -> str:
    low, high = (f"{round(v):,}" for v in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"


def reach_table(rows: list[dict[str, Any]]) -> str:
    """A head a line, those that lose most first."""
    lines = [
        "| head | classes for each feature | lost | among the n shortest rows | length of rows: "
        "lost, others | cosine between lost rows | highest probability: median, largest | "
        "best rank: at least, at most |",
        "| --- | ---: | ---: | ---: | --- | ---: | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -row["lost"] / row["classes"]):
        long = [f"{row[key][1]:.2g}" for key in ("length_of_lost", "length_of_others")]
        p = [per_cent(value) for value in row["highest_probability_at_most"]]
        alike = round(row["cosine_among_lost"][1], 2) + 0.0  # no −0.00
        lines.append(
            f"| {row['name']} | {row['classes'] / row['features']:.0f} | {row['lost']:,} "
            f"| {row['lost_among_the_shortest']:,} | {long[0]}, {long[1]} "
            f"| {alike:.2f} | {p[1]}, {p[2]} "
            f"| {span(row['best_rank_at_least'])}; {span(row['best_rank_at_most'])} |"
        )
    return "\n".join(lines)


def speech_table(found: dict[str, Any]) -> str:
    lines = [
        "| senones | number | first in some frame | best rank: best, median | logits behind at the "
        "nearest: least, median | highest probability | length of rows |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: |",
    ]
    for output in found["outputs"]:
        lines.append(f"| **{output['output']}** | | | | | | |")
        for title, one in output["places"].items():
            rank, behind = one["best_rank"], one["behind"]
            lines.append(
                f"| {title} | {one['classes']:,} | {one['first_once']:,} | {rank[0]:,}, "
                f"{rank[1]:,} | {behind[0]}, {behind[1]} | {per_cent(one['highest_probability'])} "
                f"| {one['length']} |"
            )
    return "\n".join(lines)


def counts(head: dict[str, Any], texts: tuple[str, ...], what: str, seen: bool) -> list[int]:
    """Characters read right, and all of them."""
    own = [r[what] for r in head["reads"] if r["text"] in texts and r["seen"] is seen]
    return [sum(count[0] for count in own), sum(count[1] for count in own)]


def taught_table(model: dict[str, Any], seen: bool) -> str:
    """A head a column; of the taught ones the mean over seeds, and its spread."""
    titles = list(dict.fromkeys(name.split()[0] for name in model["heads"]))
    groups = [[h for n, h in model["heads"].items() if n.split()[0] == t] for t in titles]
    lines = ["| read right | of | " + " | ".join(titles) + " |"]
    lines.append("| --- | ---: |" + " ---: |" * len(titles))
    for name, texts, what in READ:
        of = counts(groups[0][0], texts, what, seen)[1]
        if not of:
            continue
        cells = []
        for group in groups:
            right = [counts(head, texts, what, seen)[0] for head in group]
            cells.append(span(sorted(right)))
        lines.append(f"| {name} | {of:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(data: Path = DATA) -> list[str]:
    """All of them, in the page's order."""
    read = {
        name: json.loads((data / f"{name}.json").read_text("utf-8"))
        for name in ("lost_reach", "lost_senones", "finetune_ocr")
    }
    taught = [taught_table(model, seen=False) for model in read["finetune_ocr"]]
    return [reach_table(read["lost_reach"]), speech_table(read["lost_senones"]), *taught]


if __name__ == "__main__":
    print("\n\n".join(tables(*(Path(path) for path in sys.argv[1:2]))))
