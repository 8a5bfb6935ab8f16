"""ONNX heads that are quantised or convolutions, and what arrives at them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_models import node, rows_of, run_onnx, save_onnx
from tiny_models import number as c
from uncork import Box
from uncork.loading import find, load

D = 6
RNG = np.random.default_rng(0)
W = RNG.normal(size=(D, 4)).astype(np.float32)
NUMBERS = (RNG.normal(size=(500, D)) * 10).astype(np.float32)


def test_rounded_inputs_stand_for_so_many_steps(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], "h"), node("MatMul", ["h", "w"], "out"),
    ]  # fmt: skip
    constants = {"s": c(0.07), "z": np.array(100, dtype=np.uint8), "w": W}
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    (h,) = run_onnx(path, NUMBERS, "h")
    assert domain.contains(rows_of(h)).all()
    assert rows_of(h).min() == pytest.approx(domain.lower)
    assert rows_of(h).max() == pytest.approx(domain.upper)
    nodes[0] = node("QuantizeLinear", ["r", "s", "z"], "q")
    path = save_onnx(tmp_path / "r.onnx", [node("Relu", ["x"], "r"), *nodes], constants, ["n", D])
    domain = load(path, domain="auto").domain
    assert isinstance(domain, Box)
    assert domain.lower == 0
    (h,) = run_onnx(path, NUMBERS, "h")
    assert domain.contains(rows_of(h)).all()


def test_a_pointwise_convolution_is_a_head(tmp_path: Path) -> None:
    weight = RNG.normal(size=(4, D)).astype(np.float32)
    bias = RNG.normal(size=4).astype(np.float32)
    nodes = [node("Relu", ["x"], "h"), node("Conv", ["h", "w", "b"], "z"),
             node("Softmax", ["z"], "out", axis=1)]  # fmt: skip
    path = save_onnx(
        tmp_path / "m.onnx", nodes, {"w": weight[:, :, None, None], "b": bias}, ["n", D, "a", "b"]
    )
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, weight)
    np.testing.assert_array_equal(found.head.bias, bias)
    assert found.head.domain == Box(0, np.inf)
    assert found.notes == ()


def test_averaging_a_convolutions_logits_is_said_and_a_relu_between_is_noted(
    tmp_path: Path,
) -> None:
    weight = RNG.normal(size=(4, D, 1, 1)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], "z"), node("GlobalAveragePool", ["z"], "p"),
             node("Flatten", ["p"], "f"), node("Softmax", ["f"], "out")]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"w": weight}, ["n", D, "a", "b"])
    assert "averaged over positions" in find(path).notes[0]
    nodes[:2] = [node("Conv", ["x", "w"], "y"), node("Relu", ["y"], "z"),
                 node("GlobalAveragePool", ["z"], "p")]  # fmt: skip
    path = save_onnx(tmp_path / "relu.onnx", nodes, {"w": weight}, ["n", D, "a", "b"])
    assert "Relu" in find(path).notes[0]


def quantised_weight() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    whole = RNG.integers(-128, 128, size=(D, 4)).astype(np.int8)
    return whole, c([0.01, 0.02, 0.03, 0.04]), np.array([1, 0, -3, 5], dtype=np.int8)


def test_a_qlinear_matmul_is_a_head_of_exactly_its_integers(tmp_path: Path) -> None:
    whole, scale, zero = quantised_weight()
    scale, zero = scale[0], zero[0]
    nodes = [
        node("Relu", ["x"], "r"), node("QuantizeLinear", ["r", "s", "z"], "q"),
        node("QLinearMatMul", ["q", "s", "z", "w", "ws", "wz", "ys", "yz"], "y"),
        node("DequantizeLinear", ["y", "ys", "yz"], "d"), node("Add", ["d", "b"], "out"),
    ]  # fmt: skip
    bias = c([1, 2, 3, 4])
    constants = {
        "s": c(0.07), "z": np.array(3, dtype=np.uint8), "w": whole, "ws": scale, "wz": zero,
        "ys": c(0.5), "yz": np.array(128, dtype=np.uint8), "b": bias,
    }  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    found = find(path, domain="auto")
    exact = (whole.T.astype(np.float64) - int(zero)) * np.float64(scale)
    np.testing.assert_array_equal(found.head.weight, exact)
    np.testing.assert_array_equal(found.head.bias, bias)
    assert isinstance(found.head.domain, Box)
    assert found.head.domain.lower == 0
    assert found.head.domain.upper == pytest.approx(0.07 * 252)
    x = np.abs(RNG.normal(size=(50, D))).astype(np.float32) * 5
    q, out = run_onnx(path, x, "q", "out")
    h = (q.astype(np.float64) - 3) * np.float64(np.float32(0.07))
    assert found.head.domain.contains(h, 1e-12).all()
    clear = np.abs(h @ exact.T) < 60  # where the logits' own 8 bits do not saturate
    assert (np.abs(h @ exact.T + bias - out) <= 0.26)[clear].all()


def test_a_qgemm_is_a_head_over_integer_steps(tmp_path: Path) -> None:
    whole, scale, zero = quantised_weight()
    bias = RNG.integers(-5000, 5000, size=4).astype(np.int32)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"),
        node("QGemm", ["q", "s", "z", "w", "ws", "wz", "b"], "out", domain="com.microsoft"),
    ]
    constants = {"s": c(0.07), "z": np.array(3, dtype=np.uint8), "w": whole, "ws": scale,
                 "wz": zero, "b": bias}  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    found = find(path, domain="auto")
    assert found.head.domain == Box(-3, 252)
    q, out = run_onnx(path, RNG.normal(size=(50, D)).astype(np.float32) * 5, "q", "out")
    steps = q.astype(np.float64) - 3
    logits = steps @ found.head.rows(0, 4).T + found.head.offsets
    np.testing.assert_allclose(logits * np.float32(0.07), out, rtol=1e-5, atol=1e-4)
