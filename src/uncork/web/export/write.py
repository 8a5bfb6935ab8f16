"""`uncork serve --export`: the pages of some audits as files that any web space can hold.

The pages are those of the server, with the same scripts. Where these would ask the server, another
script answers from files (`static/export-ask.js`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from uncork import __version__
from uncork.core.errors import UncorkError
from uncork.core.text import without_infinities
from uncork.report.page import STYLES, asset, one_script
from uncork.store import Store, StoredAudit
from uncork.store.export import csv_lines
from uncork.web import pages
from uncork.web.export.data import (
    audit_data,
    audit_item,
    label_audit_item,
    public,
    public_summary,
)
from uncork.web.export.downloads import CERTIFICATES, CSV, has_certificates, in_pieces
from uncork.web.export.folder import check_folder, whole_folder
from uncork.web.label_sets.queries import plain_label_audit, set_page
from uncork.web.weights import WeightsCache

# What each page's script is made of, in order: files of the report's assets, then of our own.
_SHARED = ("theme.js", "address.js", "text.js", "data.js")
_OWN = ("export-places.js", "export-ask.js", "api.js")
_SCRIPTS = {
    "audits.js": (_SHARED, (*_OWN, "audits.js")),
    "report.js": (
        (*_SHARED, "table.js", "scales.js", "charts.js", "parts.js"),
        (*_OWN, "proof.js", "report.js"),
    ),
    "class.js": (_SHARED, (*_OWN, "proof.js", "move.js", "class.js")),
    "compare.js": ((*_SHARED, "parts.js"), (*_OWN, "compare.js")),
    "label-audits.js": (_SHARED, (*_OWN, "label-audits.js")),
    "label-audit.js": (_SHARED, (*_OWN, "label-names.js", "label-audit.js")),
    "label-set.js": (_SHARED, (*_OWN, "label-names.js", "label-set.js")),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'"
)


def export_pages(
    store: Store,
    audits: list[StoredAudit],
    folder: str | os.PathLike[str],
    label_audits: Sequence[dict[str, Any]] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> int:
    """Write the pages of these audits (each under each of its names) and label audits, whole or not
    at all; how many files there are. `tell` hears what is being written."""
    if not audits and not label_audits:
        raise UncorkError("there is no such audit in the store: nothing to export")
    check_folder(folder)
    cache = WeightsCache(store)
    once = list({audit.id: audit for audit in audits[::-1]}.values())[::-1]
    with whole_folder(folder, __version__) as place:
        for name in ("assets", "data", "downloads"):
            (place / name).mkdir()
        digest = hashlib.sha256()
        _data(place, "audits", [audit_item(audit) for audit in audits], digest)
        kept, certified = {}, {}
        for audit in once:
            tell(audit.name)
            data = audit_data(store, audit, cache)
            _data(place, f"audit-{audit.id}", data, digest)
            certified[audit.id] = data["extra"]["certified"]
            kept[audit.id] = _downloads(place, store, audit, cache)
        seen_sets = [label_audit_item(stored) for stored in label_audits]
        if seen_sets:
            _data(place, "label-audits", [plain_label_audit(one) for one in seen_sets], digest)
        for stored in seen_sets:
            tell(stored["name"])
            _, sets = set_page(store, stored["id"], None, None, stored["sets"], 0)
            _data(place, f"label-audit-{stored['id']}", sets, digest)
        _assets(place, digest)
        site = _site(digest.hexdigest()[:12], len(once) > 1, bool(seen_sets))
        _write(place / "index.html", pages.audits("Audits", site))
        if len(once) > 1:
            _write(place / "compare.html", pages.compare(site))
        for audit in once:
            seen, shown = public(audit), public_summary(audit, certified[audit.id])
            report = pages.report(seen, shown, kept[audit.id], site)
            _write(place / f"audit-{audit.id}.html", report)
            one = pages.one_class(seen, None, False, site)
            _write(place / f"audit-{audit.id}-class.html", one)
        if seen_sets:
            _write(place / "label-audits.html", pages.label_audits("Label sets", site))
        for stored in seen_sets:
            start = f"label-audit-{stored['id']}"
            _write(place / f"{start}.html", pages.label_audit(stored, site))
            _write(place / f"{start}-set.html", pages.label_set(stored, None, site))
        return sum(len(names) for _, _, names in os.walk(place)) + 1  # and the list of them


def _site(version: str, several: bool, sets: bool) -> pages.Site:
    """How these pages find one another; `version` is of what they are made of."""
    links = [
        f'<link rel="stylesheet" href="assets/{name}?{version}">' for name in (*STYLES, "site.css")
    ]
    links_to = [("index.html", "Audits", True), ("label-audits.html", "Label sets", sets)]
    links_to.append(("compare.html", "Side by side", several))
    named = "\n".join(
        f'  <a href="{address}">{text}</a>' for address, text, there in links_to if there
    )
    return pages.Site(
        "\n".join(
            [
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
                '<meta name="referrer" content="no-referrer">',
                f'<meta name="uncork-export" content="{version}">',
                *links,
                '<link rel="icon" type="image/svg+xml" href="assets/icon.svg">',
            ]
        ),
        f'<script src="assets/{{name}}?{version}"></script>',
        '<nav class="site" aria-label="Pages">\n  <a class="mark" href="index.html">uncork</a>\n'
        f"{named}\n</nav>",
        "audit-{id}.html",
        "label-audit-{id}.html",
        "The tables below <code>downloads/</code> hold the same.",
    )


def _data(place: Path, name: str, content: Any, digest: Any) -> None:
    """A script that hands over one text: whatever is in it, nothing of it is run."""
    text = json.dumps(without_infinities(content), separators=(",", ":"), allow_nan=False)
    script = f"uncorkData({json.dumps(name)}, {json.dumps(text)});\n".encode("ascii")
    digest.update(script)
    (place / "data" / f"{name}.js").write_bytes(script)


def _downloads(
    place: Path, store: Store, audit: StoredAudit, cache: WeightsCache
) -> list[tuple[str, str]]:
    """Write what a report offers: [(address, what it is), …]."""
    address = f"downloads/audit-{audit.id}.csv"
    with (place / address).open("wb") as file:
        for piece in in_pieces(csv_lines(store.rows_of(public(audit)), for_people=True)):
            file.write(piece)
    written = [(address, CSV)]
    # The store says where they are, and a store may say anything: only certificates are copied.
    if has_certificates(audit) and cache.certificates(audit) is not None:
        address = f"downloads/audit-{audit.id}-certificates.npz"
        shutil.copyfile(str(audit.certificates), place / address)
        written.append((address, CERTIFICATES))
    return written


def _assets(place: Path, digest: Any) -> None:
    """Styles, and each page's script: one file, since a page on a disk may load no modules."""
    for name in STYLES:
        _write(place / "assets" / name, asset(name))
    for name in ("site.css", "icon.svg"):
        _write(place / "assets" / name, _static(name))
    for name, (shared, own) in _SCRIPTS.items():
        script = one_script([*map(asset, shared), *map(_static, own)])
        digest.update(script.encode())
        _write(place / "assets" / name, script)


def _static(name: str) -> str:
    return files("uncork.web").joinpath("static").joinpath(name).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
