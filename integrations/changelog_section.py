"""The section of CHANGELOG.md about one version, for the notes of a release.

    python changelog_section.py v0.1.0

Exits with 1 if there is none, if it is still marked as unreleased, or if the package has another
version: a tag that does not fit is noticed before anything is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def section(tag: str, root: Path = ROOT) -> str:
    version = tag.removeprefix("v")
    init = (root / "src" / "uncork" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.*)"$', init, re.M)
    if match is None or match[1] != version:
        sys.exit(f"the tag is {tag}, and the package's version is {match and match[1]}")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## \[(.+?)\](.*)$", text, flags=re.M)
    for name, rest, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if name == version:
            if "unreleased" in rest.lower():
                sys.exit(f"CHANGELOG.md marks {version} as unreleased: give it a date")
            return body.strip() + "\n"
    sys.exit(f"CHANGELOG.md has no section [{version}]")


if __name__ == "__main__":
    print(section(*sys.argv[1:]), end="")
