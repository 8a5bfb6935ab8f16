"""The report of an audit: one HTML file that needs nothing else, to read in any browser.

Labels are hostile text. They reach the page only as JSON in a data block and as escaped text, and
the page's script puts them on screen as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from uncork.audit.result import Audit
from uncork.domain import Ball, Box, Domain, Image, LayerNorm, RMSNorm
from uncork.errors import UncorkError
from uncork.load.contents import printable
from uncork.load.odd_rows import OddRows, odd_rows

_THIEVES = 5
_LONGEST_LABEL = 200
_FEW = 6


def write_report(audit: Audit, path: str | os.PathLike[str], odd: OddRows | None = None) -> None:
    """Write the page to a file, whole or not at all."""
    target = Path(path)
    temporary = target.with_name(target.name + ".part")
    try:
        temporary.write_text(report_page(audit, odd), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise UncorkError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def report_page(audit: Audit, odd: OddRows | None = None) -> str:
    """The page as text; odd rows are looked for in the audit's own head where none are given."""
    if odd is None and audit.head is not None:
        odd = odd_rows(audit.head)
    template = files("uncork.report").joinpath("page.html").read_text(encoding="utf-8")
    script = template.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "digest": digest,
        "name": _escaped(Path(audit.source).name or "head"),
        "answer": _escaped(_answer(audit)),
        "head": _escaped(
            f"{audit.classes:,} classes × {audit.features:,} features, {audit.dtype}, "
            + ("with bias" if audit.has_bias else "no bias")
        ),
        "assumed": _escaped(_in_words(audit.domain, audit.features)),
        "bias": "z = Wx + b" if audit.has_bias else "z = Wx",
        "source": _escaped(shlex.quote(audit.source or "model.onnx")),
        "domain_name": _escaped(audit.domain.spec()),
        "domain": _escaped(_on_the_command_line(audit.domain)),
        "drop": "" if audit.has_bias else " --drop-bias",
        "fingerprint": _escaped(audit.fingerprint),
        "seconds": f"{audit.seconds.get('total', 0.0):.1f}",
        "device": _escaped(audit.device),
        "version": _version(),
        "odd": _odd(audit, odd),
        "data": _data(audit),
    }
    # One pass, so that nothing from the model is looked at for markers of its own.
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: parts[marker[1]], template)


def _answer(audit: Audit) -> str:
    counts = audit.counts
    lost, tied, unknown = counts["unargmaxable"], counts["tied"], counts["undecided"]
    whole = audit.classes if audit.asked is None else len(audit.asked)
    asked = "" if audit.asked is None else " asked about"
    if lost:
        text = (
            f"{lost:,} of the {whole:,} classes{asked} can never be the argmax, whatever the input."
        )
    elif unknown:
        text = f"No class{asked} was proven unreachable, but not every class was decided."
    else:
        text = f"Every one of the {whole:,} classes{asked} can be the argmax."
        if tied:
            text = f"Every one of the {whole:,} classes{asked} can come first, some only in a tie."
    if tied:
        text += f" {tied:,} {'is' if tied == 1 else 'are'} equal to another: first only in a tie."
    if unknown and audit.approximate:
        text += f" {unknown:,} more may be unargmaxable: screening found no witness."
    elif unknown:
        text += f" {unknown:,} {'is' if unknown == 1 else 'are'} undecided."
    return text


def _in_words(domain: Domain, features: int) -> str:
    if isinstance(domain, Box):
        lower, upper = (np.unique(bound) for bound in domain.bounds(features))
        if len(lower) == len(upper) == 1:
            return f"every input with each feature between {lower[0]:g} and {upper[0]:g}"
        return (
            f"every input with each feature in its own range, all within {lower[0]:g} and "
            f"{upper[-1]:g}"
        )
    if isinstance(domain, Ball):
        return f"every input of Euclidean length at most {domain.radius:g}"
    if isinstance(domain, (LayerNorm, RMSNorm)):
        name = "LayerNorm" if isinstance(domain, LayerNorm) else "RMSNorm"
        parts = [
            what
            for what, array in (("gain", domain.gain), ("offset", domain.offset))
            if array is not None
        ]
        own = f" with the model's own {' and '.join(parts)}" if parts else ""
        return f"every input that can leave a {name} over {domain.features} features{own}"
    if isinstance(domain, Image):
        inner = _in_words(
            domain.inner, features if domain.matrix is None else domain.matrix.shape[1]
        )
        made = "a linear map" if domain.matrix is not None else "a constant shift"
        return f"the image under {made} of {inner}"
    return "every input there is, however large"


def _on_the_command_line(domain: Domain) -> str:
    """What `--domain` takes: the text of a plain domain, `auto` for what only the model holds."""
    return "auto" if isinstance(domain, (LayerNorm, RMSNorm, Image)) else domain.spec()


def _odd(audit: Audit, odd: OddRows | None) -> str:
    """Kinds of odd rows, how many of each are lost, and the first few by name."""
    if odd is None:
        return "<p>The weights were not at hand when this page was made.</p>"
    lost = set(audit.unargmaxable.tolist())
    parts = []
    for name, ids in odd.kinds():
        if not ids:
            continue
        gone = len(lost.intersection(ids))
        few = ", ".join(f"{t} {_label(audit, t)}" if audit.labels else str(t) for t in ids[:_FEW])
        text = f"{len(ids):,}, of which {gone:,} can never be the argmax: {few}"
        parts.append(
            f"<dt>{name}</dt><dd>{_escaped(text + (' …' if len(ids) > _FEW else ''))}</dd>"
        )
    if not parts:
        return "<p>None: no row is zero, equal to another or within rounding of it.</p>"
    return f"<dl>{''.join(parts)}</dl>"


def _data(audit: Audit) -> str:
    """The rows of the table as JSON that no HTML parser can mistake for markup."""
    lost = [
        {
            "class": t,
            "label": _label(audit, t),
            "slack": _finite(abs(audit.margin(t))),
            "by": [
                [thief["class"], _label(audit, thief["class"]), round(thief["weight"], 4)]
                for thief in audit.stolen_by(t, _THIEVES)
            ],
        }
        for t in audit.unargmaxable.tolist()
    ]
    group_of = {int(i): group for group in audit.proofs.groups for i in group}
    tied = [
        {
            "class": t,
            "label": _label(audit, t),
            "by": [[int(i), _label(audit, int(i)), None] for i in group_of[t][:_THIEVES] if i != t],
        }
        for t in audit.tied.tolist()
    ]
    undecided = [
        {"class": t, "label": _label(audit, t), "why": printable(audit.proofs.reasons.get(t, ""))}
        for t in audit.undecided.tolist()
    ]
    data: dict[str, Any] = {
        "argmaxable": audit.counts["argmaxable"],
        "unargmaxable": lost,
        "tied": tied,
        "undecided": undecided,
        "unknown": "potentially unargmaxable" if audit.approximate else "undecided",
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _label(audit: Audit, t: int) -> str:
    """A label with what would not show, or would show elsewhere, written as escapes."""
    label = audit.label(t)
    text = repr(label) if not label or label.isspace() else printable(label)
    return text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _version() -> str:
    from uncork import __version__

    return __version__
