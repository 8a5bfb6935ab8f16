"""Label sets of multi-label heads: which can some input produce, and which can none?"""

from uncork.labels.decide import decide_sets
from uncork.labels.result import LabelAudit, SetVerdict
from uncork.labels.sets import LabelSets
from uncork.labels.thresholds import logit

__all__ = ["LabelAudit", "LabelSets", "SetVerdict", "decide_sets", "logit"]
