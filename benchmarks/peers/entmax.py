"""The entmax package's own tests, run on uncork.nn.

    git clone https://github.com/deep-spin/entmax CHECKOUT
    python -m benchmarks.peers.entmax CHECKOUT [arguments of pytest]

Modules with the package's names take the place of its own, and every name in them that its tests
use is ours. Nothing is fetched, and nothing of the checkout but its tests is read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import uncork.nn.functional as F

Tensor = torch.Tensor


def _thresholds(alpha: float) -> Any:
    def threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> Any:
        found = F.entmax(X, alpha, dim, k=k, return_support=True)
        return found.tau, found.support_size

    return threshold_and_support


class _Map(torch.nn.Module):
    alpha: float

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X: Tensor) -> Tensor:
        return F.entmax(X, self.alpha, self.dim, k=self.k)


class _Loss(torch.nn.Module):
    """Called as the package's: "elementwise_mean", and an ignore_index that may be a tensor."""

    name: str

    def __init__(
        self,
        k: int | None = None,
        alpha: float | None = None,
        ignore_index: Any = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__()
        self.options: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
        self.options["ignore_index"] = int(ignore_index)
        self.options["reduction"] = "mean" if reduction == "elementwise_mean" else reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = getattr(F, self.name)(X, target, **self.options)
        return loss


def adapter() -> dict[str, types.ModuleType]:
    """entmax and its modules, as its tests import them."""
    names: dict[str, dict[str, Any]] = {
        "entmax.activations": {
            "sparsemax": F.sparsemax,
            "entmax15": lambda X, dim=-1, k=None: F.entmax(X, 1.5, dim, k=k),
            "Sparsemax": type("Sparsemax", (_Map,), {"alpha": 2.0}),
            "Entmax15": type("Entmax15", (_Map,), {"alpha": 1.5}),
            "_sparsemax_threshold_and_support": _thresholds(2.0),
            "_entmax_threshold_and_support": _thresholds(1.5),
        },
        "entmax.root_finding": {
            "sparsemax_bisect": F.sparsemax,
            "entmax_bisect": F.entmax,
            "normmax_bisect": F.normmax,
            "budget_bisect": F.budget,
        },
        "entmax.losses": {
            "SparsemaxLoss": type("SparsemaxLoss", (_Loss,), {"name": "sparsemax_loss"}),
            "SparsemaxBisectLoss": type(
                "SparsemaxBisectLoss", (_Loss,), {"name": "sparsemax_loss"}
            ),
            "Entmax15Loss": type("Entmax15Loss", (_Loss,), {"name": "entmax_loss"}),
            "EntmaxBisectLoss": type("EntmaxBisectLoss", (_Loss,), {"name": "entmax_loss"}),
            "NormmaxBisectLoss": type("NormmaxBisectLoss", (_Loss,), {"name": "normmax_loss"}),
        },
    }
    modules = {"entmax": types.ModuleType("entmax")}
    modules["entmax"].__path__ = []  # a package
    for name, members in names.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update(members)
        setattr(modules["entmax"], name.rpartition(".")[2], modules[name])
        vars(modules["entmax"]).update(members)
    return modules


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of deep-spin/entmax")
    given, others = parser.parse_known_args()
    tests = sorted(given.checkout.rglob("test_*.py"))
    if not tests:
        parser.error(f"{given.checkout} has no test_*.py: give a checkout of deep-spin/entmax")
    # Unseeded, one run in two hundred draws targets that it then ignores, all of them: their mean
    # is NaN, the package's own too.
    torch.manual_seed(0)
    sys.modules.update(adapter())
    # As scripts of no package, outside ours: its own package must not be imported with them.
    options = [
        "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--noconftest",
        "-c", "/dev/null", f"--rootdir={tempfile.gettempdir()}",
    ]  # fmt: skip
    return int(pytest.main([*options, *others, *map(str, tests)]))


if __name__ == "__main__":
    sys.exit(main())
