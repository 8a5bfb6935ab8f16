"""ONNX Runtime's .ort: the head, labels and domain of the .onnx model it was converted from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import PP_OCR_V4
from uncork import UncorkError
from uncork.domain import Box
from uncork.loading import find, load
from uncork.loading.bounded.cursor import opened
from uncork.loading.bounded.flatbuffer import Buffer
from uncork.loading.contents import AmbiguousError
from uncork.loading.ort.model import read_ort

LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
RNG = np.random.default_rng(5)
W = RNG.normal(size=(6, 4)).astype(np.float32)
B = RNG.normal(size=6).astype(np.float32)


def converted(path: Path, level: str = "extended") -> Path:
    """The model beside it as the run-time itself saves it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 4
    out = path.with_name(f"{path.stem}-{level}.ort")
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return out


def saved(
    path: Path, nodes: list[Any], stored: dict[str, np.ndarray], shape: list[Any], **metadata: str
) -> Path:
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, None)]  # fmt: skip
    constants = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(
        graph,
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
    )
    for key, value in metadata.items():
        helper.set_model_props(model, {key: value})
    onnx.save(model, path)
    return path


def classifier(path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Gemm", ["h", "weight", "bias"], ["y"], transB=1),
        helper.make_node("Softmax", ["y"], ["p"]),
    ]
    stored = {"weight": W, "bias": B}
    return saved(
        path, nodes, stored, [2, 4], names="{0: 'a', 1: 'b', 2: 'c', 3: 'd', 4: 'e', 5: 'f'}"
    )


def kinds(path: Path) -> set[str]:
    """The nodes that a file holds, as they stand in it."""
    with opened(path) as cursor:
        graph = Buffer(path, cursor.data).root().table(1).table(7)
        return {f"{node.text(2)}:{node.text(5)}".strip(":") for node in graph.tables(2)}


@pytest.mark.parametrize("level", LEVELS)
def test_a_converted_model_is_read_as_the_one_it_was_made_from(level: str, tmp_path: Path) -> None:
    path = classifier(tmp_path / "m.onnx")
    one, other = find(path, domain="auto"), find(converted(path, level), domain="auto")
    assert other.contents.format == "ort"
    assert one.head.fingerprint == other.head.fingerprint
    assert other.head.labels == one.head.labels == tuple("abcdef")
    assert other.head.domain == one.head.domain == Box(0, np.inf)
    assert (other.weight_name, other.bias_name) == (one.weight_name, one.bias_name)


def test_a_shipped_recogniser_keeps_its_head_labels_and_domain(tmp_path: Path) -> None:
    path = tmp_path / "rec.onnx"
    path.symlink_to(PP_OCR_V4)
    one, other = find(path, domain="auto"), find(converted(path, "basic"), domain="auto")
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.labels == other.head.labels
    assert str(one.head.domain) == str(other.head.domain)


def test_a_product_with_a_transposed_input_is_taken_apart(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "weight"], ["y"]),
        helper.make_node("Add", ["y", "bias"], ["p"]),
    ]
    path = saved(tmp_path / "m.onnx", nodes, {"weight": W.T.copy(), "bias": B}, ["n", 4, "m"])
    out = converted(path)
    assert "com.microsoft:FusedMatMul" in kinds(out)
    found = find(out, domain="auto")
    assert found.head.fingerprint == load(path, domain="auto").fingerprint
    assert found.head.domain == load(path, domain="auto").domain


def test_an_activation_fused_with_the_layer_before_the_head_is_its_domain(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "first", "c"], ["g"]),
        helper.make_node("LeakyRelu", ["g"], ["h"], alpha=0.25),
        helper.make_node("Gemm", ["h", "weight", "bias"], ["y"], transB=1),
        helper.make_node("Relu", ["y"], ["p"]),
    ]
    stored = {"weight": W, "bias": B, "first": RNG.normal(size=(4, 4)).astype(np.float32),
              "c": np.zeros(4, np.float32)}  # fmt: skip
    path = saved(tmp_path / "m.onnx", nodes, stored, [2, 4])
    out = converted(path)
    assert "com.microsoft:FusedGemm" in kinds(out)
    parts = [node.op_type for node in read_ort(out).graph.node]
    assert parts == ["Gemm", "LeakyRelu", "Gemm", "Relu"]
    one, other = find(path), find(out)
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.reading.doubts == other.head.reading.doubts  # a ReLU follows the head


def test_a_fused_convolution_with_a_sum_is_taken_apart(tmp_path: Path) -> None:
    def made(name: str, first: list[Any]) -> Path:
        nodes = [
            *first,
            helper.make_node("GlobalAveragePool", ["h"], ["q"]),
            helper.make_node("Flatten", ["q"], ["f"]),
            helper.make_node("Gemm", ["f", "weight", "bias"], ["p"], transB=1),
        ]
        return saved(tmp_path / name, nodes, stored, [1, 4, 5, 5])

    kernel = RNG.normal(size=(4, 4, 1, 1)).astype(np.float32)
    stored = {"weight": W, "bias": B, "kernel": kernel, "c": np.zeros(4, np.float32)}
    path = made("m.onnx", [
        helper.make_node("Conv", ["x", "kernel", "c"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["h"]),
    ])  # fmt: skip
    fused = helper.make_node("FusedConv", ["x", "kernel", "c", "x"], ["h"], activation="Relu",
                             domain="com.microsoft")  # fmt: skip
    out = converted(made("fused.onnx", [fused]), "none")
    assert "com.microsoft:FusedConv" in kinds(out)
    one, other = find(path, domain="auto"), find(out, domain="auto")
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.domain == other.head.domain
    assert np.asarray(other.head.domain.lower).min() == 0


def test_a_dynamically_quantised_head_is_dequantised_as_in_the_onnx_model(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = classifier(tmp_path / "plain.onnx")
    path = tmp_path / "m.onnx"
    quantize_dynamic(plain, path, weight_type=QuantType.QUInt8)
    out = converted(path)
    assert "com.microsoft:DynamicQuantizeMatMul" in kinds(out)
    one, other = find(path, domain="auto"), find(out, domain="auto")
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.domain == other.head.domain


def merged(path: Path, other: np.ndarray | None = None, seen: str = "Tanh") -> Path:
    """A decoder in two branches of an If, as exporters merge it."""

    def branch(name: str, kind: str, weight: str) -> Any:
        nodes = [helper.make_node(kind, ["x"], [f"{name}h"]),
                 helper.make_node("MatMul", [f"{name}h", weight], [f"{name}y"])]  # fmt: skip
        end = helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [end])

    nodes = [helper.make_node("If", ["first"], ["p"], then_branch=branch("a", "Tanh", "weight"),
                              else_branch=branch("b", seen, "other"))]  # fmt: skip
    stored = {"weight": W.T.copy(), "other": W.T.copy() if other is None else other}
    saved(path, nodes, stored, [2, 4])
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("first", TensorProto.BOOL, [1]))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("form", ["onnx", "ort"])
def test_both_branches_of_an_if_end_in_one_head(form: str, tmp_path: Path) -> None:
    path = merged(tmp_path / "m.onnx")
    found = find(path if form == "onnx" else converted(path, "basic"), domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    assert "both branches of which end in this head" in " ".join(found.head.reading.notes)
    assert found.shown_domain is not None
    assert found.head.domain.contains(np.ones((1, 4))).all()
    assert not found.head.domain.contains(np.full((1, 4), 1.5)).any()


def test_branches_with_different_heads_or_domains_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousError, match=r"the two branches of the If.*weight and other"):
        load(merged(tmp_path / "a.onnx", other=2 * W.T))
    np.testing.assert_array_equal(load(tmp_path / "a.onnx", weight="other").weight, 2 * W)
    found = find(merged(tmp_path / "b.onnx", seen="Relu"), domain="auto")
    assert found.shown_domain is None
    assert "differs between the branches" in found.domain_from


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    out = converted(classifier(tmp_path / "m.onnx"))
    data = out.read_bytes()
    out.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UncorkError, match=r"truncated|damaged|cannot be read|does not say|shape"):
        load(out)


def test_tensors_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    """A small file must not be made into a large model by naming the same bytes often."""
    import flatbuffers

    builder = flatbuffers.Builder(0)
    data = builder.CreateByteVector(bytes(100_000))
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(4, data, 0)
    builder.PrependInt32Slot(3, 1, 0)
    tensor = builder.EndObject()
    builder.StartVector(4, 50_000, 4)
    for _ in range(50_000):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    builder.StartObject(9)
    builder.PrependUOffsetTRelativeSlot(0, tensors, 0)
    graph = builder.EndObject()
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(7, graph, 0)
    model = builder.EndObject()
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, model, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"ORTM")
    (tmp_path / "m.ort").write_bytes(builder.Output())
    with pytest.raises(UncorkError, match="its tensors lie over each other"):
        load(tmp_path / "m.ort")
