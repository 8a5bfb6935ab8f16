"""Output layers and losses to train with: sparse transforms that behave as torch's own do.

`uncork.nn.functional` has the functions, this module the layers. `uncork.nn.reference` and
`uncork.nn.shape` need NumPy and SciPy only; everything else needs PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uncork.nn import functional, heads, hf, patch, reference
    from uncork.nn.argmaxable import ArgmaxableLinear
    from uncork.nn.entmax import SparseOutput
    from uncork.nn.heads import (
        AlphaReLUHead,
        ArgmaxableHead,
        EntmaxHead,
        MixtapeHead,
        MixtureOfContexts,
        MixtureOfSigSoftmaxes,
        MixtureOfSoftmaxes,
        OutputHead,
        PlifHead,
        SigSoftmaxHead,
        SoftmaxHead,
        SparsemaxHead,
    )
    from uncork.nn.linear_modules import (
        LinearAlphaReLULoss,
        LinearCrossEntropyLoss,
        LinearEntmaxLoss,
        LinearSparsemaxLoss,
    )
    from uncork.nn.modules import (
        AlphaReLU,
        AlphaReLULoss,
        Budget,
        Entmax,
        EntmaxLoss,
        LogEntmax,
        Normmax,
        NormmaxLoss,
        SoftmaxLoss,
        Sparsemax,
        SparsemaxLoss,
    )
    from uncork.nn.shape import support_share_from_shape, tau_from_shape
    from uncork.nn.tau import TauMeter, calibrate_tau, tau_from_data

# Where each name lives. Imported when first used: the parts without torch import without it.
_HOME = {
    "functional": "functional",
    "heads": "heads",
    "hf": "hf",
    "patch": "patch",
    "AlphaReLUHead": "heads",
    "ArgmaxableHead": "heads",
    "EntmaxHead": "heads",
    "MixtapeHead": "heads",
    "MixtureOfContexts": "heads",
    "MixtureOfSigSoftmaxes": "heads",
    "MixtureOfSoftmaxes": "heads",
    "OutputHead": "heads",
    "PlifHead": "heads",
    "SigSoftmaxHead": "heads",
    "SoftmaxHead": "heads",
    "SparsemaxHead": "heads",
    "reference": "reference",
    "SparseOutput": "entmax",
    "ArgmaxableLinear": "argmaxable",
    "AlphaReLU": "modules",
    "AlphaReLULoss": "modules",
    "Budget": "modules",
    "Entmax": "modules",
    "EntmaxLoss": "modules",
    "LinearAlphaReLULoss": "linear_modules",
    "LinearCrossEntropyLoss": "linear_modules",
    "LinearEntmaxLoss": "linear_modules",
    "LinearSparsemaxLoss": "linear_modules",
    "LogEntmax": "modules",
    "Normmax": "modules",
    "NormmaxLoss": "modules",
    "SoftmaxLoss": "modules",
    "Sparsemax": "modules",
    "SparsemaxLoss": "modules",
    "TauMeter": "tau",
    "calibrate_tau": "tau",
    "Watch": "watch",
    "tau_from_data": "tau",
    "tau_from_shape": "shape",
    "support_share_from_shape": "shape",
}

__all__ = [
    "AlphaReLU",
    "AlphaReLUHead",
    "AlphaReLULoss",
    "ArgmaxableHead",
    "ArgmaxableLinear",
    "Budget",
    "Entmax",
    "EntmaxHead",
    "EntmaxLoss",
    "LinearAlphaReLULoss",
    "LinearCrossEntropyLoss",
    "LinearEntmaxLoss",
    "LinearSparsemaxLoss",
    "LogEntmax",
    "MixtapeHead",
    "MixtureOfContexts",
    "MixtureOfSigSoftmaxes",
    "MixtureOfSoftmaxes",
    "Normmax",
    "NormmaxLoss",
    "OutputHead",
    "PlifHead",
    "SigSoftmaxHead",
    "SoftmaxHead",
    "SoftmaxLoss",
    "SparseOutput",
    "Sparsemax",
    "SparsemaxHead",
    "SparsemaxLoss",
    "TauMeter",
    "Watch",
    "calibrate_tau",
    "functional",
    "heads",
    "hf",
    "patch",
    "reference",
    "support_share_from_shape",
    "tau_from_data",
    "tau_from_shape",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uncork.nn' has no attribute {name!r}")
    module = importlib.import_module(f"uncork.nn.{_HOME[name]}")
    return module if _HOME[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
