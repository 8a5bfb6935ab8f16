"""KActiveLinear: a multi-label output layer on which every set of up to k labels is feasible."""

from __future__ import annotations

import math

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch

Tensor = torch.Tensor


def moment_curve(labels: int, k: int) -> Tensor:
    """Rows (1/√2, cos t, sin t, …, cos kt, sin kt) at t = 2π i / labels: (labels, 2k + 1) float64.

    A trigonometric polynomial of degree k is a product of these rows with its coefficients. For a
    set of up to k labels, −Π (1 − cos(t − t_i)) over its members is one: zero at them, negative
    elsewhere. Raised a little it is positive at exactly these labels: the set is feasible.
    """
    t = 2 * math.pi * torch.arange(labels, dtype=torch.float64) / labels
    turns = t[:, None] * torch.arange(1, k + 1, dtype=torch.float64)
    waves = torch.stack([torch.cos(turns), torch.sin(turns)], dim=2).reshape(labels, 2 * k)
    return torch.cat([torch.full((labels, 1), math.sqrt(0.5), dtype=torch.float64), waves], dim=1)


class KActiveLinear(torch.nn.Module):
    """A drop-in for ``torch.nn.Linear`` as the last layer of a multi-label classifier.

    Every set of at most `k` labels is the set of positive logits for some input, whatever training
    does (Grivas, Vergari and Lopez, "Taming the Sigmoid Bottleneck", 2024). The first 2k + 1
    columns of the weight are fixed: the rows of :func:`moment_curve`. The other columns, where
    there are more features, are free and train: with their features at zero nothing of the theorem
    changes. So does a bias, since an input may be as long as it needs to be.

    Choose it where each example has few of many labels, `k` being the most that occur together. The
    theorem is about real numbers and inputs of any length: the margin of large sets among many
    labels is small (`uncork labels` says what holds for the weights as stored, in a given domain).

    Args:
        in_features: size of an input, 2k + 1 or more.
        out_features: number of labels.
        k: how many labels may be on at once.
        bias: whether each label has an offset that trains.
        device, dtype: of the weight.
    """

    curve: Tensor
    slack: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        k: int,
        bias: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for what, size in (("out_features", out_features), ("k", k)):
            if not isinstance(size, int) or size < 1:
                raise UncorkError(f"{what} must be a positive whole number, got {size!r}")
        if not isinstance(in_features, int) or in_features < 2 * k + 1:
            raise UncorkError(
                f"in_features={in_features!r} with k={k}: sets of up to k labels need at least "
                f"2k + 1 = {2 * k + 1} features"
            )
        self.in_features, self.out_features, self.k = in_features, out_features, k
        dtype = dtype or torch.get_default_dtype()
        # As long as a row that torch.nn.Linear draws, on average over its features.
        scale = math.sqrt(2 / 3 / in_features)
        curve = moment_curve(out_features, k) * scale
        self.register_buffer("curve", curve.to(device=device, dtype=dtype))
        free = in_features - (2 * k + 1)
        if free:
            empty = torch.empty(out_features, free, device=device, dtype=dtype)
            self.slack = torch.nn.Parameter(empty)
        else:
            self.register_parameter("slack", None)
        if bias:
            zeros = torch.zeros(out_features, device=device, dtype=dtype)
            self.bias = torch.nn.Parameter(zeros)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Free columns as ``torch.nn.Linear`` draws them, offsets zero."""
        bound = 1 / math.sqrt(self.in_features)
        if self.slack is not None:
            torch.nn.init.uniform_(self.slack, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @property
    def weight(self) -> Tensor:
        """(out_features, in_features): the fixed columns, then the free ones."""
        if self.slack is None:
            return self.curve
        return torch.cat([self.curve, self.slack], dim=1)

    def forward(self, input: Tensor) -> Tensor:
        return torch.nn.functional.linear(input, self.weight, self.bias)

    @torch.no_grad()
    def to_linear(self) -> torch.nn.Linear:
        """The layer as it is now, as a plain ``torch.nn.Linear`` to export, or for `uncork`."""
        linear = torch.nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = torch.nn.Parameter(self.weight.detach().clone())
        if self.bias is not None:
            linear.bias = torch.nn.Parameter(self.bias.detach().clone())
        return linear

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, k={self.k}, "
            f"bias={self.bias is not None}"
        )
