"""Domains written as text, or named by a file."""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.domain.protocol import KINDS, Domain


def parse_domain(text: str) -> Domain:
    """Read `box:100`, `box:LO,HI`, `box:LO,HI;LO,HI;…`, `ball:R`, `unbounded`, `@FILE`, or what
    another registered domain is written as."""
    text = text.strip()
    if text.startswith("@"):
        from uncork.domain.file import read_domain

        return read_domain(text[1:])[0]
    kind, _, rest = text.partition(":")
    printed, bracket, _ = kind.partition("(")
    if bracket and printed in KINDS and not KINDS[printed].forms:
        raise UncorkError(
            f"domain {text!r} has arrays, which text cannot hold: write it with "
            "uncork.domain.file.write_domain and give @FILE"
        )
    try:
        if kind in KINDS:
            return KINDS[kind].parse(rest)
    except UncorkError:
        raise
    except ValueError:
        pass
    forms = ", ".join(form for known in KINDS.values() for form in known.forms)
    raise UncorkError(
        f"domain {text!r} is not understood: expected {forms}, @FILE or (of a model) auto"
    )
