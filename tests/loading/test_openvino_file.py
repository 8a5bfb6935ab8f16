"""OpenVINO: what the real run-time computes is the head's, of inputs that its domain holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest
from run_time import holds

from uncork import UncorkError
from uncork.loading import find, load

CLASSES, FEATURES, GIVEN = 30, 8, 7
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(CLASSES, FEATURES)).astype(np.float32)
B = RANDOM.normal(size=CLASSES).astype(np.float32)
FIRST = RANDOM.normal(size=(FEATURES, GIVEN)).astype(np.float32)


def hidden() -> tuple[Any, Any]:
    """The input, and a layer of it."""
    x = op.parameter([-1, GIVEN], np.float32, name="x")
    return x, op.matmul(x, op.constant(FIRST), False, True)


def saved(x: Any, out: Any, path: Path, labels: str = "") -> Path:
    model = ov.Model([out], [x], "m")
    if labels:
        model.set_rt_info(labels, ["model_info", "labels"])
    ov.serialize(model, str(path), str(path.with_suffix(".bin")))
    return path


def logits(path: Path, shape: tuple[int, ...] = (40, GIVEN)) -> np.ndarray:
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = ov.Core().compile_model(str(path), "CPU", options)
    given = 3 * np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return np.asarray(model(given)[0], np.float64).reshape(-1, CLASSES)


def gained(h: Any) -> Any:
    """A LayerNorm as OpenVINO's own converters write it."""
    norm = op.mvn(h, op.constant(np.array([-1])), True, 1e-5, "inside_sqrt")
    gain, offset = RANDOM.normal(size=(2, FEATURES)).astype(np.float32)
    return op.add(op.multiply(norm, op.constant(gain)), op.constant(offset))


def rms(h: Any) -> Any:
    square = op.power(h, op.constant(np.float32(2)))
    mean = op.reduce_mean(square, op.constant(np.array([-1])), True)
    root = op.sqrt(op.add(mean, op.constant(np.float32(1e-5))))
    return op.multiply(op.divide(h, root), op.constant(W[0]))


BEFORE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ReLU": (op.relu, "box:0,inf"),
    "Sigmoid": (op.sigmoid, "box:0,1"),
    "Tanh": (op.tanh, "box:-1.0"),
    "Gelu": (lambda h: op.gelu(h, "erf"), "box:-0.1699"),
    "Gelu by tanh": (lambda h: op.gelu(h, "tanh"), "box:-0.1700"),
    "Swish": (op.swish, "box:-0.278"),
    "HSwish": (op.hswish, "box:-0.375"),
    "HSigmoid": (op.hsigmoid, "box:0,1"),
    "Clamp": (lambda h: op.clamp(h, -0.5, 0.25), "box:-0.5,0.25"),
    "Elu": (lambda h: op.elu(h, 1.0), "box:-1"),
    "Mish": (op.mish, "box:-0.3088"),
    "Tanh of what is not known": (
        lambda h: op.tanh(op.cum_sum(h, op.constant(np.int64(1)))), "box:-1.0"
    ),
    "LayerNorm": (gained, "image(offset, of rmsnorm(gain)"),
    "RMSNorm": (rms, "rmsnorm(gain)"),
    "Split": (
        lambda h: op.concat([op.relu(op.split(h, op.constant(np.int64(1)), 2).output(1)),
                             op.sigmoid(op.split(h, op.constant(np.int64(1)), 2).output(0))], 1),
        "box of 8 ranges, all within [0, inf]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("before", BEFORE)
def test_the_head_is_what_the_run_time_computes(before: str, tmp_path: Path) -> None:
    make, domain = BEFORE[before]
    x, h = hidden()
    out = op.add(op.matmul(make(h), op.constant(W), False, True), op.constant(B[None]))
    path = saved(x, out, tmp_path / "m.xml")
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert domain in str(found.head.domain), (str(found.head.domain), found.domain_from)
    holds(found, logits(path), 1e-4)
    assert find(tmp_path / "m.bin").head.fingerprint == find(tmp_path).head.fingerprint


def test_weights_on_either_side_and_softmax_and_argmax_after_them(tmp_path: Path) -> None:
    x, h = hidden()
    scores = op.matmul(op.relu(h), op.constant(np.ascontiguousarray(W.T)), False, False)
    soft = op.softmax(scores, 1)
    found = find(saved(x, soft, tmp_path / "m.xml", " ".join(f"l{n}" for n in range(CLASSES))))
    np.testing.assert_array_equal(found.head.weight, W)
    assert found.head.labels == tuple(f"l{n}" for n in range(CLASSES))
    assert not found.head.reading.doubts
    for mode, doubt in (("max", False), ("min", True)):
        x, h = hidden()
        scores = op.matmul(op.relu(h), op.constant(W), False, True)
        picked = op.topk(scores, op.constant(np.int64(1)), 1, mode, "value")
        path = saved(x, op.squeeze(picked.output(1), op.constant(np.array([1]))),
                     tmp_path / f"{mode}.xml")  # fmt: skip
        if doubt:
            with pytest.raises(UncorkError, match="smallest logit"):
                find(path)
        else:
            assert not find(path).head.reading.doubts


def test_a_convolution_of_width_one_after_a_pool(tmp_path: Path) -> None:
    x = op.parameter([-1, 3, 9, 9], np.float32, name="x")
    kernel = RANDOM.normal(size=(FEATURES, 3, 3, 3)).astype(np.float32)
    h = op.relu(op.convolution(x, op.constant(kernel), [1, 1], [0, 0], [0, 0], [1, 1]))
    h = op.reduce_mean(h, op.constant(np.array([2, 3])), True)
    out = op.convolution(h, op.constant(W[:, :, None, None]), [1, 1], [0, 0], [0, 0], [1, 1])
    out = op.reshape(op.add(out, op.constant(B[None, :, None, None])),
                     op.constant(np.array([0, -1])), True)  # fmt: skip
    found = find(saved(x, out, tmp_path / "m.xml"), domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert str(found.head.domain) == "box:0,inf"
    holds(found, logits(tmp_path / "m.xml", (40, 3, 9, 9)), 1e-4)


def test_the_last_position_of_a_sequence_is_taken(tmp_path: Path) -> None:
    x = op.parameter([-1, 5, GIVEN], np.float32, name="x")
    h = op.relu(op.matmul(x, op.constant(FIRST), False, True))
    begin, end, step = (op.constant(np.array(v)) for v in ([0, -1, 0], [0, 0, 0], [1, 1, 1]))
    last = op.strided_slice(h, begin, end, step, [1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 0])
    out = op.matmul(last, op.constant(W), False, True)
    found = find(saved(x, out, tmp_path / "m.xml"), domain="auto")
    assert str(found.head.domain) == "box:0,inf"
    holds(found, logits(tmp_path / "m.xml", (40, 5, GIVEN)), 1e-4)


def compressed(kind: str, grouped: bool = False) -> tuple[Any, np.ndarray]:
    """A weight as NNCF compresses it, and the numbers that it stands for."""
    low, high = {"u8": (0, 255), "i8": (-128, 127), "u4": (0, 15), "i4": (-8, 7)}[kind]
    shape = (CLASSES, 2, FEATURES // 2) if grouped else (CLASSES, FEATURES)
    codes = RANDOM.integers(low, high + 1, shape)
    rows = (*shape[:-1], 1)
    scale = RANDOM.uniform(0.001, 0.1, rows).astype(np.float16)
    stored = codes.astype(np.int8 if kind.startswith("i") else np.uint8)
    types = {"u4": ov.Type.u4, "i4": ov.Type.i4, "u8": ov.Type.u8, "i8": ov.Type.i8}
    node = op.convert(op.constant(stored, types[kind]), np.float16)
    values = codes.astype(np.float64)
    if kind.startswith("u"):
        zero = RANDOM.integers(low, high + 1, rows)
        node = op.subtract(
            node, op.convert(op.constant(zero.astype(np.uint8), types[kind]), np.float16)
        )
        values = values - zero
    node = op.multiply(node, op.constant(scale))
    values = values * scale.astype(np.float64)
    if grouped:
        node = op.reshape(node, op.constant(np.array([CLASSES, FEATURES])), False)
    return op.convert(node, np.float32), values.reshape(CLASSES, FEATURES)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", ["u8", "i8", "u4", "i4"])
def test_codes_and_scales_are_decoded_exactly(kind: str, grouped: bool, tmp_path: Path) -> None:
    x, h = hidden()
    weight, values = compressed(kind, grouped)
    path = saved(x, op.matmul(op.relu(h), weight, False, True), tmp_path / "m.xml")
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, values)
    assert found.head.weight.dtype == np.float64
    assert "dequantised" in found.head.reading.folded[0]
    holds(found, logits(path), 0.02)  # the run-time rounds the products to float16


def test_half_precision_is_read_as_it_is_stored(tmp_path: Path) -> None:
    x, h = hidden()
    out = op.add(op.matmul(op.relu(h), op.constant(W), False, True), op.constant(B[None]))
    ov.save_model(ov.Model([out], [x], "m"), tmp_path / "m.xml", compress_to_fp16=True)
    found = find(tmp_path / "m.xml", domain="auto")
    np.testing.assert_array_equal(found.head.weight, W.astype(np.float16))
    holds(found, logits(tmp_path / "m.xml"), 1e-4)


def test_what_is_not_known_stops_the_walk(tmp_path: Path) -> None:
    x, h = hidden()
    odd = op.cum_sum(op.relu(h), op.constant(np.int64(1)))
    path = saved(x, op.matmul(odd, op.constant(W), False, True), tmp_path / "m.xml")
    found = find(path, domain="auto")
    assert found.shown_domain is None
    assert "CumSum" in found.domain_from
    x, h = hidden()
    after = op.cum_sum(op.matmul(h, op.constant(W), False, True), op.constant(np.int64(1)))
    with pytest.raises(UncorkError, match="CumSum"):
        load(saved(x, after, tmp_path / "n.xml"))


def small(path: Path) -> None:
    """A small network with codes, for the damaged files."""
    x, h = hidden()
    weight = op.multiply(
        op.convert(op.constant(np.arange(6 * FEATURES, dtype=np.uint8).reshape(6, -1)), np.float32),
        op.constant(np.float32(0.25) + np.arange(6, dtype=np.float32)[:, None]),
    )
    out = op.add(op.matmul(gained(h), weight, False, True), op.constant(B[None, :6]))
    saved(x, op.softmax(out, 1), path)


DAMAGE: dict[str, Callable[[str], str]] = {
    "declares a document type": lambda text: text.replace(
        "<net", '<!DOCTYPE net [<!ENTITY a "b">]><net', 1
    ),
    "version '7'": lambda text: text.replace('version="11"', 'version="7"', 1),
    "truncated or damaged": lambda text: re.sub(r'size="(\d+)"', r'size="9\1"', text, count=1),
    "does not say its shape": lambda text: re.sub(r'offset="(\d+)"', 'offset="x"', text, count=1),
    "not XML, or truncated": lambda text: text[:-40],
    "nested more than": lambda text: text.replace("<layers>", "<layers>" + "<a>" * 99, 1),
    "no layers": lambda text: re.sub("(?s)<layers>.*</edges>", "", text),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    small(tmp_path / "m.xml")
    text = (tmp_path / "m.xml").read_text()
    assert load(tmp_path / "m.xml").classes == 6
    (tmp_path / "m.xml").write_text(DAMAGE[message](text))
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "m.xml")


def test_without_its_weights_a_network_is_not_read(tmp_path: Path) -> None:
    small(tmp_path / "m.xml")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(UncorkError, match=r"weights are in m\.bin, which does not lie beside it"):
        load(tmp_path / "m.xml")
