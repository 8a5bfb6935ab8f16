"""Liger's own tests of its linear losses and of sparsemax, run on uncork.nn.

    git clone https://github.com/linkedin/Liger-Kernel CHECKOUT
    python -m benchmarks.peers.liger CHECKOUT [arguments of pytest]

Its functions for autograd, which all of its modules call, are ours in `liger_kernel.ops` before a
test imports them; everything else is the checkout's. On the CPU where there is no GPU. Its losses
of given logits with a z-loss or a softcap, and those of whole algorithms (DPO, GRPO and others),
have no twin here, and nor have their tests. Five minutes of one core. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import uncork.nn.functional as F

Tensor = torch.Tensor
FILES = ("test_fused_linear_cross_entropy.py", "test_fused_linear_jsd.py", "test_sparsemax.py")


class LigerFusedLinearCrossEntropyFunction:
    """Called as Liger's."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Loss, z-loss, share of tokens predicted, and predicted tokens, −1 where ignored."""
        layer: dict[str, Any] = {"linear_bias": bias, "softcap": softcap}
        layer["ignore_index"] = ignore_index
        scaled = None
        if use_token_scaling:  # by the target's probability, which is constant
            scaled = F.linear_log_prob(_input, weight, target, **layer).detach().exp()
        made: Any = F.linear_cross_entropy(
            _input, weight, target, **layer, weight=ce_weight, reduction=reduction,
            label_smoothing=label_smoothing, z_loss=lse_square_scale, token_weight=scaled,
            float32_accumulation=True if accum_dtype == torch.float32 else None,
            return_lse=True, return_predictions=True,
        )  # fmt: skip
        counted = target != ignore_index
        z_loss = torch.where(counted, lse_square_scale * made.lse**2, 0.0).detach()
        if reduction != "none":
            z_loss = z_loss.sum() / (counted.sum() if reduction == "mean" else 1)
        return (
            made.loss,
            z_loss if return_z_loss else None,
            made.accuracy if return_token_accuracy else None,
            torch.where(counted, made.predicted, -1) if return_predicted_tokens else None,
        )


class LigerFusedLinearJSDFunction:
    """Called as Liger's: β = 0 and 1 are the two divergences of Kullback and Leibler."""

    @staticmethod
    def apply(
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ) -> Tensor:
        how: dict[str, Any] = {0.0: {"divergence": "kl"}, 1.0: {"divergence": "reverse_kl"}}.get(
            jsd_beta, {"divergence": "jsd", "beta": jsd_beta}
        )
        counted = torch.ones(len(student_input), device=student_input.device)
        if shift_labels is not None:
            counted = (shift_labels != ignore_index).float()
        total: Tensor = F.linear_distillation_loss(
            student_input, student_weight, teacher_input, teacher_weight=teacher_weight,
            temperature=temperature, token_weight=counted, reduction="sum", **how,
        )  # fmt: skip
        return total / counted.sum().clamp_min(1)


class LigerSparsemaxFunction:
    @staticmethod
    def apply(x: Tensor, dim: int) -> Tensor:
        return F.sparsemax(x, dim)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of linkedin/Liger-Kernel")
    given, others = parser.parse_known_args()
    checkout = given.checkout.resolve()
    tests = [checkout / "test" / "transformers" / name for name in FILES]
    if not all(file.is_file() for file in tests):
        missing = ", ".join(str(file) for file in tests if not file.is_file())
        parser.error(f"no {missing}: give a checkout of linkedin/Liger-Kernel")
    sys.path[:0] = [str(checkout), str(checkout / "src")]
    import liger_kernel.ops

    for ours in (
        LigerFusedLinearCrossEntropyFunction, LigerFusedLinearJSDFunction, LigerSparsemaxFunction,
    ):  # fmt: skip
        setattr(liger_kernel.ops, ours.__name__, ours)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), "-c", "/dev/null"]
    return int(pytest.main([*options, *others, *map(str, tests)]))


if __name__ == "__main__":
    sys.exit(main())
