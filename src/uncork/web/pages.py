"""The pages themselves: shells that a script fills from the API, and the report of an audit."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from uncork.report.data import ODD_NAMES
from uncork.report.label_page import answer_on_sets
from uncork.report.page import STYLES, doubts, escaped, filled
from uncork.report.rows import Summary, base_name
from uncork.report.wording import about_items
from uncork.store import StoredAudit
from uncork.web.stored import summary, title

_SITE = '<link rel="stylesheet" href="/static/site.css">'
_ICON = '<link rel="icon" type="image/svg+xml" href="/static/icon.svg">'


@dataclass(frozen=True)
class Site:
    """How pages find styles, scripts and one another: on a server, or in a folder of files."""

    head: str  # markup that brings policy and styles
    script: str  # markup with the name of a script for {name}
    navigation: str
    audit: str  # address of a report, with the number of an audit for {id}
    label_audit: str  # the same of a label audit
    instead: str  # markup for browsers that run no scripts


def audits(store: str, site: Site | None = None) -> str:
    """All audits: filter, sort, choose two to compare."""
    heading = "Every model that was audited"
    part = _part("audits.html")
    return _page("Audits", escaped(store), heading, "", part, "audits.js", site=site)


def compare(site: Site | None = None) -> str:
    """Two audits side by side."""
    heading, part = "What one loses, and the other does not", _part("compare.html")
    return _page("Side by side", "Side by side", heading, "", part, "compare.js", site=site)


def one_class(
    audit: StoredAudit, class_id: int | None, local: bool = True, site: Site | None = None
) -> str:
    """One class of one audit; None for a page that finds the class in its address. `local`:
    whether the server can be asked to move its row."""
    words = summary(audit).words
    data = {
        "audit": audit.id, "class": class_id, "words": words.instead or None, "local": local,
        "bias": audit.has_bias, "about": about_items(audit.metric),
    }  # fmt: skip
    report = (site or _served()).audit.format(id=audit.id)
    name = f'<a href="{report}"><bdi>{escaped(title(audit))}</bdi></a>'
    main = doubts(audit.reading)
    main += '<div id="class"><p class="soft" role="status">Proving it again …</p></div>'
    heading = words.say("Class" if class_id is None else f"Class {class_id:,}")
    return _page(heading.replace(",", ""), name, heading, "", main, "class.js", data, site)


def label_audits(store: str, site: Site | None = None) -> str:
    """All label audits: what was decided about label sets of multi-label heads."""
    heading = "Label sets of multi-label heads"
    part = _part("label-audits.html")
    return _page("Label sets", escaped(store), heading, "", part, "label-audits.js", site=site)


def label_audit(stored: dict[str, Any], site: Site | None = None) -> str:
    """One label audit: its counts, and its sets, searched and in pages."""
    name = f"<bdi>{_name_of(stored)}</bdi>"
    counts = {verdict: stored[verdict] for verdict in ("feasible", "infeasible", "undecided")}
    heading = escaped(answer_on_sets(counts, stored["sets"]))
    main = doubts(stored["reading"]) + _part("label-audit.html")
    data = {"audit": stored["id"]}
    title, heading = f"Label audit {stored['id']}", heading[:1].upper() + heading[1:]
    return _page(title, name, heading, "", main, "label-audit.js", data, site)


def label_set(stored: dict[str, Any], set_id: int | None, site: Site | None = None) -> str:
    """One label set of a label audit, with its proof; None for a page that finds the set in its
    address."""
    data = {"audit": stored["id"], "set": set_id, "sets": stored["sets"]}
    whole = (site or _served()).label_audit.format(id=stored["id"])
    name = f'<a href="{whole}"><bdi>{_name_of(stored)}</bdi></a>'
    main = doubts(stored["reading"])
    main += '<div id="set"><p class="soft" role="status">Proving it again …</p></div>'
    title = "Label set" if set_id is None else f"Label set {set_id}"
    heading = "Label set" if set_id is None else f"Label set {set_id:,}"
    return _page(title, name, heading, "", main, "label-set.js", data, site)


def _name_of(stored: dict[str, Any]) -> str:
    """What a page calls a label audit: its name, or the last part of where it is from."""
    own = stored["name"]
    return escaped(own if own != stored["source"] else base_name(own))


def docs() -> str:
    """The API, drawn from its own OpenAPI description."""
    lead = 'Described in full by <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).'
    return _page("API", "API", "The same, as JSON", lead, '<div id="paths"></div>', "docs.js")


def problem(status: int, text: str) -> str:
    """What went wrong, and the way back."""
    main = '<p><a href="/">All audits</a></p>'
    return _page(
        str(status), str(status), escaped(text[:1].upper() + text[1:]), "", main, "plain.js"
    )


def report(
    audit: StoredAudit, shown: Summary, downloads: list[tuple[str, str]], site: Site | None = None
) -> str:
    """The report of a stored audit: its classes, figures and odd rows are asked for when seen.
    `downloads` are files of it: (address, what it is)."""
    site = site or _served()
    data = {
        "audit": audit.id,
        "size": audit.asked,
        "counts": shown.counts,
        "unknown": "potentially unargmaxable" if audit.approximate else "undecided",
        "words": shown.words.instead or None,
        "about": about_items(audit.metric),
        "odd": list(ODD_NAMES),
    }
    links = ", ".join(
        f'<a href="{html.escape(address)}" download>{escaped(text)}</a>'
        for address, text in downloads
    )
    return filled(
        shown, data, site.head, site.script.format(name="report.js"), site.navigation,
        f'<p class="print-hidden" id="downloads">Downloads: {links}.</p>' if links else "",
    )  # fmt: skip


def playground() -> str:
    """The playground among the other pages; its style and scripts are links."""
    page = files("uncork.web").joinpath("playground.html").read_text(encoding="utf-8")
    page = page.replace('<link rel="icon" href="data:,">', _ICON + "\n" + _SITE)
    return page.replace("<header>", _part("navigation.html") + "<header>", 1)


def _served() -> Site:
    """The pages of a server."""
    links = [f'<link rel="stylesheet" href="/assets/{name}">' for name in STYLES]
    return Site(
        "\n".join([*links, _SITE, _ICON]),
        '<script type="module" src="/static/{name}"></script>',
        _part("navigation.html"),
        "/audits/{id}",
        "/label-audits/{id}",
        'The same is in the\n<a href="/api/audits">API</a>.',
    )


def _page(
    page_title: str,
    name: str,
    heading: str,
    lead: str,
    main: str,
    script: str,
    data: dict[str, Any] | None = None,
    site: Site | None = None,
) -> str:
    """`page_title` and `heading` are words of ours; what comes from a store is escaped before."""
    site = site or _served()
    parts = {
        "title": f"{page_title} · uncork",
        "head": site.head,
        "data": f" data-page='{html.escape(json.dumps(data))}'" if data else "",
        "navigation": site.navigation,
        "name": name,
        "heading": heading,
        "lead": lead,
        "main": main,
        "instead": site.instead,
        "script": site.script.format(name=script),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: parts[marker[1]], _part("shell.html"))


def _part(name: str) -> str:
    return files("uncork.web").joinpath("templates").joinpath(name).read_text(encoding="utf-8")
