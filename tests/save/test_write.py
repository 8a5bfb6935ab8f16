"""A head written back: the new values are read again, and nothing else in the file has changed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from uncork import UncorkError, load
from uncork.loading import find
from uncork.save import write_head

W = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -2, 5]], dtype=np.float32)  # 4 × 3
B = np.array([0.5, 1.5, 2.5, 3.5], dtype=np.float32)
NEW = np.array([[3, 1, 4], [1, 5, 9], [2, 6, 5], [3, 5, 8]], dtype=np.float64) / 7
NEW_BIAS = np.array([2.0, 7.0, 1.0, 8.0]) / 3


def check(path: Path, bias: bool = True, dtype: Any = np.float32) -> None:
    head = load(path)
    np.testing.assert_array_equal(head.weight, NEW.astype(dtype))
    if bias:
        np.testing.assert_array_equal(head.bias, NEW_BIAS.astype(dtype))


@pytest.mark.parametrize("old_bias", [True, False])
def test_npz_keeps_its_other_members_and_their_compression(tmp_path: Path, old_bias: bool) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    other = np.arange(5000)
    arrays: dict[str, Any] = {"weight": W, "steps": other} | ({"bias": B} if old_bias else {})
    np.savez_compressed(source, **arrays)
    write_head(find(source), NEW, NEW_BIAS, out)
    check(out)
    np.testing.assert_array_equal(np.load(out)["steps"], other)
    assert set(np.load(out)) == {"weight", "bias", "steps"}
    assert zipfile.ZipFile(out).getinfo("steps.npy").compress_type == zipfile.ZIP_DEFLATED


def test_a_bias_no_longer_wanted_becomes_zeros(tmp_path: Path) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(source, weight=W, bias=B[None, :])
    write_head(find(source), NEW, None, out)
    check(out, bias=False)
    np.testing.assert_array_equal(np.load(out)["bias"], np.zeros((1, 4), np.float32))


def test_columns_stay_columns(tmp_path: Path) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(source, decoder_ff_logit_out_W=W.T, decoder_ff_logit_out_b=B)
    write_head(find(source), NEW, NEW_BIAS, out)
    check(out)
    assert np.load(out)["decoder_ff_logit_out_W"].shape == (3, 4)


def test_npy_holds_a_weight_and_refuses_a_bias(tmp_path: Path) -> None:
    source, out = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(source, W.astype(np.float16))
    write_head(find(source), NEW, None, out)
    check(out, bias=False, dtype=np.float16)
    with pytest.raises(UncorkError, match=r"one array.*\.npz"):
        write_head(find(source), NEW, NEW_BIAS, out)


@pytest.mark.parametrize("old_bias", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_safetensors_copies_every_other_byte(tmp_path: Path, old_bias: bool, dtype: Any) -> None:
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    rng = np.random.default_rng(0)
    others = {"body": rng.normal(size=(7, 5)), "a first": np.arange(3, dtype=np.int8)}
    head = {"lm_head.weight": W.astype(dtype)}
    if old_bias:
        head["lm_head.bias"] = B.astype(dtype)
    save_file({**others, **head}, source, {"format": "pt", "more": "é"})
    write_head(find(source), NEW, NEW_BIAS, out)
    check(out, dtype=dtype)
    for name, values in others.items():
        np.testing.assert_array_equal(load_file(out)[name], values)
    with safe_open(out, "np") as file:
        assert file.metadata() == {"format": "pt", "more": "é"}
        assert len(file.keys()) == 4


def graph(path: Path, nodes: list[Any], constants: dict[str, np.ndarray], **settings: Any) -> Path:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, settings.get("input", ["n", 3]))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"character": "a\nb\nc\nd"})
    onnx.save(model, path)
    return path


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


GRAPHS: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "Gemm": ([node("Gemm", ["x", "w", "b"], "out")], {"w": W.T.copy(), "b": B}),
    "Gemm, turned and scaled": (
        [node("Gemm", ["x", "w", "b"], "out", transB=1, alpha=0.5, beta=2.0)], {"w": W, "b": B},
    ),
    "Gemm without a bias": ([node("Gemm", ["x", "w"], "out", transB=1)], {"w": W}),
    "MatMul and Add": (
        [node("MatMul", ["x", "w"], "z"), node("Add", ["z", "b"], "out")],
        {"w": W.T.copy(), "b": B},
    ),
    "MatMul, Add and Softmax, bias on the left": (
        [
            node("MatMul", ["x", "w"], "z"),
            node("Add", ["b", "z"], "y"),
            node("Softmax", ["y"], "out"),
        ],
        {"w": W.T.copy(), "b": B[None]},
    ),
    "MatMul alone": ([node("MatMul", ["x", "w"], "out")], {"w": W.T.copy()}),
    "MatMul and Softmax": (
        [node("MatMul", ["x", "w"], "z"), node("Softmax", ["z"], "out")], {"w": W.T.copy()},
    ),
    "a weight through Transpose, from a Constant": (
        [
            node("Constant", [], "stored", value=numpy_helper.from_array(W, "stored")),
            node("Transpose", ["stored"], "w", perm=[1, 0]),
            node("MatMul", ["x", "w"], "out"),
        ],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_onnx_graphs_compute_with_the_new_head(tmp_path: Path, name: str) -> None:
    source, out = graph(tmp_path / "a.onnx", *GRAPHS[name]), tmp_path / "b.onnx"
    write_head(find(source), NEW, NEW_BIAS, out)
    check(out)
    assert load(out).labels == load(source).labels
    onnx.checker.check_model(onnx.load(out), full_check=True)
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(out)
    (found,) = session.run(None, {"x": x})
    logits = x @ NEW.T.astype(np.float32) + NEW_BIAS.astype(np.float32)
    if "Softmax" in name:
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, logits, rtol=1e-5)
    # The old weight is gone, not carried along.
    assert sum(t.dims == [3, 4] or t.dims == [4, 3] for t in onnx.load(out).graph.initializer) == 1


def test_an_onnx_embedding_tied_to_the_head_keeps_its_rows(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["w", "i"], "e"),
        node("Add", ["x", "e"], "h"),
        node("Gemm", ["h", "w"], "out", transB=1),
    ]
    source = graph(tmp_path / "a.onnx", nodes, {"w": W, "i": np.array([2])})
    out = tmp_path / "b.onnx"
    write_head(find(source), NEW, None, out)
    check(out, bias=False)
    kept = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    np.testing.assert_array_equal(kept["w"], W)
    session = onnxruntime.InferenceSession(out)
    (found,) = session.run(None, {"x": np.zeros((1, 3), np.float32)})
    np.testing.assert_allclose(found[0], NEW.astype(np.float32) @ W[2], rtol=1e-5)


def test_a_quantised_onnx_head_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [
        node("DequantizeLinear", ["q", "s"], "w"),
        node("MatMul", ["x", "w"], "out"),
    ]
    constants = {"q": W.T.astype(np.int8), "s": np.array(0.1, np.float32)}
    source, out = graph(tmp_path / "a.onnx", nodes, constants), tmp_path / "b.onnx"
    with pytest.raises(UncorkError, match=r"quantised.*write \.npz"):
        write_head(find(source), NEW, None, out)
    assert not out.exists()


def test_any_source_can_become_a_plain_npz(tmp_path: Path) -> None:
    source, out = graph(tmp_path / "a.onnx", *GRAPHS["Gemm"]), tmp_path / "b.npz"
    write_head(find(source), NEW, NEW_BIAS, out)
    check(out)
    assert set(np.load(out)) == {"weight", "bias"}


def test_another_formats_ending_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    np.savez(source, weight=W)
    with pytest.raises(UncorkError, match=r"of format npz, write \.npz \(all of it[^.]*\)$"):
        write_head(find(source), NEW, None, tmp_path / "b.onnx")
    np.save(tmp_path / "a.npy", W)
    with pytest.raises(UncorkError, match=r"write \.npy \(all.*\), or \.npz \(the head alone\)$"):
        write_head(find(tmp_path / "a.npy"), NEW, None, tmp_path / "b.onnx")


def test_integers_and_overflow_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    np.savez(source, weight=W.astype(np.int8))
    with pytest.raises(UncorkError, match="stored as int8"):
        write_head(find(source), NEW, None, tmp_path / "b.npz")
    np.savez(source, weight=W.astype(np.float16))
    with pytest.raises(UncorkError, match="does not fit into float16"):
        write_head(find(source), NEW * 1e9, None, tmp_path / "b.npz")
    np.savez(source, rows=W)
    with pytest.raises(UncorkError, match="store the weight under the name 'weight'"):
        write_head(find(source), NEW, NEW_BIAS, tmp_path / "b.npz")
    with pytest.raises(UncorkError, match="must agree"):
        write_head(find(source), NEW[:2], None, tmp_path / "b.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
