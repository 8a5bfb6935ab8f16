"""Sparse output transforms and losses, called as those of torch.nn.functional are.

Transforms take logits of any shape and a `dim`; losses take what
:func:`torch.nn.functional.cross_entropy` takes. Everything is computed in float32 or better and
is differentiable twice. −inf logits are masked classes: probability 0, gradient 0. A row that is
masked entirely gives all zeros (torch.softmax gives NaN) with gradient zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uncork.nn.linear.distillation import linear_distillation_loss
from uncork.nn.linear.log_prob import LinearLogProb, linear_log_prob
from uncork.nn.linear.vocab_parallel import vocab_parallel_loss
from uncork.nn.losses import functions
from uncork.nn.losses.functions import *  # noqa: F403
from uncork.nn.losses.specification import LinearLossResult
from uncork.nn.transforms.alpha_relu import (
    alpha_relu,
    alpha_relu_log_scores,
    log_alpha_relu,
    log_alpha_relu_topk,
)
from uncork.nn.transforms.budget import budget
from uncork.nn.transforms.entmax import (
    LogTopK,
    SparseOutput,
    entmax,
    log_entmax,
    log_entmax_topk,
    log_sparsemax,
    sparsemax,
)
from uncork.nn.transforms.normmax import normmax

__all__ = [
    "LinearLogProb",
    "LinearLossResult",
    "LogTopK",
    "SparseOutput",
    "alpha_relu",
    "alpha_relu_log_scores",
    "budget",
    "entmax",
    "linear_distillation_loss",
    "linear_log_prob",
    "log_alpha_relu",
    "log_alpha_relu_topk",
    "log_entmax",
    "log_entmax_topk",
    "log_sparsemax",
    "normmax",
    "sparsemax",
    "vocab_parallel_loss",
]
__all__ += functions.__all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A loss that was registered after this module was imported."""
        if name in functions.__all__:
            return getattr(functions, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*__all__, *functions.__all__})
