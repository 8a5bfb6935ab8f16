"""Domains read from ONNX graphs: whatever onnxruntime computes lies inside, and they are sharp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models import DDDDOCR, DDDDOCR_INT8, MAGIKA, PP_OCR_V4, PP_OCR_V6
from tiny_models import node, rows_of, run_onnx, save_onnx
from tiny_models import number as c
from uncork import Box, UncorkError
from uncork.domain import Ball, Image, RMSNorm
from uncork.loading import find, load

D = 6  # features of the head in most graphs here
RNG = np.random.default_rng(0)
W = RNG.normal(size=(D, 4)).astype(np.float32)
EXTREMES = np.concatenate(
    [
        np.array([0, -0.0, 1e30, -1e30, 3e38, -3e38, 1e-40, -1e-40, 65504, -65504, 104, -104]),
        np.linspace(-20, 20, 1201),
        RNG.normal(size=400) * 30,
    ]
).astype(np.float32)


def inputs(features: int = D) -> np.ndarray:
    """Extreme and ordinary numbers in every feature."""
    return np.stack([np.roll(EXTREMES, 37 * k) for k in range(features)], axis=1)


# Each as nodes from "x" to "h", with constants; the least and the largest value there is.
INF = np.inf
GELU = -0.16997120
ACTIVATIONS: dict[str, tuple[list[Any], dict[str, Any], float, float, int]] = {
    "Relu": ([node("Relu", ["x"], "h")], {}, 0, INF, 17),
    "LeakyRelu": ([node("LeakyRelu", ["x"], "h", alpha=0.1)], {}, -INF, INF, 17),
    "Sigmoid": ([node("Sigmoid", ["x"], "h")], {}, 0, 1, 17),
    "HardSigmoid": ([node("HardSigmoid", ["x"], "h")], {}, 0, 1, 17),
    "Tanh": ([node("Tanh", ["x"], "h")], {}, -1, 1, 17),
    "Softmax": ([node("Softmax", ["x"], "h")], {}, 0, 1, 17),
    "Softplus": ([node("Softplus", ["x"], "h")], {}, 0, INF, 17),
    "Softsign": ([node("Softsign", ["x"], "h")], {}, -1, 1, 17),
    "Elu": ([node("Elu", ["x"], "h", alpha=0.5)], {}, -0.5, INF, 17),
    "Selu": ([node("Selu", ["x"], "h")], {}, -1.7580993, INF, 17),
    "Celu": ([node("Celu", ["x"], "h", alpha=2.0)], {}, -2, INF, 17),
    "Clip": ([node("Clip", ["x", "lo", "hi"], "h")], {"lo": c(0), "hi": c(6)}, 0, 6, 17),
    "Clip at one end": ([node("Clip", ["x", "lo"], "h")], {"lo": c(-2)}, -2, INF, 17),
    "HardSwish": ([node("HardSwish", ["x"], "h")], {}, -0.375, INF, 17),
    "HardSwish, spelled out": (
        [node("Add", ["x", "c3"], "a"), node("Clip", ["a", "c0", "c6"], "b"),
         node("Div", ["b", "c6"], "d"), node("Mul", ["d", "x"], "h")],
        {"c3": c(3), "c0": c(0), "c6": c(6)}, -0.375, INF, 17,
    ),
    "Mish": ([node("Mish", ["x"], "h")], {}, -0.30884063, INF, 18),
    "Mish, spelled out": (
        [node("Softplus", ["x"], "a"), node("Tanh", ["a"], "b"), node("Mul", ["x", "b"], "h")],
        {}, -0.30884063, INF, 17,
    ),
    "SiLU": (
        [node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "h")], {}, -0.27846454, INF, 17,
    ),
    "SiLU with a scale of one": (
        [node("Mul", ["x", "one"], "y"), node("Sigmoid", ["y"], "s"), node("Mul", ["s", "x"], "h")],
        {"one": c([1])}, -0.27846454, INF, 17,
    ),
    "QuickGelu": ([node("QuickGelu", ["x"], "h", domain="com.microsoft")], {}, -0.16361, INF, 17),
    "QuickGelu, spelled out": (
        [node("Mul", ["x", "k"], "y"), node("Sigmoid", ["y"], "s"), node("Mul", ["x", "s"], "h")],
        {"k": c(1.702)}, -0.16361, INF, 17,
    ),
    "Gelu": ([node("Gelu", ["x"], "h")], {}, GELU, INF, 20),
    "Gelu by tanh": ([node("Gelu", ["x"], "h", approximate="tanh")], {}, -0.17004, INF, 20),
    "FastGelu": ([node("FastGelu", ["x"], "h", domain="com.microsoft")], {}, -0.17004, INF, 17),
    "GELU as PyTorch writes it": (
        [node("Div", ["x", "r2"], "a"), node("Erf", ["a"], "b"), node("Add", ["b", "one"], "d"),
         node("Mul", ["x", "d"], "e"), node("Mul", ["e", "half"], "h")],
        {"r2": c(np.sqrt(2)), "one": c(1), "half": c(0.5)}, GELU, INF, 17,
    ),
    "GELU as TensorFlow writes it": (
        [node("Mul", ["x", "r2"], "a"), node("Erf", ["a"], "b"), node("Add", ["one", "b"], "d"),
         node("Mul", ["half", "d"], "e"), node("Mul", ["e", "x"], "h")],
        {"r2": c(1 / np.sqrt(2)), "one": c(1), "half": c(0.5)}, GELU, INF, 17,
    ),
    "GELU by tanh, spelled out": (
        [node("Pow", ["x", "three"], "p"), node("Mul", ["p", "k"], "q"),
         node("Add", ["x", "q"], "r"), node("Mul", ["r", "s2p"], "s"),
         node("Tanh", ["s"], "t"), node("Add", ["t", "one"], "u"),
         node("Mul", ["x", "u"], "v"), node("Mul", ["v", "half"], "h")],
        {"three": c(3), "k": c(0.044715), "s2p": c(0.7978845608), "one": c(1), "half": c(0.5)},
        -0.17004, INF, 17,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_an_activation_leaves_lies_in_the_domain_and_reaches_its_ends(
    tmp_path: Path, name: str
) -> None:
    nodes, constants, least, most, opset = ACTIVATIONS[name]
    path = save_onnx(
        tmp_path / "m.onnx", [*nodes, node("MatMul", ["h", "w"], "out")],
        {**constants, "w": W}, ["n", D], opset,
    )  # fmt: skip
    found = find(path, domain="auto")
    x = inputs()
    with np.errstate(all="ignore"):
        (h,) = run_onnx(path, x, "h")
    h = h[np.isfinite(h).all(axis=1)].astype(np.float64)
    assert len(h) > 1000
    if (least, most) == (-INF, INF):
        assert found.domain_from.startswith("assumed")
        return
    domain = found.head.domain
    assert isinstance(domain, Box)
    assert domain.lower.ndim == 0
    assert domain.contains(h).all()  # exactly: the bounds cover float32's rounding
    for bound, exact in ((domain.lower, least), (domain.upper, most)):
        assert bound == exact or abs(bound - exact) <= 1e-5 * max(1, abs(exact))
    assert domain.lower <= least
    assert domain.upper >= most


def test_the_activation_is_named_with_its_node_and_the_way_to_the_head(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "h"),
        node("Transpose", ["h"], "t", perm=[1, 0]), node("Transpose", ["t"], "u", perm=[1, 0]),
        node("Dropout", ["u"], "v"), node("MatMul", ["v", "w"], "out"),
    ]  # fmt: skip
    found = find(save_onnx(tmp_path / "m.onnx", nodes, {"w": W}, ["n", D]))
    assert found.shown_domain is not None
    assert found.shown_domain.why == (
        "SiLU (Mul_h), through Transpose (Transpose_t), Transpose (Transpose_u), "
        "Dropout (Dropout_v), precedes the head"
    )  # fmt: skip
    assert found.domain_from == "assumed"  # it is shown, but was not asked for


GAIN, BETA = RNG.normal(size=D).astype(np.float32), RNG.normal(size=D).astype(np.float32)
MEAN = [node("ReduceMean", ["x"], "m", axes=[-1]), node("Sub", ["x", "m"], "v")]
AFFINE = [node("Mul", ["u", "g"], "a"), node("Add", ["a", "b"], "h")]
GB = {"g": GAIN, "b": BETA}
NORMS: dict[str, tuple[list[Any], dict[str, Any], type]] = {
    "LayerNormalization": ([node("LayerNormalization", ["x", "g", "b"], "h", epsilon=1e-5)], GB,
                           Image),
    "as PyTorch and Paddle write it": (
        [*MEAN, node("Pow", ["v", "two"], "p"), node("ReduceMean", ["p"], "q", axes=[-1]),
         node("Add", ["q", "e"], "r"), node("Sqrt", ["r"], "s"), node("Div", ["v", "s"], "u"),
         *AFFINE],
        {**GB, "two": c(2), "e": c(1e-5)}, Image,
    ),
    "with the difference computed twice, and casts": (
        [*MEAN, node("Sub", ["x", "m"], "v2"), node("Cast", ["v2"], "v3", to=1),
         node("Mul", ["v3", "v3"], "p"), node("ReduceMean", ["p"], "q", axes=[-1]),
         node("Add", ["e", "q"], "r"), node("Sqrt", ["r"], "s"), node("Reciprocal", ["s"], "t"),
         node("Mul", ["t", "v"], "u"), *AFFINE],
        {**GB, "e": c(1e-5)}, Image,
    ),
    "with the gain on the root": (
        [*MEAN, node("Mul", ["v", "v"], "p"), node("ReduceMean", ["p"], "q", axes=[-1]),
         node("Add", ["q", "e"], "r"), node("Sqrt", ["r"], "s"), node("Reciprocal", ["s"], "t"),
         node("Mul", ["t", "g"], "tg"), node("Mul", ["v", "tg"], "a"),
         node("Add", ["a", "b"], "h")],
        {**GB, "e": c(1e-5)}, Image,
    ),
    "by sums, without keeping the axis, E[x²] − E[x]²": (
        [node("ReduceSum", ["x", "ax"], "sx", keepdims=0), node("Mul", ["sx", "share"], "m"),
         node("Unsqueeze", ["m", "ax"], "m1"), node("Sub", ["x", "m1"], "v"),
         node("Mul", ["x", "x"], "x2"), node("ReduceSum", ["x2", "ax"], "sx2", keepdims=0),
         node("Mul", ["sx2", "share"], "q"), node("Mul", ["m", "m"], "mm"),
         node("Sub", ["q", "mm"], "var0"), node("Max", ["zero", "var0"], "var"),
         node("Unsqueeze", ["var", "ax"], "var1"), node("Add", ["var1", "e"], "r"),
         node("Sqrt", ["r"], "s"), node("Div", ["v", "s"], "u"), *AFFINE],
        {**GB, "ax": np.array([-1]), "share": c(1 / D), "zero": c(0), "e": c(1e-5)}, Image,
    ),
    "SimplifiedLayerNormalization": (
        [node("SimplifiedLayerNormalization", ["x", "g"], "h", axis=-1, epsilon=1e-5)], GB,
        RMSNorm,
    ),
    "RMSNorm, spelled out": (
        [node("Pow", ["x", "two"], "p"), node("ReduceMean", ["p"], "q", axes=[-1]),
         node("Add", ["q", "e"], "r"), node("Pow", ["r", "mhalf"], "s"),
         node("Mul", ["x", "s"], "u"), node("Mul", ["u", "g"], "h")],
        {**GB, "two": c(2), "e": c(1e-5), "mhalf": c(-0.5)}, RMSNorm,
    ),
    "LpNormalization": ([node("LpNormalization", ["x"], "h", p=2)], {}, Ball),
    "F.normalize": (
        [node("ReduceL2", ["x"], "l", axes=[-1]), node("Clip", ["l", "e"], "k"),
         node("Shape", ["x"], "sh"), node("Expand", ["k", "sh"], "ke"),
         node("Div", ["x", "ke"], "h")],
        {"e": c(1e-12)}, Ball,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_normalisations_are_found_however_they_are_written(tmp_path: Path, name: str) -> None:
    nodes, constants, kind = NORMS[name]
    path = save_onnx(
        tmp_path / "m.onnx", [*nodes, node("MatMul", ["h", "w"], "out")],
        {**constants, "w": W}, ["n", "t", D],
    )  # fmt: skip
    domain = load(path, domain="auto").domain
    assert isinstance(domain, kind)
    if isinstance(domain, Image):  # LayerNorm: the rows of an RMSNorm, with an offset
        assert isinstance(domain.inner, RMSNorm)
        np.testing.assert_array_equal(domain.offset, BETA)
    x = RNG.normal(size=(20, 11, D)).astype(np.float32) * 10 + 1
    (h,) = run_onnx(path, x, "h")
    away = BETA if isinstance(domain, Image) else 0.0
    assert domain.contains(rows_of(h), 1e-9).all()  # the bounds cover float32's rounding
    assert not domain.contains((rows_of(h) - away) * 1.01 + away, 1e-9).any()


def test_a_norm_over_another_axis_is_not_taken_for_one_of_the_features(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", ["x"], "m", axes=[1]), node("Sub", ["x", "m"], "v"),
        node("Mul", ["v", "v"], "p"), node("ReduceMean", ["p"], "q", axes=[1]),
        node("Add", ["q", "e"], "r"), node("Sqrt", ["r"], "s"), node("Div", ["v", "s"], "h"),
        node("MatMul", ["h", "w"], "out"),
    ]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"w": W, "e": c(1e-5)}, ["n", "t", D])
    assert find(path).shown_domain is None


def test_a_norm_that_subtracts_its_epsilon_is_not_taken_for_one(tmp_path: Path) -> None:
    nodes, constants, _ = NORMS["as PyTorch and Paddle write it"]
    path = save_onnx(
        tmp_path / "m.onnx", [*nodes, node("MatMul", ["h", "w"], "out")],
        {**constants, "e": c(-1e-5), "w": W}, ["n", D],
    )  # fmt: skip
    assert find(path).shown_domain is None


CHANNELS = (
    [node("Tanh", ["x"], "t"), node("BatchNormalization", ["t", "g", "b", "m", "v"], "n")],
    {"g": GAIN, "b": BETA, "m": RNG.normal(size=D).astype(np.float32),
     "v": np.abs(RNG.normal(size=D)).astype(np.float32) + 0.1},
)  # fmt: skip
WAYS: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "squeezed and transposed": (
        [node("Squeeze", ["n", "two"], "s"), node("Transpose", ["s"], "h", perm=[0, 2, 1])],
        {"two": np.array([2])}, "x1",
    ),
    "pooled and flattened": (
        [node("GlobalAveragePool", ["n"], "p"), node("Flatten", ["p"], "h")], {}, "any",
    ),
    "averaged over positions": (
        [node("ReduceMean", ["n"], "h", axes=[2, 3], keepdims=0)], {}, "any",
    ),
    "averaged, viewed as rows": (
        [node("GlobalAveragePool", ["n"], "p"), node("Reshape", ["p", "shape"], "h")],
        {"shape": np.array([-1, D])}, "any",
    ),
    "largest over positions, reshaped": (
        [node("GlobalMaxPool", ["n"], "p"), node("Reshape", ["p", "shape"], "h")],
        {"shape": np.array([0, -1])}, "any",
    ),
    "first column, last axis": (
        [node("Gather", ["n", "zero"], "k", axis=2), node("Transpose", ["k"], "h", perm=[0, 2, 1])],
        {"zero": np.array(0)}, "any",
    ),
    "sliced, unsqueezed, concatenated with itself": (
        [node("Slice", ["n", "zero", "one", "two"], "s"), node("Concat", ["s", "s"], "k", axis=3),
         node("Unsqueeze", ["k", "zero"], "u"),
         node("Transpose", ["u"], "h", perm=[0, 1, 3, 4, 2])],
        {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}, "any",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_ranges_follow_their_feature_on_its_way_to_the_head(tmp_path: Path, way: str) -> None:
    nodes, constants, shape = WAYS[way]
    path = save_onnx(
        tmp_path / "m.onnx", [*CHANNELS[0], *nodes, node("MatMul", ["h", "w"], "out")],
        {**CHANNELS[1], **constants, "w": W}, ["n", D, 1 if shape == "x1" else "a", "b"],
    )  # fmt: skip
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    assert domain.lower.shape == (D,)
    x = (RNG.normal(size=(9, D, 1 if shape == "x1" else 3, 4)) * 9).astype(np.float32)
    (h,) = run_onnx(path, x, "h")
    assert domain.contains(rows_of(h)).all()
    g, b, m, v = (CHANNELS[1][k].astype(np.float64) for k in "gbmv")
    ends = np.stack([(s - m) / np.sqrt(v + 1e-5) * g + b for s in (-1, 1)])
    np.testing.assert_allclose(domain.lower, ends.min(axis=0), atol=2e-3)
    np.testing.assert_allclose(domain.upper, ends.max(axis=0), atol=2e-3)


MIXING = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 0, -1]), min_size=2, max_size=4)


@given(shape=MIXING, perm=st.permutations([0, 1, 2, 3]))
@settings(max_examples=60, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
def test_a_reshape_never_hands_one_channels_range_to_another(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], perm: list[int]
) -> None:
    """(4, D, 2, 1): whatever it is turned and reshaped to, what arrives lies in the domain."""
    if shape.count(-1) > 1 or shape[0] == 0 == shape.count(-1):
        return
    dims = [[4, D, 2, 1][axis] for axis in perm]
    try:
        wanted = [dims[k] if n == 0 else n for k, n in enumerate(shape)]
        features = np.zeros(dims).reshape(wanted).shape[-1]
    except ValueError:
        return
    nodes = [*CHANNELS[0], node("Transpose", ["n"], "u", perm=list(perm)),
             node("Reshape", ["u", "s"], "h"), node("MatMul", ["h", "w"], "out")]  # fmt: skip
    weight = RNG.normal(size=(features, 4)).astype(np.float32)
    path = tmp_path_factory.mktemp("mix") / "m.onnx"
    constants = {**CHANNELS[1], "s": np.array(shape), "w": weight}
    save_onnx(path, nodes, constants, ["n", D, "a", "b"])
    domain = load(path, domain="auto").domain
    (h,) = run_onnx(path, (RNG.normal(size=(4, D, 2, 1)) * 30).astype(np.float32), "h")
    assert domain.contains(rows_of(h)).all()


def test_flattening_several_positions_repeats_each_channels_range(tmp_path: Path) -> None:
    weight = RNG.normal(size=(2 * D, 4)).astype(np.float32)
    path = save_onnx(
        tmp_path / "m.onnx",
        [*CHANNELS[0], node("Flatten", ["n"], "h"), node("Gemm", ["h", "w"], "out")],
        {**CHANNELS[1], "w": weight}, ["n", D, 1, 2],
    )  # fmt: skip
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    assert domain.lower.shape == (2 * D,)
    assert (domain.lower[0::2] == domain.lower[1::2]).all()
    (h,) = run_onnx(path, (RNG.normal(size=(50, D, 1, 2)) * 9).astype(np.float32), "h")
    assert domain.contains(rows_of(h)).all()


@pytest.mark.parametrize("counted", [0, 1])
def test_zero_joins_the_range_where_padding_is_averaged_in(tmp_path: Path, counted: int) -> None:
    nodes = [
        node("Sigmoid", ["x"], "s"), node("Add", ["s", "two"], "t"),
        node("AveragePool", ["t"], "p", kernel_shape=[3], pads=[1, 1], count_include_pad=counted),
        node("Transpose", ["p"], "h", perm=[0, 2, 1]), node("MatMul", ["h", "w"], "out"),
    ]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"two": c(2), "w": W}, ["n", D, "a"])
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    (h,) = run_onnx(path, RNG.normal(size=(5, D, 7)).astype(np.float32) * 9, "h")
    assert domain.contains(rows_of(h)).all()
    assert (domain.lower == 0) if counted else (domain.lower > 1.99)
    assert rows_of(h).min() < 1.9 if counted else rows_of(h).min() >= 2


@pytest.mark.parametrize("how", ["MatMul", "Gemm", "Conv"])
def test_a_linear_map_before_the_head_is_folded_in(tmp_path: Path, how: str) -> None:
    matrix, offset = RNG.normal(size=(D, 3)).astype(np.float32), BETA
    if how == "MatMul":
        nodes = [node("Relu", ["x"], "r"), node("MatMul", ["r", "l"], "y"),
                 node("Add", ["y", "o"], "h"), node("MatMul", ["h", "w"], "out")]  # fmt: skip
        constants, shape = {"l": matrix.T.copy(), "o": offset, "w": W}, ["n", 3]
    elif how == "Gemm":
        nodes = [node("Relu", ["x"], "r"), node("Gemm", ["r", "l", "o"], "h", transB=1),
                 node("MatMul", ["h", "w"], "out")]  # fmt: skip
        constants, shape = {"l": matrix, "o": offset, "w": W}, ["n", 3]
    else:
        nodes = [node("Relu", ["x"], "r"), node("Conv", ["r", "l", "o"], "y"),
                 node("Transpose", ["y"], "h", perm=[0, 2, 1]),
                 node("MatMul", ["h", "w"], "out")]  # fmt: skip
        constants, shape = {"l": matrix[:, :, None], "o": offset, "w": W}, ["n", 3, 5]
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, shape)
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Image)
    assert isinstance(domain.inner, Box)
    assert (domain.inner.lower, domain.inner.upper) == (0, np.inf)
    np.testing.assert_array_equal(domain.matrix, matrix)
    np.testing.assert_array_equal(domain.offset, offset)
    (h,) = run_onnx(path, RNG.normal(size=(4, *(n for n in shape[1:]))).astype(np.float32), "h")
    assert domain.contains(rows_of(h), 1e-5).all()
    assert not domain.contains(RNG.normal(size=(4, D)), 1e-5).any()  # six features of three


def test_a_layer_norm_then_a_projection_is_the_image_of_a_norm(tmp_path: Path) -> None:
    nodes, constants, _ = NORMS["as PyTorch and Paddle write it"]
    projection = RNG.normal(size=(D, 9)).astype(np.float32)
    path = save_onnx(
        tmp_path / "m.onnx",
        [*nodes, node("MatMul", ["h", "p9"], "y"), node("MatMul", ["y", "w"], "out")],
        {**constants, "p9": projection, "w": RNG.normal(size=(9, 12)).astype(np.float32)},
        ["n", D],
    )  # fmt: skip
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Image)
    assert isinstance(domain.inner, Image)
    assert isinstance(domain.inner.inner, RMSNorm)
    (y,) = run_onnx(path, RNG.normal(size=(40, D)).astype(np.float32), "y")
    assert domain.contains(rows_of(y), 1e-5).all()


def test_a_bottleneck_is_a_domain_even_where_nothing_else_is_known(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "l"], "h"), node("MatMul", ["h", "w"], "out")]
    narrow = save_onnx(tmp_path / "narrow.onnx", nodes, {"l": W[:2, :3] * 1, "w": W[:3]}, ["n", 2])
    assert isinstance(load(narrow, domain="auto").domain, Image)
    wide = save_onnx(tmp_path / "wide.onnx", nodes, {"l": W, "w": W[:4].copy()}, ["n", D])
    assert find(wide).shown_domain is None


def test_in_float16_the_bounds_are_rounded_outward_to_float16(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "h"),
             node("MatMul", ["h", "w"], "out")]  # fmt: skip
    half = W.astype(np.float16)
    path = save_onnx(tmp_path / "m.onnx", nodes, {"w": half}, ["n", D], kind=TensorProto.FLOAT16)
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    assert -0.281 < domain.lower < -0.27846454
    (h,) = run_onnx(path, np.clip(inputs(), -60000, 60000).astype(np.float16), "h")
    assert domain.contains(rows_of(h)).all()


# What cannot be known, and what is hostile


@pytest.mark.parametrize("op", ["LeakyRelu", "Sin", "Conv"])
def test_where_nothing_bounds_the_inputs_none_is_claimed(tmp_path: Path, op: str) -> None:
    more = {"k": RNG.normal(size=(D, 3, 3)).astype(np.float32)} if op == "Conv" else {}
    nodes = [node(op, ["x", *more], "y"), node("Transpose", ["y"], "h", perm=[0, 2, 1]),
             node("MatMul", ["h", "w"], "out")]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {**more, "w": W}, ["n", 3 if more else D, 9])
    found = find(path, domain="auto")
    assert found.shown_domain is None
    assert found.head.domain == Box(100)
    assert "does not show what precedes" in found.domain_from


def test_a_cycle_before_the_head_ends_in_an_error(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "c"], "b"), node("Relu", ["b"], "c"),
             node("MatMul", ["c", "w"], "out")]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"w": W}, ["n", D])
    with pytest.raises(UncorkError, match="before it is made"):
        load(path, domain="auto")


def test_a_very_deep_graph_is_walked_in_bounded_time(tmp_path: Path) -> None:
    depth = 3000  # three times as deep as Python lets functions call one another by default
    nodes = [node("Relu", ["x"], "h0")]
    nodes += [node("Add", [f"h{k}", f"h{k}"], f"h{k + 1}") for k in range(depth)]
    nodes += [node("MatMul", [f"h{depth}", "w"], "out")]
    found = find(save_onnx(tmp_path / "m.onnx", nodes, {"w": W}, ["n", D]))
    assert found.shown_domain is not None
    assert found.shown_domain.domain == Box(0, np.inf)


def test_too_many_nodes_are_not_all_looked_at_and_that_is_said(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", ["x"], "h0")]
    nodes += [node("Identity", [f"h{k}"], f"h{k + 1}") for k in range(5000)]
    nodes += [node("Relu", ["h5000"], "h"), node("MatMul", ["h", "w"], "out")]
    found = find(save_onnx(tmp_path / "m.onnx", nodes, {"w": W}, ["n", D]))
    assert found.shown_domain is not None
    assert found.shown_domain.domain == Box(0, np.inf)
    assert "only the last 4096 nodes" in found.shown_domain.why


def test_names_that_would_steer_a_terminal_are_printed_as_escapes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"], name="\x1b[2Jevil"),
             node("MatMul", ["h", "w"], "out")]  # fmt: skip
    found = find(save_onnx(tmp_path / "m.onnx", nodes, {"w": W}, ["n", D]))
    assert found.shown_domain is not None
    assert "\x1b" not in found.shown_domain.why


# A law: whatever graph of known ops is made, what it computes lies in the domain that is found.

UNARY = ["Relu", "Sigmoid", "Tanh", "Softplus", "Elu", "Selu", "Abs", "Neg", "LeakyRelu", "Erf",
         "HardSigmoid", "HardSwish", "Softsign", "Exp"]  # fmt: skip
steps = st.lists(
    st.tuples(
        st.sampled_from(["unary", "number", "vector", "both", "move", "pool"]),
        st.integers(0, 13), st.integers(0, 5), st.integers(0, 5),
        st.floats(-4, 4, width=32),
    ),
    min_size=1, max_size=7,
)  # fmt: skip


def graph_of(plan: list[tuple[str, int, int, int, float]]) -> tuple[list[Any], dict[str, Any]]:
    """Nodes over values of shape (n, 3, D), the last of which is "h"."""
    nodes: list[Any] = []
    constants: dict[str, Any] = {"w": W, "perm_shape": np.array([0, 0, -1])}
    values = ["x"]
    for k, (kind, which, first, second, number) in enumerate(plan):
        a, b, made = values[first % len(values)], values[second % len(values)], f"v{k}"
        if k == len(plan) - 1:
            made = "h"
        if kind == "unary":
            nodes.append(node(UNARY[which], [a], made))
        elif kind in ("number", "vector"):
            op = ["Add", "Mul", "Sub", "Max", "Min", "Div"][which % 6]
            value = c(number) if kind == "number" else c(number) * GAIN
            constants[f"c{k}"] = value
            pair = [a, f"c{k}"] if which % 2 or op == "Div" else [f"c{k}", a]
            nodes.append(node(op, pair, made))
        elif kind == "both":
            nodes.append(node(["Add", "Mul", "Sub", "Max", "Min"][which % 5], [a, b], made))
        elif kind == "move":
            nodes += [node("Transpose", [a], f"t{k}", perm=[0, 2, 1]),
                      node(UNARY[which], [f"t{k}"], f"u{k}"),
                      node("Transpose", [f"u{k}"], made, perm=[0, 2, 1])]  # fmt: skip
        else:
            nodes += [node("ReduceMean", [a], f"t{k}", axes=[1]), node("Add", [b, f"t{k}"], made)]
        values.append(made)
    return [*nodes, node("MatMul", ["h", "w"], "out")], constants


@given(plan=steps, scale=st.sampled_from([1.0, 30.0, 1e4]), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
def test_whatever_known_ops_compute_lies_in_the_domain(
    tmp_path_factory: pytest.TempPathFactory, plan: list[Any], scale: float, seed: int
) -> None:
    path = tmp_path_factory.mktemp("law") / "m.onnx"
    save_onnx(path, *graph_of(plan), ["n", 3, D])
    shown = find(path).shown_domain
    x = (np.random.default_rng(seed).normal(size=(40, 3, D)) * scale).astype(np.float32)
    (h,) = run_onnx(path, x, "h")
    rows = rows_of(h)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if shown is not None:
        assert shown.domain.contains(rows, 0.0 if isinstance(shown.domain, Box) else 1e-5).all()


# Real models


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        (PP_OCR_V4, "box:-0.27846607565879822,inf", "SiLU"),
        (PP_OCR_V6, "box of 120 ranges, all within [-57.0889, inf]", "LayerNorm .* SiLU"),
        (DDDDOCR, "box:-1.0000038146972656,1.0000038146972656", "LSTM"),
        (DDDDOCR_INT8, "box:-1.0079254135431028,1.0079254135431028", "rounded to 8 bits"),
        (MAGIKA, "image(offset, of rmsnorm(gain) of 512 features) of 512 features", "LayerNorm"),
    ],
    ids=["PP-OCRv4", "PP-OCRv6", "ddddocr", "ddddocr int8", "magika"],
)
def test_what_precedes_the_head_of_a_shipped_model(path: Path, text: str, why: str) -> None:
    found = find(path, domain="auto")
    assert str(found.head.domain) == text
    assert re.search(why, found.domain_from)
