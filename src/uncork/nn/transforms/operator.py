"""A row solver as one opaque torch operator: torch.compile and vmap see a call, not a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from uncork.nn._rows import Alpha
from uncork.nn._threads import SERIAL_BELOW, over_rows
from uncork.nn._torch import torch

Tensor = torch.Tensor
Solver = Callable[[Tensor, Alpha], Tensor]


def in_pieces(solve: Solver, v: Tensor, parameter: Alpha) -> Tensor:
    """`solve` with the rows shared out over threads."""
    rows = v.reshape(-1, v.shape[-1])
    out = rows.new_empty(len(rows), 1)
    if isinstance(parameter, Tensor):
        parameter = parameter.expand((*v.shape[:-1], 1)).reshape(-1, 1)

    def some(piece: slice) -> None:
        own = parameter[piece] if isinstance(parameter, Tensor) else parameter
        out[piece] = solve(rows[piece], own)

    over_rows(some, *rows.shape)
    return out.reshape((*v.shape[:-1], 1))


class Bracket(NamedTuple):
    """The same solution as the root of a decreasing function between two ends, for ONNX: there
    nothing can stop a loop, so its steps are written out, and halving is the shortest."""

    excess: Callable[[Tensor, Tensor, Alpha], Tensor]  #: v, t (..., 1), parameter → (..., 1)
    ends: Callable[[Tensor, Alpha], tuple[Alpha, Alpha]]
    finish: Callable[[Tensor], Tensor] = lambda t: t  #: what the solver gives, of t


HALVINGS = {torch.float32: 30, torch.float64: 60}


def bisect(bracket: Bracket, v: Tensor, parameter: Alpha) -> Tensor:
    low, high = (end + torch.zeros_like(v[..., :1]) for end in bracket.ends(v, parameter))
    for _ in range(HALVINGS[v.dtype]):
        middle = 0.5 * (low + high)
        above = bracket.excess(v, middle, parameter) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return bracket.finish(0.5 * (low + high))


def as_operator(name: str, solve: Solver, bracket: Bracket) -> Solver:
    """`solve(v (..., n), parameter) -> (..., 1)` as the operator `uncork::name`.

    The parameter is a float, or a tensor with v's number of dimensions and size 1 in the last.
    The operator has no gradient of its own: the transforms' own autograd functions call it.
    """

    def run(v: Tensor, rows: Tensor | None, constant: float) -> Tensor:
        parameter = constant if rows is None else rows
        if v.device.type == "cpu" and v.numel() >= SERIAL_BELOW:
            return in_pieces(solve, v, parameter)
        return solve(v, parameter).clone()

    operator = torch.library.custom_op(
        f"uncork::{name}",
        run,
        mutates_args=(),
        schema="(Tensor v, Tensor? rows, float constant) -> Tensor",
    )

    @operator.register_fake
    def shape_only(v: Tensor, rows: Tensor | None, constant: float) -> Tensor:
        return v.new_empty((*v.shape[:-1], 1))

    def batched(
        info: Any, in_dims: tuple[Any, ...], v: Tensor, rows: Tensor | None, constant: float
    ) -> tuple[Tensor, int]:
        v_dim, rows_dim, _ = in_dims
        if v_dim is None:
            v = v.expand((info.batch_size, *v.shape))
        else:
            v = v.movedim(v_dim, 0)
        if rows is not None:
            rows = rows.unsqueeze(0) if rows_dim is None else rows.movedim(rows_dim, 0)
        return operator(v, rows, constant), 0

    operator.register_vmap(batched)

    def call(v: Tensor, parameter: Alpha) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            return bisect(bracket, v, parameter)
        if isinstance(parameter, Tensor):
            result: Tensor = operator(v, parameter, 0.0)
        else:
            result = operator(v, None, parameter)
        return result

    return call
