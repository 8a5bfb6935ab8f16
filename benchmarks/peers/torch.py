"""torch's own sample inputs of cross entropy, given to uncork.nn.

    pip install expecttest  # torch.testing imports it
    python -m benchmarks.peers.torch

The samples, and the inputs that must be refused, with which torch tests `cross_entropy`,
`CrossEntropyLoss` and `linear_cross_entropy` (from torch 2.13 on; their chunked variants too), in
four types. A case agrees where value and gradients are torch's in float64: within what
`torch.testing.assert_close` grants the type, or in 16 bits within twice what torch itself is off by
and one unit of rounding. A target of `linear_cross_entropy` is a constant: ours has no gradient for
it, and says so. Every case that does not agree is printed.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import uncork.nn.functional as F

Tensor = torch.Tensor
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OURS: dict[str, Callable[..., Any]] = {
    "nn.functional.cross_entropy": F.softmax_loss,
    "nn.CrossEntropyLoss": F.softmax_loss,
    "nn.functional.linear_cross_entropy": F.linear_cross_entropy,
}


def samples(dtype: torch.dtype) -> Iterator[tuple[str, str, tuple[Tensor, ...], dict[str, Any]]]:
    """Name, variant, tensors and options of every sample."""
    torch.manual_seed(0)
    for op in op_db:
        if op.name in OURS and dtype in op.dtypes:
            for one in op.sample_inputs("cpu", dtype, requires_grad=True):
                yield op.name, op.variant_test_name, (one.input, *one.args), dict(one.kwargs)
    for module in module_db:
        if module.name in OURS:
            for made in module.module_inputs_func(module, "cpu", dtype, True, True):
                how = made.constructor_input.kwargs
                yield module.name, made.desc, made.forward_input.args, dict(how)


def answer(loss: Callable[..., Any], tensors: tuple[Tensor, ...], how: dict[str, Any]) -> Any:
    """The loss, and its gradients for what wants them."""
    value = loss(*tensors, **how)
    leaves = [t for t in (*tensors, *how.values()) if isinstance(t, Tensor) and t.requires_grad]
    up = torch.linspace(1, 2, value.numel(), dtype=value.dtype).reshape(value.shape)
    return [value, *torch.autograd.grad(value, leaves, up)]


def exact(tensor: Any) -> Any:
    if isinstance(tensor, Tensor) and tensor.is_floating_point():
        return tensor.detach().double().requires_grad_(tensor.requires_grad)
    return tensor


def difference(name: str, tensors: tuple[Tensor, ...], how: dict[str, Any]) -> str:
    """Between ours and torch's, in words; empty where they agree."""
    theirs: Callable[..., Any] = torch.nn.functional.cross_entropy
    if "linear" in name:
        theirs = torch.nn.functional.linear_cross_entropy
        tensors = (*tensors[:-1], tensors[-1].detach())
    plain = {key: value for key, value in how.items() if key != "options"}
    in_float64 = {key: exact(value) for key, value in plain.items()}
    right = answer(theirs, tuple(exact(tensor) for tensor in tensors), in_float64)
    rough = answer(theirs, tensors, plain)
    try:
        made = answer(OURS[name], tensors, how)
        for one, other, truth in zip(made, rough, right, strict=True):
            if other.itemsize > 2:
                torch.testing.assert_close(one, truth.to(one), equal_nan=True)
                continue
            assert torch.equal(one.isnan(), truth.isnan())
            off, granted = ((v.double() - truth).nan_to_num().norm() for v in (one, other))
            granted = 2 * granted + torch.finfo(other.dtype).eps * truth.nan_to_num().norm()
            assert off <= granted, f"off by {off:.1e}, granted {granted:.1e}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    warnings.simplefilter("ignore")  # of its own options, where torch cannot use them
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()

    def count(name: str, wrong: str, case: str) -> None:
        total[name] += 1
        right[name] += not wrong
        if wrong:
            print(f"{name}, {case}: {wrong}\n", flush=True)

    for dtype in TYPES:
        for name, variant, tensors, how in samples(dtype):
            shapes = [tuple(tensor.shape) for tensor in tensors]
            case = f"{variant or 'plain'}, {dtype}, {shapes}, {how}"
            count(name, difference(name, tensors, how), case)
    for op in op_db:
        if op.name in OURS and op.error_inputs_func is not None:
            for refused in op.error_inputs("cpu"):
                one, wrong = refused.sample_input, "taken"
                try:
                    OURS[op.name](one.input, *one.args, **one.kwargs)
                except ValueError:  # UncorkError is one
                    wrong = ""
                except Exception as error:
                    wrong = f"{type(error).__name__}: {error}"
                count(f"{op.name}, refused", wrong, refused.error_regex)
    for name in total:
        print(f"{name}: {right[name]:,} of {total[name]:,}")
    return int(right != total)


if __name__ == "__main__":
    sys.exit(main())
