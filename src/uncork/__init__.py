"""uncork: what can the output layer of a model say, and what can it never say?"""

from uncork.core import early  # noqa: F401  first, while Ctrl-C would still show a traceback

# isort: split

from uncork.auditing import Audit, Interrupted, Mixture, Verdict, Verification, Witness, audit
from uncork.auditing.certify.verify import verify
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.domain import Ball, Box, Domain, Image, LayerNorm, RMSNorm, Unbounded
from uncork.loading import load, load_items

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Ball",
    "Box",
    "Domain",
    "Head",
    "Image",
    "Interrupted",
    "Items",
    "LayerNorm",
    "Mixture",
    "RMSNorm",
    "Unbounded",
    "UncorkError",
    "Verdict",
    "Verification",
    "Witness",
    "__version__",
    "audit",
    "load",
    "load_items",
    "verify",
]
