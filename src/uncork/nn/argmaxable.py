"""ArgmaxableLinear: an output layer on which no class can be lost, whatever training does."""

from __future__ import annotations

import math
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch

Tensor = torch.Tensor
HOW = ("norm", "bias")
_SMALLEST = 1e-12  # rows shorter than this keep their direction, not the common length


class ArgmaxableLinear(torch.nn.Module):
    """A drop-in for ``torch.nn.Linear`` as the last layer of a classifier.

    Whatever values training finds, every class whose row differs from the others' is argmaxable,
    up to rounding:

    - ``how="norm"``: rows of one length, ``weight = length · rows / ‖rows‖``, and no bias.
    - ``how="bias"``: free rows, and ``bias = −½ scale · ‖weight‖²``. The input ``scale · w_t`` then
      puts class t first.

    ``length`` and ``scale`` are positive numbers that train too (as their logarithm) unless
    ``learn_scale=False``. ``metric`` (in_features, in_features), symmetric positive definite and
    fixed, replaces the Euclidean norm by √(wᵀMw). ``weight`` and ``bias`` are computed from the
    parameters ``rows`` and ``log_scale`` whenever they are asked for; :meth:`to_linear` makes a
    plain layer of them. Choose ``norm`` where the inputs are normalised or have a common scale,
    ``bias`` where lengths carry meaning, such as how frequent a class is.
    """

    rows: Tensor
    log_scale: Tensor
    metric: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        how: str = "norm",
        *,
        scale: float | None = None,
        learn_scale: bool = True,
        metric: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if how not in HOW:
            raise UncorkError(f"how={how!r}: expected {' or '.join(HOW)}")
        if scale is not None and not (scale > 0 and math.isfinite(scale)):
            raise UncorkError(f"scale={scale}: expected a positive number")
        self.in_features, self.out_features, self.how = in_features, out_features, how
        # Rows as torch.nn.Linear draws them have this length; and x ≈ w is a sensible input.
        first = (1 / math.sqrt(3) if how == "norm" else 1.0) if scale is None else scale
        self.initial_scale = first
        rows = torch.empty(out_features, in_features, device=device, dtype=dtype)
        self.rows = torch.nn.Parameter(rows)
        # One number as (1,): torch's fully_shard takes no 0-d parameter.
        self.log_scale = torch.nn.Parameter(rows.new_empty(1), requires_grad=learn_scale)
        self.register_buffer("metric", _checked_metric(metric, in_features, rows))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows as ``torch.nn.Linear`` draws them, and the scale given at construction."""
        with torch.no_grad():
            torch.nn.init.kaiming_uniform_(self.rows, a=math.sqrt(5))
            self.log_scale.fill_(math.log(self.initial_scale))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Of versions that kept `log_scale` as a 0-d tensor too."""
        kept = state_dict.get(f"{prefix}log_scale")
        if kept is not None and kept.dim() == 0:
            state_dict[f"{prefix}log_scale"] = kept.reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @property
    def scale(self) -> Tensor:
        """The common length of the rows, or the factor in the bias."""
        return torch.exp(self.log_scale).reshape(())

    @property
    def weight(self) -> Tensor:
        """(out_features, in_features), in the parameters' type."""
        if self.how == "bias":
            return self.rows
        wide = _wide(self.rows)
        length = torch.sqrt(self._squares(wide).clamp_min(_SMALLEST**2))
        return (wide * (_wide(self.log_scale).exp() / length)[:, None]).to(self.rows.dtype)

    @property
    def bias(self) -> Tensor | None:
        """(out_features,), or None for ``how="norm"``."""
        if self.how == "norm":
            return None
        wide = _wide(self.rows)
        return (-0.5 * _wide(self.log_scale).exp() * self._squares(wide)).to(self.rows.dtype)

    def _squares(self, rows: Tensor) -> Tensor:
        turned = rows if self.metric is None else rows @ self.metric.to(rows.dtype)
        return (rows * turned).sum(-1)

    def forward(self, input: Tensor) -> Tensor:
        return torch.nn.functional.linear(input, self.weight, self.bias)

    @torch.no_grad()
    def to_linear(self) -> torch.nn.Linear:
        """The layer as it is now, as a plain ``torch.nn.Linear`` to export or audit."""
        weight, bias = self.weight.detach().clone(), self.bias
        linear = torch.nn.Linear(
            self.in_features, self.out_features, bias=bias is not None, device="meta"
        )
        linear.weight = torch.nn.Parameter(weight)
        if bias is not None:
            linear.bias = torch.nn.Parameter(bias.detach().clone())
        return linear

    @classmethod
    @torch.no_grad()
    def from_linear(
        cls, linear: torch.nn.Linear, how: str = "norm", **settings: object
    ) -> ArgmaxableLinear:
        """A layer that starts from a trained one: its rows; its bias is left behind."""
        if not isinstance(linear, torch.nn.Linear):
            raise UncorkError(f"expected a torch.nn.Linear, got {type(linear).__name__}")
        weight = linear.weight
        if how == "norm" and settings.get("metric") is None:
            settings.setdefault("scale", float(_wide(weight).norm(dim=1).mean()))
        made = cls(
            linear.in_features, linear.out_features, how,
            device=weight.device, dtype=weight.dtype, **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        made.rows.copy_(weight)
        if how == "norm" and settings.get("scale") is None:  # as long as by the metric
            made.initial_scale = float(made._squares(_wide(weight)).sqrt().mean())
            made.log_scale.fill_(math.log(made.initial_scale))
        return made

    def extra_repr(self) -> str:
        metric = "" if self.metric is None else ", metric=…"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, how={self.how!r}"
            f"{metric}"
        )


def _wide(values: Tensor) -> Tensor:
    """At least float32: lengths summed in half precision would differ in the third digit."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _checked_metric(metric: Tensor | None, features: int, like: Tensor) -> Tensor | None:
    if metric is None:
        return None
    metric = torch.as_tensor(metric)
    if metric.shape != (features, features):
        raise UncorkError(
            f"metric has shape {tuple(metric.shape)}: expected {(features, features)}"
        )
    if not torch.allclose(metric, metric.T) or torch.linalg.eigvalsh(metric.double())[0] <= 0:
        raise UncorkError("metric is not symmetric and positive definite")
    return metric.to(like).clone()
