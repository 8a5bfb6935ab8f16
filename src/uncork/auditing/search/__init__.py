"""The proposers: fast, clever or wrong. What they find counts once it is certified.

To add one, write a module with a `PROPOSER` and name it in a list below.
"""

from uncork.auditing.search import (
    centre,
    equals,
    exact,
    guesses,
    reference,
    rows,
    screen,
    shares,
    tilt,
)
from uncork.auditing.search.proposer import Proposer
from uncork.auditing.search.together import alike, blockers, projection, winners

# Each is given the classes that those before it left undecided.
FAST: tuple[Proposer, ...] = (
    equals.PROPOSER,
    winners.PROPOSER,
    guesses.PROPOSER,
    blockers.PROPOSER,
    screen.PROPOSER,
    shares.PROPOSER,
    projection.PROPOSER,
    tilt.PROPOSER,
    alike.PROPOSER,
    centre.PROPOSER,
    rows.PROPOSER,
    exact.PROPOSER,
)
# The paper's pipeline. Its linear programme's word that a class is unargmaxable is a status, not a
# proof: the mixture that proves it is sought afterwards.
REFERENCE: tuple[Proposer, ...] = (
    reference.BRAID_REFLECT,
    reference.CHEBYSHEV,
    rows.PROPOSER,
    exact.PROPOSER,
)
# The same without deciding: what has no witness then is potentially unargmaxable.
FAST_APPROXIMATE: tuple[Proposer, ...] = (
    equals.PROPOSER,
    guesses.PROPOSER,
    screen.PROPOSER,
)
REFERENCE_APPROXIMATE: tuple[Proposer, ...] = (reference.BRAID_REFLECT,)

ALGORITHMS = ("fast", "reference")


def proposers(algorithm: str, approximate: bool) -> tuple[Proposer, ...]:
    """The list that an audit goes through."""
    if algorithm == "reference":
        return REFERENCE_APPROXIMATE if approximate else REFERENCE
    return FAST_APPROXIMATE if approximate else FAST
