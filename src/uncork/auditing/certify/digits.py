"""How long the numbers of an exact proof can be: Hadamard bounds what the exact solver makes.

Its numbers are ratios of minors of at most (latent + 2)² whole numbers, the rows of the head as u
sees them; in a ball, products of a few of these. A minor of m × m numbers of p bits has at most
m (p + log₂ m) bits. A proof with longer numbers was not made here, and is not worth the time.
"""

from __future__ import annotations

from functools import cached_property

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.rigour import whole_bits
from uncork.domain import Domain

_WIDEST = 32 << 10  # digits a feature, where the head is not at hand to tell
_MINORS = 8  # no number is made of more of them
_BESIDES = 1 << 16  # cheap, and more than any small head needs


def most_bits(head: Head, domain: Domain) -> int:
    """No whole number of an exact proof for this head has more bits."""
    view = domain.affine(head.features)
    outline = view.base.outline(view.latent)
    rows = (block for _, block in head.blocks(4096))
    bits = whole_bits([head.offsets, outline.lower, outline.upper]) + whole_bits(rows)
    bits += sum(step.bits(view.latent) for step in view.steps)
    size = view.latent + 3
    return _MINORS * size * (bits + size.bit_length()) + _BESIDES


class WholeNumbers:
    """Reads whole numbers of a file's exact proofs: hexadecimal text, no longer than that."""

    def __init__(self, domain: Domain, features: int, head: Head | None) -> None:
        self.domain, self.features = domain, features
        self.head = head if head is not None and head.features == features else None

    @cached_property
    def most(self) -> int:
        if self.head is not None:
            return most_bits(self.head, self.domain) // 4 + 8
        return (self.domain.affine(self.features).latent + 3) * _WIDEST

    def __call__(self, text: str) -> int:
        if len(text) > self.most:
            raise UncorkError(
                f"an exact proof holds a number of {len(text):,} digits: exact arithmetic makes "
                f"at most {self.most:,} for such a head"
            )
        return int(text, 16)


def most_named(latent: int) -> int:
    """No exact mixture of the solver names more classes: they are a basis."""
    return latent + 2
