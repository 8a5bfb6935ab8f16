"""TensorFlow Lite: where a domain is claimed nothing else arrives; else an operator is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tflite_file import ACTIVATION, BATCH, CLASSES, HIDDEN, OPERATOR, Builder, dense, run

from uncork.domain import Box
from uncork.loading import find

GENERATOR = np.random.default_rng(0)


def headed(build: Builder, hidden: int, path: Path, inputs: list[int], *after: Any) -> Path:
    """A head after `hidden`, and operators after the head: (code, shape, kind, options …)."""
    weight = build.tensor("w", values=GENERATOR.normal(size=(CLASSES, HIDDEN)).astype("f4"))
    last = build.tensor("logits", (BATCH, CLASSES))
    dense(build, [hidden, weight, -1], last)
    for number, (code, shape, kind, options, settings) in enumerate(after):
        given, last = last, build.tensor(f"after {number}", shape, kind)
        build.operator(code, [given], [last], options, **settings)
    return build.save(path, inputs, [last])


def nothing_is_known(path: Path, operator: str) -> None:
    found = find(path, domain="auto")
    assert found.shown_domain is None
    assert operator in found.domain_from
    assert found.head.domain == Box(100)


def test_a_rounded_limit_is_the_integers_own(tmp_path: Path) -> None:
    """6 is no multiple of this scale: what comes back from the integers is 6.05."""
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN))
    clipped, back = build.tensor("clipped", (BATCH, HIDDEN)), build.tensor("back", (BATCH, HIDDEN))
    whole = build.tensor("whole", (BATCH, HIDDEN), "i1", scale=0.11, zero=-128)
    build.operator(OPERATOR.RELU6, [x], [clipped])
    build.operator(OPERATOR.QUANTIZE, [clipped], [whole])
    build.operator(OPERATOR.DEQUANTIZE, [whole], [back])
    path = headed(build, back, tmp_path / "m.tflite", [x])
    (hidden,) = run(path, np.full((BATCH, HIDDEN), 9, np.float32), "back")
    assert hidden.max() > 6.04
    found = find(path, domain="auto").head.domain
    assert found.contains(hidden.astype(np.float64)).all()
    np.testing.assert_allclose((found.lower, found.upper), (0, 255 * 0.11), rtol=1e-5)


@pytest.mark.parametrize("scale", [[0.1] * HIDDEN, 0.0, np.inf])
def test_integers_without_one_good_scale_are_not_bounded(tmp_path: Path, scale: Any) -> None:
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN), "i1", scale=scale, axis=1)
    back = build.tensor("back", (BATCH, HIDDEN))
    build.operator(OPERATOR.DEQUANTIZE, [x], [back])
    nothing_is_known(headed(build, back, tmp_path / "m.tflite", [x]), "the integers of 'x'")


def test_an_activation_that_the_run_time_leaves_out_bounds_nothing(tmp_path: Path) -> None:
    """The run-time takes tanh in an addition's options and does not compute it."""
    build = Builder()
    x, y = build.tensor("x", (BATCH, HIDDEN)), build.tensor("y", (BATCH, HIDDEN))
    build.operator(OPERATOR.ADD, [x, x], [y], "AddOptions", fusedActivationFunction=ACTIVATION.TANH)
    path = headed(build, y, tmp_path / "m.tflite", [x])
    (hidden,) = run(path, np.full((BATCH, HIDDEN), 9, np.float32), "y")
    assert hidden.max() == 18
    nothing_is_known(path, "ADD")


def test_options_of_another_operator_are_not_read(tmp_path: Path) -> None:
    build = Builder()
    x, y = build.tensor("x", (BATCH, HIDDEN)), build.tensor("y", (BATCH, HIDDEN))
    build.operator(OPERATOR.ADD, [x, x], [y], "SubOptions", fusedActivationFunction=ACTIVATION.RELU)
    nothing_is_known(headed(build, y, tmp_path / "m.tflite", [x]), "ADD")


def test_a_tensor_that_two_operators_write_is_not_known(tmp_path: Path) -> None:
    build = Builder()
    x, y = build.tensor("x", (BATCH, HIDDEN)), build.tensor("y", (BATCH, HIDDEN))
    build.operator(OPERATOR.ADD, [x, x], [y], "AddOptions")
    build.operator(OPERATOR.RELU, [x], [y])
    path = headed(build, y, tmp_path / "m.tflite", [x])
    nothing_is_known(path, "the model's own input")


def test_a_head_that_rounds_its_inputs_says_so(tmp_path: Path) -> None:
    build = Builder()
    x, y = build.tensor("x", (BATCH, HIDDEN)), build.tensor("y", (BATCH, HIDDEN))
    build.operator(OPERATOR.RELU, [x], [y])
    whole = GENERATOR.integers(-127, 128, (CLASSES, HIDDEN), dtype=np.int8)
    weight = build.tensor("w", values=whole, scale=0.5)
    output = build.tensor("logits", (BATCH, CLASSES))
    dense(build, [y, weight, -1], output)
    shown = find(build.save(tmp_path / "m.tflite", [x], [output])).shown_domain
    assert shown is not None
    assert "8 bits" in shown.assumed


AFTER = {
    "softmax": ((OPERATOR.SOFTMAX, (1, 5), "f4", "SoftmaxOptions", {"beta": 2.0}), ""),
    "softmax turned round": (
        (OPERATOR.SOFTMAX, (1, 5), "f4", "SoftmaxOptions", {"beta": -1.0}), "β = -1",
    ),
    "classes spread over axes": (
        (OPERATOR.RESHAPE, (5, 1), "f4", None, {}), "moves its classes off the last axis",
    ),
    "integers": ((OPERATOR.CAST, (1, 5), "i4", None, {}), "integers of its scores"),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
def test_what_follows_the_head_keeps_the_classes_in_order_or_is_a_doubt(
    tmp_path: Path, name: str
) -> None:
    after, doubt = AFTER[name]
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN))
    doubts = find(headed(build, x, tmp_path / "m.tflite", [x], after)).contents.choose().doubts
    assert doubt in " ".join(doubts)
    assert bool(doubts) == bool(doubt)
