"""Domains: the set D of inputs that can arrive at a head.

One file each, imported here so that its kind is known; `protocol` says what a domain brings.
"""

from uncork.domain.protocol import Domain, register

# isort: off
from uncork.domain.box import Box
from uncork.domain.ball import Ball
from uncork.domain.unbounded import Unbounded
from uncork.domain.simplex import Simplex
from uncork.domain.images import Image, LayerNorm, RMSNorm
from uncork.domain.hull import Hull
# isort: on

from uncork.domain.text import parse_domain

__all__ = [
    "Ball",
    "Box",
    "Domain",
    "Hull",
    "Image",
    "LayerNorm",
    "RMSNorm",
    "Simplex",
    "Unbounded",
    "parse_domain",
    "register",
]
