"""Where in an ONNX graph the head sits: the value that goes in, and the logits that come out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadNode:
    """The head's linear node and the values around it.

    `axis` is the axis of the input that is summed over and `class_axis` that of the logits, both
    counted from the end (None where the rank is unknown). Where the node takes integers, the head's
    x is (input − zero point)·scale: `quantised` names scale and zero point as constants, and
    `dynamic` as values of the graph. With `in_steps` x is (input − zero point) alone; "" as a zero
    point is zero. `pooled` says
    that the logits are averaged over positions afterwards, and so are, in effect, the inputs.
    """

    node: int
    input: str
    axis: int | None
    logits: str
    class_axis: int | None
    quantised: tuple[str, str] | None = None
    dynamic: tuple[str, str] | None = None
    in_steps: tuple[str, str] | None = None
    pooled: bool = False
