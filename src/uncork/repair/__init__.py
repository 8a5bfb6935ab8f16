"""Changed heads: classes made argmaxable, what it costs, and the proof."""

from uncork.repair.bias import BiasNeeded, bias_needed
from uncork.repair.changed_predictions import Price, price
from uncork.repair.job import Repair
from uncork.repair.prevention import (
    Prevention,
    as_stored,
    audit_prevented,
    prevent,
    prevent_as_stored,
)
from uncork.repair.proven import audit_repaired
from uncork.repair.run import repair
from uncork.repair.silence import Silence, silenced

__all__ = [
    "BiasNeeded",
    "Prevention",
    "Price",
    "Repair",
    "Silence",
    "as_stored",
    "audit_prevented",
    "audit_repaired",
    "bias_needed",
    "prevent",
    "prevent_as_stored",
    "price",
    "repair",
    "silenced",
]
