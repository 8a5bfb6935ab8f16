"""Output heads with one interface: plain softmax, mixtures and their descendants, sparse heads.

head = unn.heads.HEADS["mos"](512, 50_000, components=10)
head.loss(hidden, target).backward()         # (rows × classes) is never made in full
head.log_probabilities(hidden); head.argmax(hidden); head.top_k(hidden, 5); head.sample(hidden)
unn.heads.replace(model, "mos", components=10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uncork.nn.heads import of_losses
from uncork.nn.heads.argmaxable import ArgmaxableHead
from uncork.nn.heads.base import OutputHead, TopK
from uncork.nn.heads.contexts import MixtureOfContexts
from uncork.nn.heads.k_active import KActiveHead, replace_classifier
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.mixture import MixtureOfSoftmaxes
from uncork.nn.heads.of_losses import *  # noqa: F403
from uncork.nn.heads.plif import PlifHead
from uncork.nn.heads.registry import HEADS, describe, make
from uncork.nn.heads.sigsoftmax import MixtureOfSigSoftmaxes, SigSoftmaxHead
from uncork.nn.heads.softmax import SoftmaxHead
from uncork.nn.heads.swap import load_pretrained, replace

if TYPE_CHECKING:
    from uncork.nn.heads.audit import HeadAudit, audit_head

__all__ = [
    "HEADS",
    "ArgmaxableHead",
    "HeadAudit",
    "KActiveHead",
    "MixtapeHead",
    "MixtureOfContexts",
    "MixtureOfSigSoftmaxes",
    "MixtureOfSoftmaxes",
    "OutputHead",
    "PlifHead",
    "SigSoftmaxHead",
    "SoftmaxHead",
    "TopK",
    "audit_head",
    "describe",
    "load_pretrained",
    "make",
    "replace",
    "replace_classifier",
]
__all__ += of_losses.__all__


def __getattr__(name: str) -> Any:
    if name in of_losses.__all__:  # of a loss that was registered later
        return getattr(of_losses, name)
    if name not in ("HeadAudit", "audit_head"):
        raise AttributeError(f"module 'uncork.nn.heads' has no attribute {name!r}")
    from uncork.nn.heads import audit  # the audit and what it needs: only where it is asked for

    return getattr(audit, name)
