"""Nothing arrives at a head that its domain does not hold, and nothing behind it goes unsaid.

Graphs that were once misread, each with inputs that show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import uncork
from tiny_models import node, run_onnx, save_onnx
from tiny_models import number as c
from uncork import Box, UncorkError
from uncork.loading import find, load

D = 5
RNG = np.random.default_rng(7)
W = RNG.normal(size=(D, 4)).astype(np.float32)
I8, U8 = np.int8, np.uint8


def rows(values: np.ndarray, axis: int = -1) -> np.ndarray:
    moved = np.moveaxis(values, axis, -1)
    return moved.reshape(-1, moved.shape[-1]).astype(np.float64)


def shown(path: Path) -> Any:
    """The domain that is claimed; None where none is."""
    found = find(path).shown_domain
    return None if found is None else found.domain


def holds(path: Path, x: np.ndarray, name: str = "h") -> bool:
    """Whether every row of finite numbers that arrives lies in what is claimed."""
    domain = shown(path)
    (h,) = run_onnx(path, x, name)
    arrived = rows(h)
    arrived = arrived[np.isfinite(arrived).all(axis=1)]
    if domain is None:
        return True
    return bool(domain.contains(arrived, 0.0 if isinstance(domain, Box) else 1e-9).all())


def save(
    path: Path, nodes: list[Any], constants: dict[str, Any], shape: list[Any], opset: int = 17,
    **more: Any,
) -> Path:  # fmt: skip
    """As `save_onnx`, with a head on h unless the nodes have one."""
    if not any("out" in n.output for n in nodes):
        nodes = [*nodes, node("MatMul", ["h", "w"], "out")]
        constants = {"w": W, **constants}
    return save_onnx(path, nodes, constants, shape, opset, **more)


# The three that were shown from end to end: a class proven lost, and read all the same.


def never(path: Path, x: np.ndarray) -> None:
    """No class that onnxruntime puts first is proven unargmaxable."""
    head = load(path, domain="auto")
    (out,) = run_onnx(path, x, "out")
    first = {int(k) for k in out.reshape(-1, out.shape[-1]).argmax(axis=1)}
    lost = {int(k) for k in uncork.audit(head).unargmaxable}
    assert not first & lost


def test_a_constant_with_new_axes_is_set_against_those_axes(tmp_path: Path) -> None:
    nodes = [
        node("Clip", ["x", "zero", "one"], "k"), node("Unsqueeze", ["three", "axes"], "t"),
        node("Mul", ["k", "t"], "m"), node("Flatten", ["m"], "h"),
        node("Gemm", ["h", "w", "b"], "out"),
    ]  # fmt: skip
    constants = {"zero": c(0), "one": c(1), "three": c([1, 2, 5]), "axes": np.array([1, 2]),
                 "w": c(np.eye(6)[:, [5, 0]]), "b": c([0, 3])}  # fmt: skip
    constants["w"][:, 1] = 0
    path = save(tmp_path / "m.onnx", nodes, constants, ["n", 3, 1, 2], opset=13)
    x = np.ones((1, 3, 1, 2), dtype=np.float32)
    assert holds(path, x)
    never(path, x)


def test_a_single_gain_inside_a_norm_is_a_gain(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "x"], "p"), node("ReduceMean", ["p"], "q", axes=[-1]),
        node("Add", ["q", "e"], "r"), node("Sqrt", ["r"], "s"), node("Reciprocal", ["s"], "t"),
        node("Mul", ["t", "half"], "u"), node("Mul", ["x", "u"], "h"),
        node("Gemm", ["h", "w", "b"], "out"),
    ]  # fmt: skip
    weight = np.zeros((D, 2), dtype=np.float32)
    weight[0, 0] = 1
    constants = {"e": c(1e-5), "half": c(0.5), "w": weight, "b": c([0, 0.9])}
    path = save(tmp_path / "m.onnx", nodes, constants, ["n", D])
    x = np.eye(D, dtype=np.float32) * 3
    assert holds(path, x)
    never(path, x)


@pytest.mark.parametrize("how", ["dequantise", "quantise"])
def test_without_a_zero_point_the_type_is_the_one_that_is_used(tmp_path: Path, how: str) -> None:
    weight = np.zeros((D, 2), dtype=np.float32)
    weight[0, 0] = -1
    constants = {"s": c(0.1), "w": weight, "b": c([0, 3]), "z8": np.array(0, I8)}
    quantise = node("QuantizeLinear", ["x", "s"], "q", output_dtype=TensorProto.INT8)
    if how == "dequantise":
        quantise = node("QuantizeLinear", ["x", "s", "z8"], "q")
    nodes = [quantise, node("DequantizeLinear", ["q", "s"], "h"),
             node("Gemm", ["h", "w", "b"], "out")]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, constants, ["n", D], opset=21)
    x = np.full((1, D), -50, dtype=np.float32)
    assert holds(path, x)
    never(path, x)


# What a graph computes, and what was claimed of it

ONES = np.ones((3, D), dtype=np.float32)
BIG = np.array([[0, 1e-3, 3, 1e5, 3e38]], dtype=np.float32)
STEEP = c([[1], [2], [5], [9]])  # (4, 1): as many as the batch, and as there are classes
CASES: dict[str, tuple[list[Any], dict[str, Any], list[Any], int, np.ndarray]] = {
    "a constant squeezed to another axis": (
        [node("Sigmoid", ["x"], "s"), node("Squeeze", ["k", "ax"], "k2"),
         node("Mul", ["s", "k2"], "h")],
        {"k": c(np.arange(1, 7).reshape(1, 3, 1, 2)), "ax": np.array([0]), "w": W[:2]},
        ["n", 3, 4, 2], 13, np.full((1, 3, 4, 2), 50, np.float32),
    ),
    "a linear map with an unsqueezed constant": (
        [node("Sigmoid", ["x"], "s"), node("MatMul", ["s", "m"], "y"),
         node("Unsqueeze", ["k", "ax"], "k2"), node("Add", ["y", "k2"], "h")],
        {"m": c(np.eye(D)), "k": c([0, 5, 0, 0, 0]), "ax": np.array([1])}, ["n", D], 13,
        np.zeros((D, D), np.float32),
    ),
    "LayerNormalization with one gain for all": (
        [node("LayerNormalization", ["x", "g"], "h")], {"g": c([0.5])}, ["n", D], 17,
        np.eye(D, dtype=np.float32) * 3,
    ),
    "ReLU to int8 and back": (
        [node("Relu", ["x"], "r"), node("Cast", ["r"], "q", to=TensorProto.INT8),
         node("Cast", ["q"], "h", to=1)], {}, ["n", D], 17, ONES * 400,
    ),
    "a clip to int32": (
        [node("Clip", ["x", "a", "b"], "r"), node("Cast", ["r"], "q", to=TensorProto.INT32),
         node("Cast", ["q"], "h", to=1)], {"a": c(0.5), "b": c(1.5)}, ["n", D], 17, ONES * 0.6,
    ),
    "a clip through float16": (
        [node("Clip", ["x", "a", "b"], "r"), node("Cast", ["r"], "q", to=10),
         node("Cast", ["q"], "h", to=1)], {"a": c(0), "b": c(0.7)}, ["n", D], 17, ONES,
    ),
    "8-bit steps as numbers": (
        [node("QuantizeLinear", ["x", "s", "z"], "q"), node("Cast", ["q"], "h", to=1)],
        {"s": c(0.1), "z": np.array(0, U8)}, ["n", D], 17, ONES * 50,
    ),
    "dynamic steps as numbers": (
        [node("Sigmoid", ["x"], "y"), node("DynamicQuantizeLinear", ["y"], ["q", "s", "z"]),
         node("Cast", ["q"], "h", to=1)], {}, ["n", D], 17, ONES * 50,
    ),
    "steps of one scale read with another": (
        [node("Relu", ["x"], "r"), node("QuantizeLinear", ["r", "s", "z"], "q"),
         node("DequantizeLinear", ["q", "s2", "z2"], "h")],
        {"s": c(0.1), "z": np.array(9, U8), "s2": c(3), "z2": np.array(77, U8)}, ["n", D], 17, BIG,
    ),
    "LayerNorm over n − 1": (
        [node("ReduceMean", ["x"], "m", axes=[-1]), node("Sub", ["x", "m"], "v"),
         node("Mul", ["v", "v"], "p"), node("ReduceSum", ["p", "ax"], "q"),
         node("Div", ["q", "n1"], "q2"), node("Add", ["q2", "e"], "r"), node("Sqrt", ["r"], "s"),
         node("Div", ["v", "s"], "h")],
        {"ax": np.array([-1]), "n1": c(D - 1), "e": c(1e-5)}, ["n", D], 17,
        np.eye(D, dtype=np.float32) * -30,
    ),
    "a norm with the divisor 1": (
        [node("Mul", ["x", "x"], "p"), node("ReduceSum", ["p", "ax"], "q"),
         node("Mul", ["q", "big"], "q2"), node("Add", ["q2", "e"], "r"), node("Sqrt", ["r"], "s"),
         node("Div", ["x", "s"], "h")],
        {"ax": np.array([-1]), "big": c(1 / 50), "e": c(1e-5)}, ["n", D], 17,
        np.eye(D, dtype=np.float32) * 3,
    ),
    "an activation after LayerNorm": (
        [node("LayerNormalization", ["x", "g"], "y"), node("Softplus", ["y"], "h")],
        {"g": c(np.full(D, 3.0))}, ["n", D], 17, np.eye(D, dtype=np.float32) * 300,
    ),
    "dropout in training": (
        [node("Sigmoid", ["x"], "y"), node("Dropout", ["y", "half", "yes"], "h")],
        {"half": c(0.5), "yes": np.array(True)}, ["n", D], 17, np.full((40, D), 50, np.float32),
    ),
    "cropping while resizing": (
        [node("Sigmoid", ["x"], "y"),
         node("Resize", ["y", "roi", "sc"], "h", mode="linear", extrapolation_value=-5.0,
              coordinate_transformation_mode="tf_crop_and_resize")],
        {"roi": c([0, 0, -1, 0, 1, 1, 2, 1]), "sc": c([1, 1, 2, 1])}, ["n", 2, 3, D], 13,
        np.ones((1, 2, 3, D), np.float32),
    ),
    "linear resizing": (
        [node("Tanh", ["x"], "t"), node("Add", ["t", "k"], "y"),
         node("Resize", ["y", "", "sc"], "h", mode="linear")],
        {"k": c(-0.7), "sc": c([1, 1, 3, 1])}, ["n", 2, 7, D], 13,
        (RNG.normal(size=(64, 2, 7, D)) * 50).astype(np.float32),
    ),
    "cubic resizing": (
        [node("Sigmoid", ["x"], "y"), node("Resize", ["y", "", "sc"], "h", mode="cubic")],
        {"sc": c([1, 1, 3, 1])}, ["n", 2, 7, D], 13,
        (RNG.normal(size=(8, 2, 7, D)) * 50).astype(np.float32),
    ),
    "as many rows as classes, and a number a row": (
        [node("Sigmoid", ["x"], "y"), node("Mul", ["y", "k"], "h")],
        {"k": c([[1], [2], [3], [4], [5]])}, ["n", D], 17, np.full((D, D), 50, np.float32),
    ),
    "pooled, then two of a batch in one row": (
        [node("Sigmoid", ["x"], "y"), node("Mul", ["y", "k"], "z"),
         node("GlobalAveragePool", ["z"], "p"), node("Reshape", ["p", "shape"], "h")],
        {"k": c([1, 2, 3]).reshape(1, 3, 1), "shape": np.array([-1, 6]), "w": RNG.normal(
            size=(6, 4)).astype(np.float32)}, ["n", 3, 4], 17, np.full((4, 3, 4), 50, np.float32),
    ),
    "a sigmoid that rounds to zero": (
        [node("Clip", ["x", "a", "b"], "y"), node("Sigmoid", ["y"], "h")],
        {"a": c(-30), "b": c(-1)}, ["n", D], 17, ONES * -100,
    ),
    "NaN through 8 bits": (
        [node("Exp", ["x"], "e"), node("Sub", ["e", "e"], "nan"), node("Relu", ["nan"], "r"),
         node("Add", ["r", "one"], "y"), node("QuantizeLinear", ["y", "s", "z"], "q"),
         node("DequantizeLinear", ["q", "s", "z"], "h")],
        {"one": c(1), "s": c(0.1), "z": np.array(0, I8)}, ["n", D], 17, ONES * 1000,
    ),
    "quantised twice, which the run-time does once": (
        [node("Clip", ["x", "lo", "hi"], "r"),
         node("QuantizeLinear", ["r", "s", "z"], "q"),
         node("DequantizeLinear", ["q", "s", "z"], "y"),
         node("QuantizeLinear", ["y", "s2", "z2"], "q2"),
         node("DequantizeLinear", ["q2", "s2", "z2"], "h")],
        {"lo": c(-20), "hi": c(70.1), "s": c(0.35041), "z": np.array(50, U8), "s2": c(0.542659),
         "z2": np.array(36, U8)}, ["n", D], 17, ONES * 100,
    ),
    "quantised twice, moved in between": (
        [node("Clip", ["x", "lo", "hi"], "r"),
         node("QuantizeLinear", ["r", "s", "z"], "q"),
         node("DequantizeLinear", ["q", "s", "z"], "y"),
         node("Relu", ["y"], "p"), node("Reshape", ["p", "shape"], "t"),
         node("QuantizeLinear", ["t", "s2", "z2"], "q2"),
         node("DequantizeLinear", ["q2", "s2", "z2"], "h")],
        {"lo": c(-20), "hi": c(70.1), "s": c(0.35041), "z": np.array(50, U8), "s2": c(0.542659),
         "z2": np.array(0, U8), "shape": np.array([-1, D])}, ["n", D], 17, ONES * 100,
    ),
    "the length of a tiny row": (
        [node("ReduceL2", ["x"], "l", axes=[-1]), node("Div", ["x", "l"], "h")], {}, ["n", D], 17,
        np.full((1, D), 4.5e-23, np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_arrives_lies_in_what_is_claimed(tmp_path: Path, name: str) -> None:
    if "one gain for all" in name:
        pytest.importorskip("onnxruntime", "1.24")  # earlier ones refuse to run it
    nodes, constants, shape, opset, x = CASES[name]
    assert holds(save(tmp_path / "m.onnx", nodes, constants, shape, opset), x)


def integer_head(path: Path, dynamic: bool) -> Path:
    quantise = node("QuantizeLinear", ["r", "s", "z"], "q")
    zero = "z"
    if dynamic:
        quantise, zero = node("DynamicQuantizeLinear", ["r"], ["q", "qs", "qz"]), "qz"
    nodes = [node("Sigmoid", ["x"], "r"), quantise,
             node("MatMulInteger", ["q", "k", zero, "kz"], "y"),
             node("Cast", ["y"], "out", to=1)]  # fmt: skip
    constants = {"s": c(0.004), "z": np.array(0, U8), "kz": np.array(0, I8),
                 "k": RNG.integers(-9, 9, size=(D, 4)).astype(I8)}  # fmt: skip
    return save_onnx(path, nodes, constants, ["n", D])


def test_a_head_of_whole_numbers_is_given_whole_numbers(tmp_path: Path) -> None:
    path = integer_head(tmp_path / "m.onnx", dynamic=False)
    domain = shown(path)
    (q,) = run_onnx(path, ONES * 50, "q")
    assert q.max() == 250
    assert domain.contains(rows(q)).all()


def test_dynamic_steps_without_their_scale_are_not_taken_for_numbers(tmp_path: Path) -> None:
    path = integer_head(tmp_path / "m.onnx", dynamic=True)
    q, z, s = run_onnx(path, ONES * 50, "q", "qz", "qs")
    assert shown(path).contains((rows(q) - z) * s).all()
    assert not find(path).contents.choose().doubts  # the scale is positive, and no bias follows


def test_a_qlinear_matmul_counts_its_inputs_in_its_own_scale(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", ["x"], "r"), node("QuantizeLinear", ["r", "s", "z"], "q"),
        node("QLinearMatMul", ["q", "s2", "z", "k", "ks", "kz", "ys", "yz"], "y"),
        node("DequantizeLinear", ["y", "ys", "yz"], "out"),
    ]  # fmt: skip
    constants = {
        "s": c(0.01), "s2": c(1.0), "z": np.array(0, U8), "kz": np.array(0, I8), "ks": c(1),
        "k": RNG.integers(-9, 9, size=(D, 4)).astype(I8), "ys": c(10), "yz": np.array(128, U8),
    }  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    (q,) = run_onnx(path, ONES * 50, "q")
    assert shown(path).contains(rows(q) * 1.0).all()


@pytest.mark.parametrize("op", ["Relu", "Softmax", "Tanh"])
def test_a_function_of_the_models_own_is_not_the_standards_op(tmp_path: Path, op: str) -> None:
    path = save(tmp_path / "m.onnx", [node(op, ["x"], "h", domain="my")], {}, ["n", D])
    model = onnx.load(path)
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    model.functions.append(
        helper.make_function("my", op, ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("my", 1))
    onnx.save(model, path)
    assert holds(path, ONES * 3)
    found = find(path, domain="auto")
    assert f"my::{op} ({op}_h)" in found.domain_from


def test_a_matmul_of_the_models_own_is_no_head(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("MatMul", ["x", "w"], "out", domain="my")], {"w": W},
                ["n", D])  # fmt: skip
    model = onnx.load(path)
    body = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Neg", ["c"], ["d"])]
    model.functions.append(
        helper.make_function("my", "MatMul", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("my", 1))
    onnx.save(model, path)
    with pytest.raises(UncorkError, match=r"function my::MatMul"):
        load(path)


def test_a_constant_that_callers_can_override_is_not_counted_on(tmp_path: Path) -> None:
    nodes = [node("Clip", ["x", "a", "b"], "h")]
    path = save(tmp_path / "m.onnx", nodes, {"a": c(0), "b": c(1)}, ["n", D])
    assert shown(path) == Box(0, 1)
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, []))
    onnx.save(model, path)
    assert shown(path) is None
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))
    onnx.save(model, path)
    assert "can be overridden" in find(path).notes[0]  # a head is still what is stored


def test_rows_that_layer_norm_cannot_centre_are_not_claimed_to_be_centred(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("LayerNormalization", ["x", "g"], "h")],
                {"g": c(np.ones(D))}, ["n", D])  # fmt: skip
    spread = np.concatenate([RNG.normal(size=(300, D)) + k for k in (0, 1, 5, 7)])
    x = (spread * 10.0 ** RNG.integers(-3, 12, size=(len(spread), 1))).astype(np.float32)
    (h,) = run_onnx(path, x, "h")
    assert np.abs(rows(h).sum(axis=1)).max() > 1e-7  # in floats they are not
    assert holds(path, x)
    shown_domain = find(path).shown_domain
    assert shown_domain is not None
    assert "mean of more than 8 times its spread" in shown_domain.assumed
    sizes = 10.0 ** np.arange(3, 18).repeat(200)[:, None]
    near = sizes * (1 + RNG.normal(size=(len(sizes), D)) * 1e-7)
    (far,) = run_onnx(path, near.astype(np.float32), "h")
    assert np.nanmax(np.abs(far)) > 100  # why that has to be assumed: the variance cancels


def test_the_node_that_stops_the_walk_is_named(tmp_path: Path) -> None:
    nodes = [node("Sin", ["x"], "s"), node("LeakyRelu", ["s"], "y"),
             node("Transpose", ["y"], "h", perm=[0, 1])]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {}, ["n", D])
    assert "Sin (Sin_s)" in find(path, domain="auto").domain_from
    nodes[0] = node("Resize", ["x", "", "sc"], "s", mode="cubic")
    path = save(tmp_path / "m.onnx", nodes, {"sc": c([1, 1])}, ["n", D])
    told = find(path, domain="auto").domain_from
    assert "Resize (Resize_s): its rule does not cover cubic interpolation" in told


def test_the_way_to_the_head_names_its_nodes(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], "r"), node("GlobalAveragePool", ["r"], "p"),
             node("Flatten", ["p"], "h")]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {}, ["n", D, 3])
    assert find(path, domain="auto").domain_from == (
        "Relu (Relu_r), through GlobalAveragePool (GlobalAveragePool_p), Flatten (Flatten_h), "
        "precedes the head"
    )


# After the head

Z = [node("Gemm", ["x", "w", "b"], "z")]
SOFTMAX = node("Softmax", ["z"], "p")
KEEPS: dict[str, list[Any]] = {
    "softmax": [node("Softmax", ["z"], "out")],
    "log softmax": [node("LogSoftmax", ["z"], "out", axis=1)],
    "a temperature": [node("Div", ["z", "two"], "y"), node("Softmax", ["y"], "out")],
    "a tanh cap": [node("Div", ["z", "two"], "a"), node("Tanh", ["a"], "t"),
                   node("Mul", ["t", "two"], "out")],
    "sigmoid": [node("Sigmoid", ["z"], "out")],
    "softmax spelled out": [
        node("ReduceMax", ["z"], "m", axes=[1]), node("Sub", ["z", "m"], "d"),
        node("Exp", ["d"], "e"), node("ReduceSum", ["e", "one"], "s"),
        node("Div", ["e", "s"], "out")],
    "log of softmax": [SOFTMAX, node("Log", ["p"], "out")],
    "turned twice": [node("Neg", ["z"], "n"), node("Sub", ["one_", "n"], "out")],
    "the other axis first": [node("Transpose", ["z"], "t", perm=[1, 0]),
                             node("Softmax", ["t"], "out", axis=0)],
    "the class": [node("ArgMax", ["z"], "out", axis=1)],
    "the class of the smallest of the negated": [
        node("Neg", ["z"], "n"), node("ArgMin", ["n"], "out", axis=1)],
    "the best two": [node("TopK", ["z", "k"], ["v", "out"])],
    "a number a row": [node("Add", ["z", "column"], "out")],
}  # fmt: skip
TURNS: dict[str, tuple[list[Any], str]] = {
    "1 − softmax": ([SOFTMAX, node("Sub", ["one_", "p"], "out")], "Sub with 1 (Sub_out)"),
    "−softmax": ([SOFTMAX, node("Mul", ["p", "minus"], "out")], "Mul by -1 (Mul_out)"),
    "−log softmax": ([node("LogSoftmax", ["z"], "l"), node("Neg", ["l"], "out")], "Neg (Neg_out)"),
    "max − z": ([node("ReduceMax", ["z"], "m", axes=[1]), node("Sub", ["m", "z"], "out")],
                "Sub (Sub_out)"),
    "1/(1 + exp z)": ([node("Exp", ["z"], "e"), node("Add", ["e", "one_"], "a"),
                       node("Div", ["one_", "a"], "out")], "Div by 1 (Div_out)"),
}  # fmt: skip
BREAKS: dict[str, tuple[list[Any], str]] = {
    "z·z": ([node("Mul", ["z", "z"], "out")], "Mul (Mul_out)"),
    "z·sigmoid(z)": ([node("Sigmoid", ["z"], "s"), node("Mul", ["z", "s"], "out")],
                     "Mul (Mul_out)"),
    "z/sum": ([node("ReduceSum", ["z", "one"], "s"), node("Div", ["z", "s"], "out")],
              "Div (Div_out)"),
    "softmax along another axis": ([node("Softmax", ["z"], "out", axis=0)], "along another axis"),
    "a number a class": ([node("Mul", ["z", "b"], "out")], "Mul (Mul_out)"),
    "relu": ([node("Relu", ["z"], "out")], "Relu (Relu_out), after which classes can tie"),
    "part of the classes": ([node("Slice", ["z", "zero", "two_", "one"], "out")],
                            "Slice (Slice_out)"),
}  # fmt: skip
AFTER = {
    "w": W, "b": c([0, 1, 2, 3]), "two": c(2), "one": np.array([1]), "one_": c(1), "minus": c(-1),
    "k": np.array([2]), "zero": np.array([0]), "two_": np.array([2]), "column": STEEP,
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPS)
def test_what_keeps_the_order_of_the_classes_is_not_doubted(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "m.onnx", [*Z, *KEEPS[name]], AFTER, [4, D])
    found = find(path)
    assert found.contents.choose().doubts == ()
    assert bool(found.notes) == (name == "sigmoid")  # whose classes may be labels


@pytest.mark.parametrize("name", TURNS)
def test_what_turns_the_order_round_is_said_first(tmp_path: Path, name: str) -> None:
    nodes, cause = TURNS[name]
    path = save(tmp_path / "m.onnx", [*Z, *nodes], AFTER, ["n", D])
    (doubt,) = find(path).contents.choose().doubts
    assert "turns the order round" in doubt
    assert cause in doubt
    x = RNG.normal(size=(20, D)).astype(np.float32)
    z, out = run_onnx(path, x, "z", "out")
    assert (z.argmax(axis=1) == out.argmin(axis=1)).all()


@pytest.mark.parametrize("name", BREAKS)
def test_what_may_change_the_order_is_said_first(tmp_path: Path, name: str) -> None:
    nodes, cause = BREAKS[name]
    path = save(tmp_path / "m.onnx", [*Z, *nodes], AFTER, ["n", D])
    (doubt,) = find(path).contents.choose().doubts
    assert "may change the order" in doubt
    assert cause in doubt


@pytest.mark.parametrize(
    "last",
    [node("ArgMin", ["z"], "out", axis=1), node("TopK", ["z", "k"], ["v", "out"], largest=0)],
    ids=["ArgMin", "TopK"],
)
def test_an_output_that_is_the_smallest_class_is_refused(tmp_path: Path, last: Any) -> None:
    path = save(tmp_path / "m.onnx", [*Z, last], AFTER, ["n", D])
    with pytest.raises(UncorkError, match=r"the smallest logit \((ArgMin|TopK).*--weight"):
        load(path)
    assert load(path, weight="w").classes == 4


@pytest.mark.parametrize("how", ["Add", "Gemm"])
def test_a_number_a_row_is_no_bias_though_there_are_as_many_rows_as_classes(
    tmp_path: Path, how: str
) -> None:
    nodes = [node("MatMul", ["x", "w"], "y"), node("Add", ["y", "column"], "out")]
    if how == "Gemm":
        nodes = [node("Gemm", ["x", "w", "column"], "out")]
    path = save(tmp_path / "m.onnx", nodes, {"w": W, "column": STEEP}, [4, D])
    found = find(path)
    assert found.head.bias is None
    assert found.notes == ()  # alike for all classes of a row


def test_constants_given_as_plain_numbers_are_read(tmp_path: Path) -> None:
    nodes = [helper.make_node("Constant", [], ["a"], value_float=-1.0),
             helper.make_node("Constant", [], ["b"], value_float=2.0),
             node("Clip", ["x", "a", "b"], "h")]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {}, ["n", D])
    assert shown(path) == Box(-1, 2)


def test_a_constant_cast_beyond_its_type_is_refused(tmp_path: Path) -> None:
    nodes = [node("Cast", ["big"], "k", to=TensorProto.INT8), node("Cast", ["k"], "w", to=1),
             node("MatMul", ["x", "w"], "out")]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"big": W * 1000}, ["n", D])
    with pytest.raises(UncorkError, match="does not hold its values"):
        load(path)


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_a_second_bias_after_a_scale_counts_in_the_scales_measure(
    tmp_path: Path, scale: float
) -> None:
    nodes = [*Z, node("Div", ["z", "s"], "y"), node("Add", ["y", "b2"], "out")]
    path = save(tmp_path / "m.onnx", nodes, {**AFTER, "s": c(scale), "b2": c([9, 0, 0, 0])},
                ["n", D])  # fmt: skip
    found = find(path)
    if scale == 2:
        np.testing.assert_array_equal(found.head.bias, [18, 1, 2, 3])
    else:  # 9 · 3 is exact too, but in general it is not: then it is said
        assert "may change the order" in found.notes[0]


def test_steps_of_a_scale_take_no_bias_in_numbers(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"),
        node("QGemm", ["q", "s", "z", "k", "ks", "kz", "b8"], "y", domain="com.microsoft"),
        node("Add", ["y", "b"], "out"),
    ]  # fmt: skip
    constants = {
        "s": c(0.01), "z": np.array(3, U8), "k": RNG.integers(-9, 9, size=(D, 4)).astype(I8),
        "ks": c(0.1), "kz": np.array(0, I8), "b8": np.arange(4, dtype=np.int32),
        "b": c([9, 0, 0, 0]),
    }  # fmt: skip
    found = find(save(tmp_path / "m.onnx", nodes, constants, ["n", D]))
    assert any("may change the order" in note for note in found.notes)


def test_rows_beside_nan_are_rounded_to_8_bits_with_it(tmp_path: Path) -> None:
    """DynamicQuantizeLinear makes whole numbers of NaN too: any of its 256."""
    nodes = [
        node("LayerNormalization", ["x", "g", "o"], "y"),
        node("DynamicQuantizeLinear", ["y"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "k", "z", "kz"], "m"), node("Cast", ["m"], "f", to=1),
        node("Mul", ["s", "ks"], "t"), node("Mul", ["f", "t"], "out"),
    ]  # fmt: skip
    constants = {"g": c([0.1, 1, 1, 1, 1]), "o": c([0, 3, -3, 1, 1]), "kz": np.array(0, I8),
                 "k": RNG.integers(-9, 9, size=(D, 4)).astype(I8), "ks": c(0.1)}  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    domain = shown(path)
    for place in range(4):
        x = np.insert(RNG.normal(size=(3, D)), place, [3e38, -3e38, 3e38, 1, 2], axis=0)
        q, s, z = run_onnx(path, x.astype(np.float32), "q", "s", "z")
        if np.isfinite(s):
            assert domain.contains((rows(q) - z) * s).all()


def test_a_tensor_that_is_only_named_like_a_bias_is_none(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "fc.bias"], "h"), node("MatMul", ["h", "fc.weight"], "out")]
    weight = RNG.normal(size=(D, D)).astype(np.float32)
    path = save_onnx(tmp_path / "m.onnx", nodes, {"fc.bias": c(np.arange(D)), "fc.weight": weight},
                     ["n", D])  # fmt: skip
    assert find(path).head.bias is None


@pytest.mark.parametrize("way", ["a limit flushed to zero", "a rounded limit", "a product"])
def test_a_limit_that_clip_rounds_is_bounded_on_both_sides(tmp_path: Path, way: str) -> None:
    """In float16 1e-5 may count as zero or stay, and 0.1 is held as 0.09998."""
    half = TensorProto.FLOAT16
    small = {"small": np.float16(1e-5), "one": np.float16(-1), "w": W.astype(np.float16)}
    nodes = {
        "a limit flushed to zero": [node("Min", ["x", "one"], "y"),
                                    node("Clip", ["y", "small"], "h")],
        "a rounded limit": [node("Clip", ["x"], "y", min=1.0),
                            node("Clip", ["y"], "h", min=-2.0, max=0.1)],
        "a product": [node("Clip", ["x", "small"], "y"), node("Mul", ["y", "x"], "h")],
    }[way]  # fmt: skip
    opset = 10 if way == "a rounded limit" else 17
    constants = {k: v for k, v in small.items() if k == "w" or opset > 10}
    path = save(tmp_path / "m.onnx", nodes, constants, ["n", D], opset, kind=half)
    assert shown(path) is not None
    assert holds(path, np.linspace(-2, 2, 8 * D).reshape(-1, D).astype(np.float16))
