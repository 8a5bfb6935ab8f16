"""Autograd functions with forward-mode derivatives that torch.compile can trace all the same."""

from __future__ import annotations

from typing import Any

from uncork.nn._torch import torch


def forward_mode(function: type[Any]) -> type[Any]:
    """Hides the `jvp` of an autograd function from torch.compile, which traces none that has one.

    `apply` finds it again, and keeps forward mode out of what is compiled.
    """
    jvp = function.__dict__["jvp"].__func__
    del function.jvp

    def again(ctx: Any, *tangents: Any) -> Any:
        # torch switches forward mode off around this, and a derivative of the derivative would be
        # 0: github.com/pytorch/pytorch/issues/197867
        with torch.autograd.forward_ad._set_fwd_grad_enabled(True):
            return jvp(_Primal(ctx), *tangents)

    function.with_jvp = type(function.__name__, (function,), {"jvp": staticmethod(again)})
    return function


class _Primal:
    """A context whose tensors are without the tangents that `jvp` is given beside them."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        unpack = torch.autograd.forward_ad.unpack_dual
        return tuple(
            unpack(tensor).primal if tensor.is_floating_point() else tensor
            for tensor in self._ctx.saved_tensors
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def apply(function: type[Any], *inputs: Any) -> Any:
    """`function.apply(*inputs)`, for a function marked with `forward_mode`."""
    if torch.compiler.is_compiling():
        if torch.autograd.forward_ad._current_level >= 0:
            # Traced, it would lose what its operators contribute to the tangent.
            torch._dynamo.graph_break("forward mode through uncork.nn is not traced")
        # Without a gradient torch.compile miscounts the arguments of a `forward` with `*arguments`.
        if not torch.is_grad_enabled() or not any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in inputs
        ):
            return function.forward(*inputs)
        return function.apply(*inputs)
    return function.with_jvp.apply(*inputs)
