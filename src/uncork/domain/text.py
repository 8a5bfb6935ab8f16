"""Domains written as text, or named by a file."""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain.sets import Ball, Box, Domain, Unbounded


def parse_domain(text: str) -> Domain:
    """Read `box:100`, `box:LO,HI`, `box:LO,HI;LO,HI;…`, `ball:R`, `unbounded`, or `@FILE`."""
    text = text.strip()
    if text.startswith("@"):
        from uncork.domain.file import read_domain

        return read_domain(text[1:])[0]
    kind, _, rest = text.partition(":")
    expected = "expected box:R, box:LO,HI, ball:R, unbounded, @FILE or (of a model) auto"
    if kind.startswith(("layernorm(", "rmsnorm(", "image(")):
        raise UncorkError(
            f"domain {text!r} has arrays, which text cannot hold: write it with "
            "uncork.domain.file.write_domain and give @FILE"
        )
    try:
        if kind == "unbounded" and not rest:
            return Unbounded()
        if kind == "ball":
            return Ball(float(rest))
        if kind == "box":
            texts = rest.removesuffix(";").split(";")
            pairs = [[float(part) for part in pair.split(",")] for pair in texts]
            if ";" not in rest and len(pairs[0]) in (1, 2):
                return Box(*pairs[0])
            if all(len(pair) == 2 for pair in pairs):
                return Box(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]))
    except UncorkError:
        raise
    except ValueError:
        pass
    raise UncorkError(f"domain {text!r} is not understood: {expected}")
