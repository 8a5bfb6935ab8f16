"""ONNX graphs as exporters write them, and as nobody should."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from uncork import UncorkError
from uncork.loading import find, load

W = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -2, 5]], dtype=np.float32)  # 4 × 3
B = np.array([0.5, 1.5, 2.5, 3.5], dtype=np.float32)


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    outputs: tuple[str, ...] = ("out",),
    metadata: dict[str, str] | None = None,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph)
    helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_alpha_and_beta(path: Path, transposed: int) -> None:
    gemm = node("Gemm", ["x", "w", "b"], "out", transB=transposed, alpha=0.3, beta=3.0)
    head = load(save(path, [gemm], {"w": W if transposed else W.T, "b": B}))
    np.testing.assert_array_equal(head.weight, W.astype(np.float64) * np.float64(np.float32(0.3)))
    np.testing.assert_array_equal(head.bias, B.astype(np.float64) * 3)


def test_gemm_alone_keeps_its_type(path: Path) -> None:
    head = load(save(path, [node("Gemm", ["x", "w"], "out")], {"w": W.T.astype(np.float16)}))
    assert head.dtype == "float16"
    assert head.bias is None
    np.testing.assert_array_equal(head.weight, W)


@pytest.mark.parametrize("swapped", [False, True])
def test_matmul_then_add_through_reshapes_and_softmax(path: Path, swapped: bool) -> None:
    nodes = [
        node("Relu", ["x"], "h"),
        node("MatMul", ["h", "w"], "z"),
        node("Identity", ["z"], "zi"),
        node("Add", ["b", "zi"] if swapped else ["zi", "b"], "zb"),
        node("Reshape", ["zb", "shape"], "zr"),
        node("Cast", ["zr"], "zc", to=TensorProto.FLOAT16),
        node("Softmax", ["zc"], "zs"),
        node("Squeeze", ["zs"], "out"),
    ]
    found = find(save(path, nodes, {"w": W.T, "b": B.reshape(1, 1, 4), "shape": np.array([-1, 4])}))
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert found.notes == ()


def test_a_weight_on_the_left_has_its_classes_as_rows(path: Path) -> None:
    assert load(save(path, [node("MatMul", ["w", "x"], "out")], {"w": W})).classes == 4


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_stored_types_are_kept(path: Path, dtype: Any) -> None:
    values = W.T.astype(dtype)
    save(path, [node("MatMul", ["x", "w"], "out")], {})
    model = onnx.load(path)
    tensor = model.graph.initializer.add()
    tensor.name, tensor.dims[:] = "w", values.shape
    tensor.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensor.raw_data = values.tobytes()
    onnx.save(model, path)
    head = load(path)
    assert head.weight.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(head.rows(0, 4), W)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.INT8, np.int8),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT32, np.uint32),
    ],
)
def test_values_outside_raw_data(path: Path, kind: int, dtype: Any) -> None:
    values = np.abs(W.T)
    save(path, [node("MatMul", ["x", "w"], "out")], {})
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", kind, (3, 4), values.ravel().tolist()))
    onnx.save(model, path)
    head = load(path)
    assert head.weight.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(head.rows(0, 4), np.abs(W))


def test_constant_nodes_and_ops_on_constants(path: Path) -> None:
    nodes = [
        node("Constant", [], "w0", value=numpy_helper.from_array(W.astype(np.float16), "v")),
        node("Cast", ["w0"], "w1", to=TensorProto.FLOAT),
        node("Transpose", ["w1"], "w2", perm=[1, 0]),
        node("Identity", ["b"], "b1"),
        node("MatMul", ["x", "w2"], "z"),
        node("Add", ["z", "b1"], "out"),
    ]
    found = find(save(path, nodes, {"b": B}))
    np.testing.assert_array_equal(found.head.weight, W)
    assert (found.weight_name, found.bias_name) == ("w0", "b")
    assert load(path, weight="w0").fingerprint == found.head.fingerprint


def test_a_dequantised_weight_is_exact(path: Path) -> None:
    q = np.array([[-128, 127, 3], [0, 5, -7], [1, 1, 2], [9, 9, 9]], dtype=np.int8)
    scale = np.array([0.1, 0.2, 0.3, 0.7], dtype=np.float32)
    nodes = [
        node("DequantizeLinear", ["q", "s", "zp"], "w", axis=1),
        node("MatMul", ["x", "w"], "out"),
    ]
    zero = np.array([1, 2, 3, 4], dtype=np.int8)
    head = load(save(path, nodes, {"q": q.T, "s": scale, "zp": zero}))
    exact = (q.astype(np.longdouble) - zero[:, None]) * scale[:, None].astype(np.longdouble)
    assert (head.weight.astype(np.longdouble) == exact).all()


def test_scales_around_the_bias(path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], "z"),
        node("Mul", ["z", "two"], "z2"),
        node("Add", ["z2", "b"], "z3"),
        node("Div", ["z3", "two"], "out"),
    ]
    head = load(save(path, nodes, {"w": W.T, "b": B, "two": np.float32(2)}))
    np.testing.assert_array_equal(head.weight, W * 2)
    np.testing.assert_array_equal(head.bias, B)
    nodes[1] = node("Div", ["z", "two"], "z2")  # W x / 2 + b orders as W x + 2 b
    head = load(save(path, nodes, {"w": W.T, "b": B, "two": np.float32(2)}))
    np.testing.assert_array_equal(head.weight, W)
    np.testing.assert_array_equal(head.bias, B * 2)


def test_a_negative_scale_after_the_bias_is_refused(path: Path) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], "z"), node("Mul", ["z", "s"], "out")]
    save(path, nodes, {"w": W.T, "b": B, "s": np.float32(-1)})
    with pytest.raises(UncorkError, match="does not keep their order"):
        load(path)


def test_a_product_that_would_round_is_refused(path: Path) -> None:
    gemm = node("Gemm", ["x", "w"], "out", alpha=0.3)
    save(path, [gemm], {"w": W.T.astype(np.float64) / 3})
    with pytest.raises(UncorkError, match="not exact in float64"):
        load(path)


def test_what_follows_the_head_is_noted_where_it_changes_the_argmax(path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "z"), node("Neg", ["z"], "out")]
    assert "Neg" in find(save(path, nodes, {"w": W.T})).notes[0]


@pytest.mark.parametrize(("last", "noted"), [("Sigmoid", True), ("Softmax", False)])
def test_a_sigmoid_for_each_class_is_noted(path: Path, last: str, noted: bool) -> None:
    nodes = [node("MatMul", ["x", "w"], "z"), node(last, ["z"], "out")]
    notes = find(save(path, nodes, {"w": W.T})).notes
    assert any("no argmax between them" in note for note in notes) == noted


def test_a_mask_or_a_second_scale_after_the_head_is_noted(path: Path) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], "z"), node("Mul", ["z", "b"], "out")]
    assert "Mul" in find(save(path, nodes, {"w": W.T, "b": B})).notes[0]
    nodes = [node("Gemm", ["x", "w", "b"], "z"), node("Add", ["z", "x"], "out")]
    assert "input 'x'" in find(save(path, nodes, {"w": W.T, "b": B})).notes[0]


def test_the_output_named_logits_is_preferred(path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "logits"), node("MatMul", ["x", "v"], "cache")]
    save(path, nodes, {"w": W.T, "v": np.eye(3, dtype=np.float32)}, ("cache", "logits"))
    assert find(path).weight_name == "w"


def test_two_heads_are_listed(path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "first"), node("MatMul", ["x", "v"], "second")]
    save(path, nodes, {"w": W.T, "v": np.eye(3, dtype=np.float32)}, ("first", "second"))
    with pytest.raises(UncorkError, match=r"2 linear layers: w \(3 × 4\), v \(3 × 3\).*--weight"):
        load(path)
    assert load(path, weight="w").classes == 4


def test_transpose_without_a_name_is_refused(path: Path) -> None:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T})
    with pytest.raises(UncorkError, match="--transpose goes with --weight"):
        load(path, transpose=True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("character", "a\nb\nc\nd"),
        ("character", "b\nc"),
        ("labels", '["a", "b", "c", "d"]'),
        ("names", "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}"),
        ("classes", "a, b, c, d"),
    ],
)
def test_labels_in_the_metadata(path: Path, key: str, text: str) -> None:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T}, metadata={key: text})
    labels = load(path).labels
    if text == "b\nc":
        assert labels == ("<blank>", "b", "c", " ")
    else:
        assert labels == ("a", "b", "c", "d")


def test_labels_that_do_not_fit_are_left_out_and_noted(path: Path) -> None:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T}, metadata={"labels": '["a"]'})
    found = find(path)
    assert found.head.labels is None
    assert "has 1 entries for 4 classes" in found.notes[0]


def external(path: Path, location: str, offset: int = 0, length: int | None = None) -> Path:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T})
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_beside_the_model(path: Path) -> None:
    (path.parent / "m.data").write_bytes(bytes(16) + W.T.tobytes())
    np.testing.assert_array_equal(load(external(path, "m.data", 16, 48)).weight, W)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "", "a/../../m.data", "."])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "m.data").write_bytes(W.T.tobytes())
    (tmp_path / "inner").mkdir()
    with pytest.raises(UncorkError, match="outside the model's folder"):
        load(external(tmp_path / "inner" / "m.onnx", location))


def test_a_link_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.data").write_bytes(W.T.tobytes())
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "m.data").symlink_to(tmp_path / "m.data")
    with pytest.raises(UncorkError, match="outside the model's folder"):
        load(external(tmp_path / "inner" / "m.onnx", "m.data"))


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [(1, None, "truncated"), (-4, None, "truncated"), (0, 47, "truncated"), (2**70, None, "trunc")],
)
def test_external_data_out_of_range(path: Path, offset: int, length: Any, message: str) -> None:
    (path.parent / "m.data").write_bytes(W.T.tobytes())
    with pytest.raises(UncorkError, match=message):
        load(external(path, "m.data", offset, length))


def test_external_data_missing(path: Path) -> None:
    with pytest.raises(UncorkError, match=r"kept in 'm\.data', which is not there"):
        load(external(path, "m.data"))


def test_a_cycle_ends_in_an_error(path: Path) -> None:
    nodes = [node("Add", ["a", "c"], "b"), node("Identity", ["b"], "c"),
             node("MatMul", ["x", "w"], "a"), node("Identity", ["c"], "out")]  # fmt: skip
    save(path, nodes, {"w": W.T})
    with pytest.raises(UncorkError, match="before it is made"):
        load(path)


def test_a_cycle_of_constants_ends_in_an_error(path: Path) -> None:
    nodes = [node("Identity", ["w1"], "w"), node("Identity", ["w"], "w1"),
             node("MatMul", ["x", "w"], "out")]  # fmt: skip
    save(path, nodes, {})
    with pytest.raises(UncorkError, match="no output comes from"):
        load(path)


def test_a_very_deep_graph_is_walked_without_recursion(path: Path) -> None:
    depth = 5 * sys.getrecursionlimit()
    nodes = [node("MatMul", ["x", "w"], "z0")]
    nodes += [node("Identity", [f"z{k}"], f"z{k + 1}") for k in range(depth)]
    nodes += [node("Softmax", [f"z{depth}"], "out")]
    assert load(save(path, nodes, {"w": W.T})).classes == 4


def test_a_tensor_that_announces_more_than_it_holds(path: Path) -> None:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T})
    model = onnx.load(path)
    for dims in ((2**40, 2**40), (-3, -4), (3, 5), (1,) * 60):
        model.graph.initializer[0].dims[:] = dims
        path.write_bytes(model.SerializeToString())
        with pytest.raises(UncorkError, match="damaged"):
            load(path)


def test_truncation_anywhere_ends_in_one_line(path: Path) -> None:
    data = save(path, [node("Gemm", ["x", "w", "b"], "out")], {"w": W.T, "b": B}).read_bytes()
    # Protobuf has no length of its own: a cut between fields can leave a valid, smaller model.
    graph_end = data.rindex(b"out") + 3
    for cut in range(graph_end):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError) as raised:
            load(path)
        assert "\n" not in str(raised.value)


def test_without_the_onnx_package_the_way_to_get_it_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, [node("MatMul", ["x", "w"], "out")], {"w": W.T})
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UncorkError, match=r"pip install 'uncork\[onnx\]'"):
        load(path)
