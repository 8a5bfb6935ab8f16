"""What `mkdocs.yml` cannot say: pages that list themselves, and the playground."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]+)\)")


def on_config(config: Any) -> Any:
    """List the pages of results/, leave out what is not written yet, add what nobody listed."""
    nav = [_existing(entry) for entry in config["nav"]]
    for entry in nav:
        if entry and "Results" in entry:
            pages = sorted((DOCS / "results").glob("*.md"), key=_index_first)
            # An index is the section's own page.
            entry["Results"] = [
                name if page.stem == "index" else {_title(page): name}
                for page, name in ((page, f"results/{page.name}") for page in pages)
            ]
    listed = set(_pages(nav))
    every = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    rest = sorted(every - listed)
    if rest:
        nav.append({"More": [{_title(DOCS / page): page} for page in rest]})
    config["nav"] = [entry for entry in nav if entry and list(entry.values()) != [[]]]
    return config


def on_files(files: Files, config: Any) -> Files:
    """The playground is made here, from the package."""
    from uncork.web.playground import standalone

    files.append(File.generated(config, "playground.html", content=standalone()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Files beside docs/ are part of the repository, not of the site: name them, link nothing."""
    return OUTSIDE.sub(
        lambda match: match.group(0) if _inside(match.group(2)) else f"{match.group(1)}", markdown
    )


def _inside(link: str) -> bool:
    """Whether a link with ../ stays in docs/: those of subfolders do."""
    return any((folder / link).resolve().is_relative_to(DOCS) and (folder / link).exists()
               for folder in (DOCS / name for name in ("tutorials", "api", "results")))  # fmt: skip


def _existing(entry: Any) -> Any:
    if isinstance(entry, dict):
        (name, value), *_ = entry.items()
        if isinstance(value, list):
            return {name: [kept for kept in map(_existing, value) if kept]}
        return entry if (DOCS / value).exists() else None
    return entry


def _index_first(page: Path) -> tuple[bool, str]:
    return page.stem != "index", page.stem


def _pages(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries or []
    return [page for value in values for page in _pages(value)]


def _title(page: Path) -> str:
    """A page's first heading."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line[2:].replace("`", "")
    return page.stem
