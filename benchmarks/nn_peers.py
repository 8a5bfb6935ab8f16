"""Peers of uncork.nn's functions: who can be imported, in which version and by which path.

Every function here returns callables by name, and `PATHS` says of each name which package in which
version it is, and which of its ways. A package that cannot be imported is left out, and a line says
so. They come from the environment, or from a folder of packages and wheels (`add_to_path`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import site
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Tensor = torch.Tensor
Loss = Callable[..., Tensor]
#: of every name below, "package version, path"
PATHS: dict[str, str] = {}
_said: set[str] = set()


def add_to_path(folder: Path) -> None:
    """Import from a folder before anywhere else; wheels and archives in it are unpacked first."""
    before = list(sys.path)
    packed = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.xz")])
    if packed:
        # quack takes functions for a library's, and not for its user's, by this name in their path
        unpacked = Path(tempfile.mkdtemp(prefix="peers-")) / "site-packages"
        for package in packed:
            if package.suffix == ".whl":
                with zipfile.ZipFile(package) as archive:
                    archive.extractall(unpacked)
            else:
                with tarfile.open(package) as archive:
                    archive.extractall(unpacked, filter="data")
        site.addsitedir(str(unpacked))  # a .pth file may name folders inside
    site.addsitedir(str(folder.resolve()))
    sys.path[:] = [path for path in sys.path if path not in before] + before
    importlib.invalidate_caches()


def _left_out(package: str, error: Exception) -> None:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    line = f"{package} takes no part: {said}"
    if line not in _said:
        _said.add(line)
        print(line, flush=True)


def named(name: str, package: str, path: str = "") -> str:
    """The name, noted with its package's version and path."""
    version = torch.__version__ if package == "torch" else importlib.metadata.version(package)
    PATHS[name] = f"{package} {version}" + (f", {path}" if path else "")
    return name


def transforms() -> dict[str, Callable[[Tensor], Tensor]]:
    """1.5-entmax of logits."""
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    try:
        import entmax

        for name, work in {
            "entmax package, full sort": entmax.entmax15,
            "entmax package, k = 100": lambda x: entmax.entmax15(x, k=100),
            "entmax package, bisection": lambda x: entmax.entmax_bisect(x, 1.5),
        }.items():
            found[named(name, "entmax")] = work
    except Exception as error:
        _left_out("entmax", error)
    try:
        import adasplash

        if hasattr(adasplash, "triton_entmax_v2"):
            name = named("AdaSplash-2", "adasplash", "triton_entmax_v2")
            found[name] = lambda x: adasplash.triton_entmax_v2(x, alpha=1.5)
        first = getattr(adasplash, "triton_entmax_v1", adasplash.triton_entmax)
        found[named("AdaSplash", "adasplash", "triton_entmax_v1")] = lambda x: first(x, alpha=1.5)
    except Exception as error:
        _left_out("adasplash", error)
    return found


def losses_of_logits() -> dict[str, Loss]:
    """(logits, target) → loss."""
    try:
        import entmax
    except Exception as error:
        _left_out("entmax", error)
        return {}
    name = named("entmax package, 1.5, k = 100", "entmax")
    return {name: lambda z, t: entmax.entmax15_loss(z, t, k=100).mean()}


def linear_losses() -> dict[str, Loss]:
    """(hidden states, weight, target) → the mean cross entropy, or 1.5-entmax's loss."""

    def cross_entropy(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy((x @ w.T).float(), t)

    found: dict[str, Loss] = {}
    found[named("torch.compile", "torch", "cross_entropy(linear)")] = torch.compile(cross_entropy)
    for package, add in (
        ("torch's linear_cross_entropy", _add_torch),
        ("cut-cross-entropy", _add_cce),
        ("liger-kernel", _add_liger),
        ("liger-kernel, Hopper path (CuTe)", _add_liger_cute),
        ("liger-kernel, Hopper path (cuTile)", _add_liger_tile),
        ("quack-kernels", _add_quack),
        ("entmax", _add_entmax),
    ):
        try:
            add(found)
        except Exception as error:
            _left_out(package, error)
    return found


def _add_torch(found: dict[str, Loss]) -> None:
    """torch's own (2.13); on an older torch, the two files of 2.13 that it is made of.

    linear_cross_entropy.py and linear_cross_entropy_options.py of torch/nn/modules, to be put among
    the peers in a folder torch_2_13, are Python only, and called here as torch 2.13 calls them.
    """
    name = "torch, linear_cross_entropy"
    theirs: Any = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if theirs is not None:
        options = torch.nn.LinearCrossEntropyOptions()
        found[named(name, "torch", "chunked")] = lambda x, w, t: theirs(x, w, t, options=options)
        return
    try:
        work: Any = importlib.import_module("torch_2_13.linear_cross_entropy")
        settings: Any = importlib.import_module("torch_2_13.linear_cross_entropy_options")
    except ImportError as error:
        none = f"torch {torch.__version__} has none: 2.13 is the first that does, and no torch_2_13"
        raise ImportError(f"{none} is among the peers") from error

    def chunked(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        how = settings.LinearCrossEntropyOptions()._adjust(*x.shape, len(w), x.dtype, x.device)
        sizes = (how.batch_chunk_size, how.acc_policy, how.acc_dtype, how.allow_retain_graph)
        wanted = (x.requires_grad, w.requires_grad, False)
        made = work._linear_cross_entropy_batch_chunked(
            x, w, t, None, None, "mean", -100, 0.0, *sizes, *wanted
        )
        return _first(made)

    PATHS[name] = f"torch 2.13's Python files on torch {torch.__version__}, chunked"
    found[name] = chunked


def _add_cce(found: dict[str, Loss]) -> None:
    from cut_cross_entropy import linear_cross_entropy

    found[named("CCE", "cut-cross-entropy", "Triton")] = linear_cross_entropy


def _add_liger(found: dict[str, Loss]) -> None:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    liger = LigerFusedLinearCrossEntropyLoss()
    found[named("Liger", "liger-kernel", "Triton")] = lambda x, w, t: liger(w, x, t)


def _add_liger_cute(found: dict[str, Loss]) -> None:
    """Two in CUTLASS's Python language (0.8.5): losses by token, and their mean by kept logits."""
    from liger_kernel.ops.cutedsl.ops import fused_linear_cross_entropy_sm90 as whole
    from liger_kernel.ops.cutedsl.ops import fused_scaled_cross_entropy_sm90 as hopper

    apply = hopper.LigerFusedScaledCrossEntropySM90Function.apply
    name = named("Liger, Hopper (CuTe)", "liger-kernel", "cutedsl, sm_90, by token")
    found[name] = lambda x, w, t: _first(apply(x, w, t, 1.0, -100, 1, False)).mean()
    name = named("Liger, Hopper (CuTe), mean", "liger-kernel", "cutedsl, sm_90, all logits kept")
    found[name] = lambda x, w, t: _first(whole.liger_fused_linear_cross_entropy_sm90(x, w, t))


def _add_liger_tile(found: dict[str, Loss]) -> None:
    """cuTile, which needs its compiler: `tileiras` 13.4 with its `ptxas` on PATH (0.8.5)."""
    from liger_kernel.ops.cutile.ops import fused_linear_cross_entropy as hopper

    function: Any = hopper.LigerFusedLinearCrossEntropyFunction
    name = named("Liger, Hopper (cuTile)", "liger-kernel", "cuTile, sm_90")
    found[name] = lambda x, w, t: _first(function.apply(x, w, t))


def _add_quack(found: dict[str, Loss]) -> None:
    """On Hopper it takes its scaled-exp path where the classes are a multiple of 128.

    Its autotuner, which the other path has, compiles for minutes, and is left off. Chunks of as
    many rows as there are features are an error in it (0.6.5): twice as many then.
    """
    from quack.linear_cross_entropy import chunked_linear_cross_entropy as theirs

    def loss(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        rows = 8192 if x.shape[1] == 4096 else 4096
        return _first(theirs(x, w, t, chunk_size=rows, tuned=False))

    found[named("quack", "quack-kernels", "CuTe, the path it chooses, not autotuned")] = loss


def linear_divergences(beta: float, teacher: Tensor, head: Tensor) -> dict[str, Loss]:
    """(hidden states, weight) → the mean divergence from a teacher with a head of its own: with β
    0 and 1 those of Kullback and Leibler, between them the JSD."""
    try:
        from liger_kernel.transformers import LigerFusedLinearJSD
    except Exception as error:
        _left_out("liger-kernel", error)
        return {}
    theirs = LigerFusedLinearJSD(jsd_beta=beta)
    return {named("Liger", "liger-kernel", "JSD"): lambda x, w: theirs(x, w, teacher, head)}


def _add_entmax(found: dict[str, Loss]) -> None:
    found |= {
        name: lambda x, w, t, of=of: of(x @ w.T, t) for name, of in losses_of_logits().items()
    }


def _first(made: Any) -> Tensor:
    one: Tensor = made[0] if isinstance(made, tuple) else made
    return one
