"""Domains: the set D of inputs that can arrive at a head."""

from uncork.domain.images import Image, LayerNorm, RMSNorm
from uncork.domain.sets import Ball, Box, Domain, Unbounded
from uncork.domain.text import parse_domain

__all__ = [
    "Ball",
    "Box",
    "Domain",
    "Image",
    "LayerNorm",
    "RMSNorm",
    "Unbounded",
    "parse_domain",
]
