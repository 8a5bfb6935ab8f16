"""How far floats may lie from what is claimed in real numbers: linear maps, and the order of
classes after the head."""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.domain import Domain, Image
from uncork.loading.onnx.arriving.domain import _LINEAR, Arriving
from uncork.loading.onnx.arriving.value import node_name
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.onnx.intervals import Arithmetic
from uncork.loading.onnx.tensors import attribute

_UNITS = 16.0  # that a function of one number may be off, as in `intervals`


def source_of(model: OnnxModel, found: Arriving) -> str | None:
    """What the first of the linear maps that were folded in is given; None without one."""
    if found.value is None or not _is_linear(found.domain):
        return None
    called = {f"{node.op_type} ({node_name(node)})": node for node in model.graph.nodes}
    through = (called.get(text) for text in found.value.trail)
    first = next(node for node in through if node is not None and node.op_type in _LINEAR)
    fixed = model.graph.constants.is_fixed
    return str(next(name for name in first.input if not fixed(name)))


def coarsest(model: OnnxModel) -> Arithmetic:
    """The float type of the fewest bits in a graph."""
    kinds = [kind.floats for kind in model.graph.kinds.values() if kind.is_float]
    return max(kinds, key=lambda floats: floats.unit)


def _is_linear(domain: Domain | None) -> bool:
    return isinstance(domain, Image) and domain.matrix is not None


def _maps(domain: Domain) -> list[Image]:
    """The images of one another, the innermost first."""
    maps: list[Image] = []
    while isinstance(domain, Image) and domain.matrix is not None:
        maps.insert(0, domain)
        domain = domain.inner
    return maps


def in_the_image(domain: Image, rows: np.ndarray, given: np.ndarray, model: OnnxModel,
                 ) -> np.ndarray:  # fmt: skip
    """Whether some u of the inner domain gives each row up to what floats lose on the way.

    A sum of n terms is off by n units of the sum of their sizes, and every other step by one. So
    the error of each feature is at most e = n units of |M|…|M| |given| + |c|, and where some u has
    |M u + c − x| ≤ e, the least of ‖(M u + c − x)/e‖₂ is at most √d.
    """
    floats = coarsest(model)
    maps = _maps(domain)
    finite = given[np.isfinite(given)]
    size = np.full(maps[0].matrix.shape[1], np.abs(finite).max(initial=0.0))
    flushed = np.full_like(size, floats.tiny)  # numbers so small may become zero
    terms = len(model.graph.nodes)
    for image in maps:
        matrix = np.abs(image.matrix)
        terms += matrix.shape[1]
        offset = 0.0 if image.offset is None else np.abs(image.offset)
        size = matrix @ size + offset
        flushed = matrix @ flushed + (matrix.shape[1] + 1) * floats.tiny
    error = 2 * terms * floats.unit * size + flushed
    view = domain.affine(rows.shape[1])
    matrix, offset = view.parts()
    matrix, away = matrix / error[:, None], (rows - offset) / error
    u = view.base.outline(view.latent).nearest(matrix, away)
    rest = np.linalg.norm(away - u @ matrix.T, axis=1)
    return np.asarray(rest <= np.sqrt(rows.shape[1]) * (1 + 1e-6))


def swapped_by_rounding(
    model: OnnxModel, head: int, values: dict[str, np.ndarray], row: int, pair: tuple[int, int],
    classes: int,
) -> bool:  # fmt: skip
    """Whether two classes come as near to each other, at some step after the head, as a run-time's
    own functions are off: there either may be the larger.

    onnxruntime's Sigmoid is off by 1.7e-7, so classes that all lie near zero can change places.
    """
    for node in model.graph.nodes[head + 1 :]:
        out = values.get(node.output[0])
        if out is None or out.dtype.kind != "f" or out.shape.count(classes) != 1:
            continue
        rows = np.moveaxis(out, out.shape.index(classes), -1).reshape(-1, classes)
        if row >= len(rows):
            continue
        numbers = rows[row].astype(np.float64)
        unit, tiny = float(np.finfo(out.dtype).eps) / 2, float(np.finfo(out.dtype).tiny)
        slack = _UNITS * unit * max(float(np.abs(numbers).max()), _limit(node)) + tiny
        if abs(numbers[pair[0]] - numbers[pair[1]]) <= slack:
            return True
    return False


def _limit(node: Any) -> float:
    """The size of a function's limit, where its error is that of the limit."""
    if node.op_type == "Sigmoid":
        return 1.0
    if node.op_type in ("Elu", "Celu"):
        return abs(float(attribute(node, "alpha", 1.0)))
    if node.op_type == "Selu":
        alpha = float(attribute(node, "alpha", 1.6732631921768188))
        return abs(alpha * float(attribute(node, "gamma", 1.0507010221481323)))
    return 0.0
