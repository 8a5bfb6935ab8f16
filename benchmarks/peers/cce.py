"""The tests of Apple's cut cross entropy (CCE), run on uncork.nn.

    git clone https://github.com/apple/ml-cross-entropy CHECKOUT
    python -m benchmarks.peers.cce CHECKOUT [--cpu] [arguments of pytest]

A package of its name takes its place, in which `linear_cross_entropy`, the logarithms of sums that
it returns and `compute_z_loss` are ours and everything else the checkout's. Left out (`LEFT_OUT`)
are cases for its torch.compile twin and for a kernel of its own, and logarithms of sums of 16-bit
tensors: its logits are float32, ours are rounded as torch's linear rounds them. The tests are
written for CUDA, those of several processes for as many GPUs (on one, -k "not vocab_parallel");
--cpu makes their tensors on the CPU instead, ten minutes of one core. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode

import uncork.nn.functional as F

Tensor = torch.Tensor
# By their own process the tests' children import these again: so they are files.
STAND_INS = {
    "__init__.py": """
__path__ = [{here!r}, {package!r}]
import cut_cross_entropy.utils
from cut_cross_entropy.vocab_parallel import VocabParallelOptions
from benchmarks.peers.cce import compute_z_loss, linear_cross_entropy
cut_cross_entropy.utils.compute_z_loss = compute_z_loss
""",
    "cce_lse_forward.py": "from benchmarks.peers.cce import lse as cce_lse_forward_kernel",
}
LEFT_OUT = "torch_compile or indexed_dot or (test_lse and (dtype1 or dtype2))"


def linear_cross_entropy(
    e: Tensor,
    c: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    softcap: float | None = None,
    reduction: str = "mean",
    shift: bool | int = 0,
    return_lse: bool = False,
    vocab_parallel_options: Any = None,
    impl: str = "cce",
) -> Tensor | tuple[Tensor, Tensor | None]:
    """Called as CCE's."""
    assert impl != "torch_compile"
    if shift:
        e, targets = e[..., : -int(shift), :], targets[..., int(shift) :]
    how: dict[str, Any] = {
        "linear_bias": bias, "ignore_index": ignore_index, "softcap": softcap,
        "reduction": reduction, "return_lse": True,
    }  # fmt: skip
    if vocab_parallel_options is not None:
        how["group"] = vocab_parallel_options.group
        made = F.vocab_parallel_loss("softmax", e, c, targets, **how)
    elif not return_lse:
        loss: Tensor = F.linear_cross_entropy(e, c, targets, **(how | {"return_lse": False}))
        return loss
    else:
        made = F.linear_cross_entropy(e, c, targets, **how)
    return (made.loss, made.lse) if return_lse else made.loss


def lse(e: Tensor, c: Tensor, bias: Tensor | None = None, softcap: float | None = None) -> Tensor:
    """log Σ exp of every row's logits."""
    first = torch.zeros(len(e), dtype=torch.int64, device=e.device)
    made: Any = linear_cross_entropy(
        e, c, first, bias, softcap=softcap, reduction="none", return_lse=True
    )
    found: Tensor = made[1]
    return found


def compute_z_loss(
    lse: Tensor,
    targets: Tensor | None = None,
    shift: bool | int = False,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Of one class, whose logit is also its logarithm of a sum: its cross entropy is 0."""
    target = torch.zeros(lse.shape, dtype=torch.int64, device=lse.device)
    if targets is not None:
        target[targets[..., int(shift) :] == ignore_index] = ignore_index
    one = torch.ones(1, 1, dtype=lse.dtype, device=lse.device)
    how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "z_loss": 1.0}
    loss: Tensor = F.linear_cross_entropy(lse[..., None], one, target, **how)
    return loss


class OnCpu(TorchFunctionMode):
    """What is asked for on a GPU is made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class CpuPlugin:
    """Runs every test inside `OnCpu`."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with OnCpu():
            return (yield)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of apple/ml-cross-entropy")
    parser.add_argument("--cpu", action="store_true", help="make the tests' tensors on the CPU")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as pytest's: which of them")
    given, others = parser.parse_known_args()
    tests = given.checkout.resolve() / "tests"
    if not tests.is_dir():
        parser.error(f"{given.checkout} has no tests: give a checkout of apple/ml-cross-entropy")
    plugins = []
    if given.cpu:
        torch.cuda.is_available = lambda: True  # the tests ask, and would skip
        # They seed the GPU. With other numbers one case in a thousand fails for any loss: where
        # `shift` and "sum" meet, the suite divides what it tests by more targets than its own.
        torch.cuda.manual_seed = torch.manual_seed
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # for the tests' own children
        torch._dynamo.config.disable = True  # its compiler would look for the GPU
        plugins.append(CpuPlugin())
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "cut_cross_entropy"
        package.mkdir()
        theirs = str(given.checkout.resolve() / "cut_cross_entropy")
        for name, text in STAND_INS.items():
            text = text.format(here=str(package), package=theirs)
            (package / name).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tests), "-c", "/dev/null"]
        chosen = f"not ({LEFT_OUT})" + (f" and ({given.k})" if given.k else "")
        return int(pytest.main([*options, "-k", chosen, *others, str(tests)], plugins))


if __name__ == "__main__":
    sys.exit(main())
