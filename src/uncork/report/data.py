"""A report's numbers and labels as compact JSON: arrays in base64, text that no parser mistakes.

Labels are hostile. Every character that markup, a script or a terminal could stumble over is
written as an escape of JSON, so that it reaches the page's script as the character it is, and
nothing else on the way there.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from uncork.report.rows import Beside, Shown
from uncork.report.wording import about_items

_LONGEST_LABEL = 20_000  # characters of one label that a page carries
LONG = 256  # a label beyond this counts as long
_LONG_LABELS = 2_000_000  # characters that long labels may take up in all
ODD_NAMES = {
    "special_rows": "special tokens",
    "unused_rows": "reserved or unused tokens",
    "padding_rows": "past the vocabulary's end",
    "zero_rows": "all zero",
    "equal_rows": "equal to another",
    "near_rows": "within rounding of another",
}
# What stays as it is: everything printable but <, >, &. The rest becomes \uXXXX.
_UNSAFE = re.compile(r"[<>&\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f"
                     r"\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]")  # fmt: skip


def report_data(shown: Shown) -> dict[str, Any]:
    """What the page's script reads; see `assets/data.js` for the other side."""
    every = np.array_equal(shown.ids, np.arange(shown.facts["classes"]))
    data: dict[str, Any] = {
        "name": shown.name,
        "words": list(shown.words.instead) or None,
        "about": about_items(shown.metric),
        "counts": shown.counts,
        "unknown": "potentially unargmaxable" if shown.facts["approximate"] else "undecided",
        "size": len(shown.ids),
        "ids": None if every else packed(shown.ids, "<i4"),
        "verdicts": packed(shown.verdicts, "u1"),
        "margins": packed(shown.margins, "<f8"),
        "norms": None if shown.norms is None else packed(shown.norms, "<f4"),
        "mixtures": _mixtures(shown),
        "groups": shown.groups,
        "reasons": {str(t): text for t, text in shown.reasons.items()},
        "nearest": _beside(shown.nearest),
        "runners_up": _beside(shown.runners_up),
        "odd": _odd(shown),
        "outlook": _outlook(shown),
        "takers": shown.takers,
    }
    data.update(_labels(shown, data))
    return data


def embedded(data: Any) -> str:
    """JSON to stand inside an HTML element of any kind, or to be sent as it is."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def packed(array: np.ndarray, kind: str) -> str:
    """An array's bytes, little-endian, in base64."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()


def _mixtures(shown: Shown) -> dict[str, str]:
    """Ragged: how many parts each class has, then the parts of all, one after the other."""
    order = sorted(shown.mixtures)
    mixtures = [shown.mixtures[t] for t in order]
    parts = [part for mixture in mixtures for part in mixture.parts]
    return {
        "of": packed(np.array(order), "<i4"),
        "counts": packed(np.array([len(mixture.parts) for mixture in mixtures]), "u1"),
        "sizes": packed(np.array([mixture.size or 0 for mixture in mixtures]), "<i4"),
        "classes": packed(np.array([i for i, _ in parts]), "<i4"),
        "shares": packed(np.array([share for _, share in parts]), "<f4"),
    }


def _beside(beside: Beside | None) -> dict[str, Any] | None:
    if beside is None or not len(beside.classes):
        return None
    return {
        "of": packed(beside.classes, "<i4"),
        "each": beside.others.shape[1],
        "classes": packed(beside.others, "<i4"),
        "values": packed(beside.values, "<f4"),
    }


def _odd(shown: Shown) -> list[dict[str, Any]] | None:
    if shown.odd is None:
        return None
    rows = shown.odd.as_dict()
    kinds = []
    for name, words in ODD_NAMES.items():
        groups = rows[name] if rows[name] and isinstance(rows[name][0], list) else []
        ids = [k for group in groups for k in group] if groups else rows[name]
        ids = np.intersect1d(np.array(ids, dtype=np.int64), shown.ids)
        if len(ids):
            kinds.append({"name": words, "ids": packed(ids, "<i4"), "groups": len(groups)})
    return kinds


def _outlook(shown: Shown) -> dict[str, Any] | None:
    given = shown.outlook
    if given is None or not len(given.classes):
        return None
    result: dict[str, Any] = {"of": packed(given.classes, "<i4")}
    for name in ("probability_lower", "probability_upper", "best_rank_lower", "best_rank_upper",
                 "bias_needed"):  # fmt: skip
        values = getattr(given, name)
        if values is not None:
            result[name] = packed(np.asarray(values, dtype=np.float64), "<f8")
    return result


def _labels(shown: Shown, data: dict[str, Any]) -> dict[str, Any]:
    """Labels of the classes asked about, in order, and of the others that are named somewhere."""
    if shown.labels is None:
        return {"labels": None, "others": {}}
    room = _LONG_LABELS
    labels = []
    for t in shown.ids.tolist():
        text = shown.labels.get(t, str(t))
        if len(text) > LONG:
            room -= min(len(text), _LONGEST_LABEL)
            text = cut(text, _LONGEST_LABEL if room >= 0 else LONG)
        labels.append(text)
    named = {i for mixture in shown.mixtures.values() for i, _ in mixture.parts}
    for beside in (shown.nearest, shown.runners_up):
        if beside is not None:
            named.update(beside.others.ravel().tolist())
    named.update(i for group in shown.groups for i in group)
    named.update(i for i, _, _ in shown.takers)
    named.difference_update(shown.ids.tolist())
    others = {str(i): cut(shown.labels[i], LONG) for i in sorted(named) if i in shown.labels}
    return {"labels": labels, "others": others}


def cut(text: str, most: int = LONG) -> str:
    """Text of at most so many characters, with how many there were."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
