"""Autograd functions with forward-mode derivatives that torch.compile can trace all the same."""

from __future__ import annotations

from typing import Any

from uncork.nn._torch import torch


def forward_mode(function: type[Any]) -> type[Any]:
    """Hides the `jvp` of an autograd function from torch.compile, which traces none that has one.

    `apply` finds it again. (What is compiled has no use for it: torch.compile refuses
    forward-mode derivatives of every autograd function.)
    """
    jvp = function.__dict__["jvp"]
    del function.jvp
    function.with_jvp = type(function.__name__, (function,), {"jvp": jvp})
    return function


def apply(function: type[Any], *inputs: Any) -> Any:
    """`function.apply(*inputs)`, for a function marked with `forward_mode`."""
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    return function.with_jvp.apply(*inputs)
