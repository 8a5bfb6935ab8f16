"""The report of a label audit: one HTML file that needs nothing else, and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

import numpy as np

from uncork.core.text import visible
from uncork.core.whole_file import whole_file
from uncork.labels.result import LabelAudit
from uncork.report.page import STYLES, asset, doubts, escaped

_LISTED = 500
_NAMED = 12  # labels of one set


def write_label_report(
    audit: LabelAudit, path: str | os.PathLike[str], extra: dict[str, Any] | None = None
) -> None:
    """Write the page to a file, whole or not at all. `extra`: what `uncork labels --json` says
    besides the sets."""
    page = label_report_page(audit, extra or {})
    with whole_file(path) as target:
        target.write_text(page, encoding="utf-8")


def label_report_page(audit: LabelAudit, extra: dict[str, Any]) -> str:
    """The page as text."""
    style = "\n".join(asset(name) for name in STYLES)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    counts = audit.counts
    title = answer_on_sets(counts, len(audit.sets))
    parts = [
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escaped(audit.source)}: label sets it can never give</title>",
        f"<style>{style}</style>", "</head>", "<body>", '<header class="page-head">',
        f'<p class="name"><bdi>{escaped(audit.source)}</bdi></p>', f"<h1>{escaped(title)}</h1>",
        doubts(audit.reading),
        f'<p class="lead">{audit.sets.labels:,} labels × {audit.features:,} features. Assumed: '
        f"{escaped(audit.domain.in_words(audit.features))}; a label is predicted where its logit "
        f"is above {escaped(_thresholds(audit))}.</p>",
        "</header>", "<main>", *_counted(audit), *_price(extra), *_sizes(extra),
        *_listed(audit, extra), *_proven(audit), "</main>", "</body>", "</html>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def answer_on_sets(counts: dict[str, int], sets: int) -> str:
    """What was found, in one line."""
    if counts["infeasible"]:
        return f"{counts['infeasible']:,} of {sets:,} label sets can never be predicted"
    if counts["undecided"]:
        return f"no label set is proven infeasible, {counts['undecided']:,} are undecided"
    return f"each of {sets:,} label sets can be predicted"


def _thresholds(audit: LabelAudit) -> str:
    values = audit.thresholds
    if (values == values[0]).all():
        return f"{values[0]:.6g}"
    return f"its own threshold, {values.min():.6g} to {values.max():.6g}"


def _counted(audit: LabelAudit) -> list[str]:
    rows = [[verdict, f"{count:,}"] for verdict, count in audit.counts.items()]
    return ["<section>", _table("Verdicts", ["verdict", "label sets"], rows), "</section>"]


def _price(extra: dict[str, Any]) -> list[str]:
    lines = []
    cost, sample = extra.get("price"), extra.get("sample")
    if cost is not None:
        lines = [
            "<section><h2>What that costs on the data</h2><p>",
            f"{cost['infeasible_examples']:,} of {cost['examples']:,} examples have a label set "
            "that no input gives. So whatever comes before this head, exact match is at most "
            f"<b>{cost['exact_match_at_most']:.4f}</b> and mean F1 at most "
            f"<b>{cost['f1_at_most']:.4f}</b>.",
            "</p></section>",
        ]
    if sample is not None:
        low, high = sample["interval_95"]
        lines += [
            "<section><h2>A sample</h2><p>",
            f"Of all {sample['of']:,} sets of this size {sample['sets']:,} were drawn: "
            f"{sample['infeasible_share']:.2%} are infeasible (95 % interval {low:.2%} to "
            f"{high:.2%}).</p></section>",
        ]
    return lines


def _sizes(extra: dict[str, Any]) -> list[str]:
    rows = [
        [f"{row['size']:,}", f"{row['sets']:,}", f"{row['infeasible']:,}", f"{row['undecided']:,}"]
        for row in extra.get("by_size", [])
    ]
    if not rows:
        return []
    columns = ["labels on", "sets", "infeasible", "undecided"]
    return ["<section>", _table("By size", columns, rows), "</section>"]


def _listed(audit: LabelAudit, extra: dict[str, Any]) -> list[str]:
    found = audit.infeasible
    if not len(found):
        return []
    order = found[np.argsort(-audit.sets.counts[found], kind="stable")]
    highest = {row["set"]: row for row in extra.get("joint_probability", [])}
    rows = []
    for k in order[:_LISTED].tolist():
        against = ", ".join(
            f"{_label(audit, part['label'])} {'on' if part['on'] else 'off'} {part['weight']:.0%}"
            for part in audit.conflict(k, 4)
        )
        near = highest.get(k)
        bounds = "" if near is None else f"{near['lower']:.3g} to {near['upper']:.3g}"
        rows.append([_names(audit, k), f"{audit.sets.counts[k]:,}", against, bounds])
    columns = ["label set", "times", "in conflict", "highest joint probability"]
    lines = ["<section>", _table("Infeasible", columns, rows)]
    if len(order) > _LISTED:
        lines.append(f'<p class="soft">and {len(order) - _LISTED:,} more</p>')
    return [*lines, "</section>"]


def _proven(audit: LabelAudit) -> list[str]:
    return [
        "<section><h2>What was proven</h2>",
        "<p>A feasible set has a <b>witness</b>: an input that gives exactly its labels. An "
        "infeasible one has a <b>mixture</b>: weights of labels whose signed logits sum to zero or "
        "less at every input, so that not all of them can be on the right side.</p>",
        "<p>Check the proofs with <code>uncork verify CERTIFICATES SOURCE</code>. Weights: "
        f"<code>{escaped(audit.fingerprint)}</code></p></section>",
    ]


def _label(audit: LabelAudit, i: int) -> str:
    return visible(audit.label(i), 40)


def _names(audit: LabelAudit, k: int) -> str:
    on = audit.sets.on[k].tolist()
    text = ", ".join(_label(audit, i) for i in on[:_NAMED]) or "no label"
    return text + (f" and {len(on) - _NAMED} more" if len(on) > _NAMED else "")


def _table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td><bdi>{escaped(cell)}</bdi></td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<h2>{escaped(title)}</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"  # noqa: E501
