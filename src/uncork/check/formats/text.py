"""Text for a terminal: a line for each check, and a few classes under those that did not pass."""

from __future__ import annotations

from collections.abc import Iterator

from uncork.check.protocol import Outcome
from uncork.check.run import Checked
from uncork.core.reading import doubt_lines
from uncork.core.text import printable

_CLASSES = 5
_MARKS = {Outcome.NOT_APPLICABLE: "–"}


def lines(checked: Checked) -> Iterator[tuple[str, Outcome | None]]:
    """Every line, with the outcome it tells of."""
    audit = checked.audit
    bias = "with bias" if audit.has_bias else "no bias"
    yield printable(audit.source) or "head", None
    for doubt in doubt_lines(audit.reading):
        yield doubt, Outcome.WARN
    yield (
        f"{audit.classes:,} classes × {audit.features:,} features, {audit.dtype}, {bias}; "
        f"inputs in {printable(str(audit.domain))}",
        None,
    )
    yield "", None
    width = max((len(result.name) for result in checked.results), default=0)
    for result in checked.results:
        mark = _MARKS.get(result.outcome, str(result.outcome))
        yield f"{mark:4}  {result.name:{width}}  {printable(result.why)}", result.outcome
        if result.bad:
            for line in checked.class_lines(result, _CLASSES):
                yield f"{'':4}  {'':{width}}    {printable(line)}", None
            link = result.link(checked.report)
            if link is not None:
                yield f"{'':4}  {'':{width}}    {printable(link)}", None
    yield "", None
    yield checked.answer, checked.outcome
    if checked.certificates is not None:
        kept = checked.certificates
        yield f"certificates {printable(kept.path)}, sha256 {kept.sha256}", None


def write(checked: Checked) -> str:
    return "".join(f"{line}\n" for line, _ in lines(checked))
