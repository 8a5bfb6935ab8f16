"""Heads of shipped models are found in their files with nothing named by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from models import (
    DDDDOCR,
    DDDDOCR_INT8,
    MAGIKA,
    MAGIKA_CONFIG,
    PP_OCR_DETECTOR,
    PP_OCR_V4,
    PP_OCR_V6,
)
from uncork import UncorkError
from uncork.loading import describe, find, load


@pytest.mark.parametrize(
    ("path", "shape", "dtype", "weight", "bias"),
    [
        (PP_OCR_V4, (6625, 120), "float32", "linear_85.w_0", "linear_85.b_0"),
        (PP_OCR_V6, (18710, 120), "float32", "linear_8.w_0", "linear_8.b_0"),
        (DDDDOCR, (8210, 1024), "float32", "135", "136"),
        (DDDDOCR_INT8, (8210, 1024), "float64", "135_quantized", "136"),
        (
            MAGIKA,
            (214, 512),
            "float32",
            "jax2tf_get_logits_/Const_24:0",
            "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/Reshape:0",
        ),
    ],
    ids=["PP-OCRv4", "PP-OCRv6", "ddddocr", "ddddocr int8", "magika"],
)
def test_the_head_is_found(
    path: Path, shape: tuple[int, int], dtype: str, weight: str, bias: str
) -> None:
    found = find(path)
    assert found.head.weight.shape == shape
    assert found.head.bias is not None
    assert found.head.dtype == dtype
    assert (found.weight_name, found.bias_name) == (weight, bias)


@pytest.mark.parametrize(("path", "classes"), [(PP_OCR_V4, 6625), (PP_OCR_V6, 18710)])
def test_paddle_labels_are_the_blank_then_the_characters_then_the_space(
    path: Path, classes: int
) -> None:
    metadata = {p.key: p.value for p in onnx.load(path).metadata_props}
    characters = metadata["character"].split("\n")
    labels = load(path).labels
    assert labels is not None
    assert len(labels) == classes == len(characters) + 2
    assert labels[0] == "<blank>"
    assert list(labels[1:-1]) == characters
    assert labels[-1] == " "


def test_pp_ocr_v4_values_are_the_files_own() -> None:
    nodes = {n.output[0]: n for n in onnx.load(PP_OCR_V4).graph.node if n.op_type == "Constant"}
    head = load(PP_OCR_V4)
    stored = numpy_helper.to_array(nodes["linear_85.w_0"].attribute[0].t)
    np.testing.assert_array_equal(head.weight, stored.T)
    np.testing.assert_array_equal(
        head.bias, numpy_helper.to_array(nodes["linear_85.b_0"].attribute[0].t)
    )


def test_the_quantised_head_is_the_integers_times_the_scale_exactly() -> None:
    stored = {i.name: numpy_helper.to_array(i) for i in onnx.load(DDDDOCR_INT8).graph.initializer}
    whole = stored["135_quantized"].astype(np.int64) - int(stored["135_zero_point"])
    head = load(DDDDOCR_INT8)
    # float32 × integer in longdouble (64 bits) cannot round, so equality is exactness.
    exact = whole.T.astype(np.longdouble) * np.longdouble(stored["135_scale"])
    assert (head.weight.astype(np.longdouble) == exact).all()
    np.testing.assert_array_equal(head.bias, stored["136"])
    assert any("rounds the head's inputs" in note for note in find(DDDDOCR_INT8).notes)


def test_naming_the_weight_gives_the_same_head_as_finding_it() -> None:
    for path, name in ((PP_OCR_V4, "linear_85.w_0"), (DDDDOCR_INT8, "135_quantized")):
        assert load(path, weight=name).fingerprint == load(path).fingerprint


def test_transposing_a_named_weight_takes_it_as_stored_the_other_way_round() -> None:
    head = load(DDDDOCR, weight="135", transpose=True)
    assert head.weight.shape == (1024, 8210)
    assert head.bias is None


def test_magika_labels_come_from_its_configuration() -> None:
    labels = load(MAGIKA, labels=MAGIKA_CONFIG).labels
    assert labels is not None
    assert len(labels) == 214
    assert "python" in labels


def test_a_detector_has_no_head_and_says_which_layers_it_ends_in() -> None:
    with pytest.raises(UncorkError, match=r"no output comes from a Gemm, MatMul.*ConvTranspose"):
        load(PP_OCR_DETECTOR)


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UncorkError, match=r"no tensor 'linear_85.w_1'.*did you mean linear_85.w_0"):
        load(PP_OCR_V4, weight="linear_85.w_1")


def test_describe_says_what_was_chosen_and_why() -> None:
    shown = describe(PP_OCR_V4)
    assert shown.head is not None
    roles = {t.role: t for t in shown.tensors}
    assert roles["weight"].shape == (120, 6625)
    assert roles["bias"].shape == (6625,)
    assert "MatMul" in shown.why
    assert shown.domain_from == "assumed"
    assert "character" in shown.labels_from
    assert shown.as_dict()["classes"] == 6625


def logits_by_the_graph(path: Path, x_name: str, logits_name: str, x: np.ndarray) -> np.ndarray:
    """What the file's own nodes between two values compute, by ONNX's reference evaluator."""
    model = onnx.load(path)
    producer = {o: n for n in model.graph.node for o in n.output}
    needed, todo = [], [logits_name]
    while todo:
        node = producer.get(todo.pop())
        if node is not None and node not in needed:
            needed.append(node)
            todo += [name for name in node.input if name != x_name]
    order = [node for node in model.graph.node if node in needed]
    inputs = [onnx.helper.make_tensor_value_info(x_name, onnx.TensorProto.FLOAT, None)]
    outputs = [onnx.helper.make_tensor_value_info(logits_name, onnx.TensorProto.FLOAT, None)]
    names = {name for node in order for name in node.input}
    constants = [i for i in model.graph.initializer if i.name in names]
    tail = onnx.helper.make_graph(order, "tail", inputs, outputs, constants)
    tail_model = onnx.helper.make_model(tail, opset_imports=model.opset_import)
    return ReferenceEvaluator(tail_model).run(None, {x_name: x})[0]


@pytest.mark.parametrize(
    ("path", "x_name", "logits_name"),
    [
        (PP_OCR_V4, "transpose_51.tmp_0", "p2o.Add.277"),
        (PP_OCR_V6, "p2o.pd_op.transpose.8.0", "p2o.pd_op.add.79.0"),
        (DDDDOCR, "380", "381"),
        (DDDDOCR_INT8, "380", "381"),
        (
            MAGIKA,
            "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/LayerNorm_1/AddV2_1:0",
            "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/AddV2:0",
        ),
    ],
    ids=["PP-OCRv4", "PP-OCRv6", "ddddocr", "ddddocr int8", "magika"],
)
def test_the_head_computes_what_the_graph_computes(
    path: Path, x_name: str, logits_name: str
) -> None:
    head = load(path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, head.features)).astype(np.float32)
    if path == DDDDOCR_INT8:
        # The graph rounds its inputs to 256 steps from the least to the largest: these it keeps.
        x = generator.integers(0, 256, size=x.shape).astype(np.float32)
        x[0, :2] = 0, 255
    weight, bias = head.rows(0, head.classes), head.offsets
    size = np.abs(x).astype(np.float64) @ np.abs(weight).T + np.abs(bias)
    difference = logits_by_the_graph(path, x_name, logits_name, x) - (x @ weight.T + bias)
    assert (np.abs(difference) <= size * head.features * 2.0**-24).all()
