"""Output layers and losses to train with: sparse transforms that behave as torch's own do.

`uncork.nn.functional` has the functions, this module the layers, `uncork.nn.heads` whole output
heads. `uncork.nn.reference` and :func:`tau_from_shape` need NumPy and SciPy only; everything else
needs PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uncork.nn import functional, heads, hf, losses, modules, patch, reference, watch
    from uncork.nn.argmaxable import ArgmaxableLinear
    from uncork.nn.k_active import KActiveLinear
    from uncork.nn.losses.modules import *  # noqa: F403
    from uncork.nn.modules import *  # noqa: F403
    from uncork.nn.transforms.entmax import SparseOutput
    from uncork.nn.transforms.shape import support_share_from_shape, tau_from_shape
    from uncork.nn.transforms.tau import TauMeter, calibrate_tau, tau_from_data
    from uncork.nn.watch import Watch

    __all__: list[str] = [
        "ArgmaxableLinear",
        "KActiveLinear",
        "SparseOutput",
        "TauMeter",
        "Watch",
        "calibrate_tau",
        "functional",
        "heads",
        "hf",
        "losses",
        "patch",
        "reference",
        "support_share_from_shape",
        "tau_from_data",
        "tau_from_shape",
        "watch",
    ]
    __all__ += modules.__all__

# Where each name lives; the layers and losses are those of `uncork.nn.modules`. Imported when first
# used: the parts without torch import without it.
_ROOMS = ("functional", "heads", "hf", "losses", "patch", "reference", "watch")
_HOME = {
    "ArgmaxableLinear": "argmaxable",
    "KActiveLinear": "k_active",
    "SparseOutput": "transforms.entmax",
    "TauMeter": "transforms.tau",
    "Watch": "watch",
    "calibrate_tau": "transforms.tau",
    "support_share_from_shape": "transforms.shape",
    "tau_from_data": "transforms.tau",
    "tau_from_shape": "transforms.shape",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return importlib.import_module(f"uncork.nn.{name}")
        if name in _HOME:
            return getattr(importlib.import_module(f"uncork.nn.{_HOME[name]}"), name)
        if name == "__all__":
            return __dir__()
        if name[:1].isupper() and name in dir(importlib.import_module("uncork.nn.modules")):
            return getattr(importlib.import_module("uncork.nn.modules"), name)
        raise AttributeError(f"module 'uncork.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = [*_ROOMS, *_HOME]
    with contextlib.suppress(ImportError):  # no torch
        names += dir(importlib.import_module("uncork.nn.modules"))
    return sorted(names)
