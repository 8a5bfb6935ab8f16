"""Domains: the set D of inputs that can arrive at a head.

One file each, imported here so that its kind is known; `protocol` says what a domain brings.
"""

from uncork.domain.protocol import Domain, register

# isort: off
from uncork.domain.box import Box
from uncork.domain.ball import Ball
from uncork.domain.unbounded import Unbounded
from uncork.domain.images import Image, LayerNorm, RMSNorm
# isort: on

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
    "register",
]
