"""draw: pictures of heads of two and three features, fit to print."""

from uncork.draw.examples import EXAMPLES, example
from uncork.draw.picture import WHAT, draw

__all__ = ["EXAMPLES", "WHAT", "draw", "example"]
