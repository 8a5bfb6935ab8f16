"""What a folder of files holds of an audit: all that its pages would ask a server for.

What is written there may be read by anybody, so that folders of this machine are left out: of the
path of a file only its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.auditing.certify.verify import verify
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import Reading
from uncork.loading.hugging_face.hub_address import is_address
from uncork.report.data import report_data
from uncork.report.rows import (
    Shown,
    Summary,
    add_details,
    add_next,
    base_name,
    shown_mixtures,
)
from uncork.store import Store, StoredAudit
from uncork.web.classes import described_odd, figure_dots, rank_dots
from uncork.web.stored import plain_audit, shown_stored, summary
from uncork.web.weights import Unavailable, WeightsCache

_CERTIFIED = (
    "The audit's own proof. It was certified against the weights when these pages were made."
)
_STORED = "As stored when these pages were made, and not proven again: they are files."
_ALL_CERTIFIED = (
    "These pages show what a store held when they were made. The audit's certificates were checked "
    "against the weights then, and every one held."
)
_ALL_STORED = (
    "These pages show what a store held when they were made. Its verdicts were certified when the "
    "audit was made, and not again for these pages."
)


def public(audit: StoredAudit) -> StoredAudit:
    """The audit as anybody may read of it: files by their names, without their folders."""
    source = audit.source if is_address(audit.source) else base_name(audit.source)
    name = source if audit.name == audit.source else audit.name
    also = tuple(base_name(other) if other == audit.source else other for other in audit.also)
    return dataclasses.replace(
        audit, source=source, name=name, also=also, certificates=None,
        reading=_public_reading(audit.reading, audit.source),
    )  # fmt: skip


def _public_reading(reading: Reading | None, source: str) -> Reading | None:
    """What was read, without the folder of the source."""
    folders = sorted({str(Path(source).parent), str(Path.home())}, key=len, reverse=True)
    found = [re.escape(folder) for folder in folders if len(folder) > 1]
    if reading is None or is_address(source) or not found:
        return reading
    pattern = re.compile(rf"(?:{'|'.join(found)})[/\\]")

    def without(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub("", value)
        return tuple(map(without, value)) if isinstance(value, tuple) else value

    return dataclasses.replace(
        reading,
        **{one.name: without(getattr(reading, one.name)) for one in dataclasses.fields(reading)},
    )


def public_summary(audit: StoredAudit, certified: bool) -> Summary:
    """What the page of an audit says before it comes to single classes."""
    shown = summary(public(audit))
    if certified or audit.proven:
        shown.facts["checked"] = _ALL_CERTIFIED if certified else _ALL_STORED
    else:
        shown.facts["checked"] = "The proofs were not checked: run the commands below."
    return shown


def audit_item(audit: StoredAudit) -> dict[str, Any]:
    """An audit in the list of them."""
    return plain_audit(public(audit))


def label_audit_item(stored: dict[str, Any]) -> dict[str, Any]:
    """A label audit as anybody may read of it."""
    source = str(stored["source"])
    shown = source if is_address(source) else base_name(source)
    return {
        **stored, "source": shown, "certificates": None,
        "name": shown if stored["name"] == source else stored["name"],
        "reading": _public_reading(stored["reading"], source),
    }  # fmt: skip


def audit_data(store: Store, audit: StoredAudit, cache: WeightsCache) -> dict[str, Any]:
    """The classes of an audit with all that is known of them; see `static/export-ask.js`."""
    shown = shown_stored(store, audit, cache)
    certified = False
    try:
        rows = cache.of(audit).rows
        proven = _certified(shown, audit, rows, cache)
        certified = proven is not None
        if proven is not None:
            shown.mixtures = shown_mixtures(proven)
            shown.margins = proven.proofs.margins[shown.ids]
        if isinstance(rows, Head):
            add_details(shown, proven, rows)
        else:
            add_next(shown, rows)
        weights = ""
    except Unavailable:
        weights = "they were not at hand when these pages were made"
    figures: dict[str, Any] = {"class": figure_dots(store, audit, False, cache)}
    figures["norm"] = figures["rank"] = {"size": None}
    odd = None
    if not weights:
        with contextlib.suppress(Unavailable):
            figures["rank"] = rank_dots(store, audit, cache)
        figures["norm"] = figure_dots(store, audit, True, cache)
        odd = described_odd(store, audit, cache)
    data = report_data(shown)
    data["extra"] = {
        "certified": certified,
        "checked": _CERTIFIED if certified else _STORED,
        "weights": weights,
        "odd": odd,
        "figures": figures,
    }
    return data


def _certified(
    shown: Shown, audit: StoredAudit, rows: Head | Items, cache: WeightsCache
) -> Audit | None:
    """The audit in its certificates, if they are at hand, all hold, and say what the store says."""
    found = cache.certificates(audit)
    if found is None or not np.array_equal(found.proofs.verdicts[shown.ids], shown.verdicts):
        return None
    if isinstance(rows, Head):
        rows = rows.replace(domain=found.domain)
    try:
        holds = verify(found, rows, device="cpu").ok
    except UncorkError:
        return None
    if not holds:
        return None
    return dataclasses.replace(found, head=rows) if isinstance(rows, Head) else found
