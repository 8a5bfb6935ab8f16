"""uncork: what can the output layer of a model say, and what can it never say?"""

from uncork.domain import Ball, Box, Domain, Unbounded
from uncork.errors import UncorkError
from uncork.head import Head

__version__ = "0.1.0"

__all__ = ["Ball", "Box", "Domain", "Head", "Unbounded", "UncorkError", "__version__"]
