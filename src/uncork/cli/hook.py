"""`python -m uncork.cli.hook`: `uncork check` on every file that pre-commit names.

Options come first, files last, as pre-commit puts them together. The worst exit status is its own.
"""

from __future__ import annotations

import sys

from uncork.cli.program import app


def main(arguments: list[str]) -> int:
    """Check each of the files at the end of the arguments with the options before them."""
    first = len(arguments)
    while first and not arguments[first - 1].startswith("-"):
        first -= 1
    options, files = arguments[:first], arguments[first:]
    if "--" in options:
        options.remove("--")
    statuses = [
        app(["check", file, "--quiet", *options], prog_name="uncork", standalone_mode=False) or 0
        for file in files
    ]
    return max(statuses, default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
