"""TensorFlow Lite: the head computes what the real interpreter computes from its inputs."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from uncork import UncorkError
from uncork.domain import Box
from uncork.loading import AmbiguousError, find, load

GENERATOR = np.random.default_rng(0)
BATCH, INPUTS, HIDDEN, CLASSES = 1, 6, 8, 5
KINDS = {
    "f4": schema.TensorType.FLOAT32, "f2": schema.TensorType.FLOAT16,
    "i4": schema.TensorType.INT32, "i1": schema.TensorType.INT8, "u1": schema.TensorType.UINT8,
}  # fmt: skip
OPERATOR = schema.BuiltinOperator
ACTIVATION = schema.ActivationFunctionType


@dataclass
class Builder:
    """A model put together with TensorFlow Lite's own schema, tensor by tensor."""

    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])
    operators: list[Any] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def tensor(
        self, name: str, shape: tuple[int, ...] = (), kind: str = "f4",
        values: np.ndarray | None = None, scale: Any = None, zero: Any = 0, axis: int = 0,
    ) -> int:  # fmt: skip
        new = schema.TensorT()
        new.name = name.encode()
        new.shape = list(values.shape if values is not None else shape)
        new.type = KINDS[values.dtype.str[1:] if values is not None else kind]
        new.buffer = 0
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            self.buffers.append(buffer)
            new.buffer = len(self.buffers) - 1
        if scale is not None:
            new.quantization = schema.QuantizationParametersT()
            new.quantization.scale = np.atleast_1d(np.float32(scale)).tolist()
            new.quantization.zeroPoint = (
                np.broadcast_to(zero, np.atleast_1d(scale).shape).astype(int).tolist()
            )
            new.quantization.quantizedDimension = axis
        self.tensors.append(new)
        return len(self.tensors) - 1

    def operator(
        self, code: int, inputs: list[int], outputs: list[int], options: Any = None, **settings: Any
    ) -> None:
        if code not in self.codes:
            self.codes.append(code)
        new = schema.OperatorT()
        new.opcodeIndex = self.codes.index(code)
        new.inputs, new.outputs = inputs, outputs
        if options is not None:
            new.builtinOptions = getattr(schema, f"{options}T")()
            new.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            for key, value in settings.items():
                setattr(new.builtinOptions, key, value)
        self.operators.append(new)

    def save(self, path: Path, inputs: list[int], outputs: list[int]) -> Path:
        graph, model = schema.SubGraphT(), schema.ModelT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = inputs, outputs
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        model.operatorCodes = []
        for code in self.codes:
            new = schema.OperatorCodeT()
            new.deprecatedBuiltinCode, new.builtinCode, new.version = min(code, 127), code, 1
            if code == OPERATOR.FULLY_CONNECTED:
                new.version = 9
            model.operatorCodes.append(new)
        packed = flatbuffers.Builder(1024)
        packed.Finish(model.Pack(packed), b"TFL3")
        path.write_bytes(bytes(packed.Output()))
        return path


def dense(build: Builder, inputs: list[int], output: int, activation: int = 0) -> None:
    build.operator(
        OPERATOR.FULLY_CONNECTED, inputs, [output], "FullyConnectedOptions",
        fusedActivationFunction=activation,
    )  # fmt: skip


def network(path: Path, activation: int = ACTIVATION.RELU, *, half: bool = False) -> Path:
    """x → dense with an activation → dense → softmax, in floats."""
    build = Builder()
    x = build.tensor("x", (BATCH, INPUTS))
    first = build.tensor("w1", values=GENERATOR.normal(size=(HIDDEN, INPUTS)).astype("f4"))
    hidden = build.tensor("hidden", (BATCH, HIDDEN))
    head = GENERATOR.normal(size=(CLASSES, HIDDEN)).astype("f2" if half else "f4")
    bias = build.tensor("b2", values=GENERATOR.normal(size=CLASSES).astype("f4"))
    stored = build.tensor("w2", values=head)
    weight = stored
    if half:
        weight = build.tensor("w2 in float32", head.shape)
        build.operator(OPERATOR.DEQUANTIZE, [stored], [weight])
    logits = build.tensor("logits", (BATCH, CLASSES))
    output = build.tensor("output", (BATCH, CLASSES))
    dense(build, [x, first, -1], hidden, activation)
    dense(build, [hidden, weight, bias], logits)
    build.operator(OPERATOR.SOFTMAX, [logits], [output], "SoftmaxOptions", beta=1.0)
    return build.save(path, [x], [output])


def run(path: Path, x: np.ndarray, *names: str) -> list[np.ndarray]:
    """What the real interpreter computes, by the names of tensors."""
    interpreter = Interpreter(
        str(path),
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    numbers = {t["name"]: t["index"] for t in interpreter.get_tensor_details()}
    return [interpreter.get_tensor(numbers[name]) for name in names]


@pytest.mark.parametrize(
    ("activation", "domain"),
    [
        (ACTIVATION.RELU, Box(0, np.inf)), (ACTIVATION.RELU6, Box(0, 6)),
        (ACTIVATION.RELU_N1_TO_1, Box(-1, 1)), (ACTIVATION.NONE, None),
    ],
)  # fmt: skip
def test_a_float_model(tmp_path: Path, activation: int, domain: Box | None) -> None:
    path = network(tmp_path / "m.tflite", activation)
    found = find(path, domain="auto")
    head = found.head
    assert not head.weight.flags.owndata  # mapped
    for _ in range(20):
        x = GENERATOR.normal(scale=3.0, size=(BATCH, INPUTS)).astype(np.float32)
        hidden, logits = run(path, x, "hidden", "logits")
        own = hidden.astype(np.float64) @ head.rows(0, CLASSES).T + head.offsets
        np.testing.assert_allclose(own, logits, atol=1e-4)
        if domain is not None:
            assert head.domain.contains(hidden.astype(np.float64)).all()
    if domain is None:
        assert found.shown_domain is None
    else:
        np.testing.assert_allclose(head.domain.lower, domain.lower, rtol=1e-5)
        np.testing.assert_allclose(head.domain.upper, domain.upper, rtol=1e-5)


def test_float16_weights_behind_a_dequantize(tmp_path: Path) -> None:
    path = network(tmp_path / "m.tflite", half=True)
    head = load(path)
    assert head.dtype == "float16"
    x = GENERATOR.normal(size=(BATCH, INPUTS)).astype(np.float32)
    hidden, logits = run(path, x, "hidden", "logits")
    own = hidden.astype(np.float64) @ head.rows(0, CLASSES).T + head.offsets
    np.testing.assert_allclose(own, logits, atol=1e-4)


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale for each class"])
def test_an_int8_model(tmp_path: Path, each: bool) -> None:
    """Integers in, integers out: what the interpreter gives is the head's logits, rounded once."""
    build = Builder()
    scale = GENERATOR.uniform(0.01, 0.02, CLASSES) if each else np.array([0.0123])
    scale = scale.astype(np.float32)
    input_scale, zero = np.float32(0.05), -7
    whole = GENERATOR.integers(-127, 128, (CLASSES, HIDDEN), dtype=np.int8)
    bias = GENERATOR.integers(-3000, 3000, CLASSES).astype(np.int32)
    x = build.tensor("x", (BATCH, HIDDEN), "i1", scale=input_scale, zero=zero)
    weight = build.tensor("w", values=whole, scale=scale)
    added = build.tensor("b", values=bias, scale=scale * input_scale)
    output = build.tensor("logits", (BATCH, CLASSES), "i1", scale=0.75, zero=3)
    dense(build, [x, weight, added], output)
    path = build.save(tmp_path / "m.tflite", [x], [output])
    found = find(path, domain="auto")
    head = found.head
    exact = whole.astype(np.longdouble) * scale.astype(np.longdouble).reshape(-1, 1)
    assert (head.weight.astype(np.longdouble) == exact).all()  # not rounded
    np.testing.assert_allclose(head.bias, bias * (scale.astype(float) * input_scale), rtol=1e-15)
    step = float(input_scale)
    assert head.domain == Box((-128 - zero) * step, (127 - zero) * step)
    for _ in range(20):
        given = GENERATOR.integers(-128, 128, (BATCH, HIDDEN), dtype=np.int8)
        (logits,) = run(path, given, "logits")
        real = (given.astype(float) - zero) * step
        assert head.domain.contains(real).all()
        own = real @ head.rows(0, CLASSES).T + head.offsets
        rounded = np.clip(np.round(own / 0.75) + 3, -128, 127)
        assert np.abs(rounded - logits).max() <= 1
    assert any("rounded to float64" in note for note in found.notes)


def test_dynamic_range_quantisation_is_noted(tmp_path: Path) -> None:
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN))
    whole = GENERATOR.integers(-127, 128, (CLASSES, HIDDEN), dtype=np.int8)
    weight = build.tensor("w", values=whole, scale=0.5)
    output = build.tensor("logits", (BATCH, CLASSES))
    dense(build, [x, weight, -1], output)
    found = find(build.save(tmp_path / "m.tflite", [x], [output]))
    np.testing.assert_array_equal(found.head.weight, whole * 0.5)
    assert found.head.bias is None
    assert any("rounds the head's inputs" in note for note in found.notes)


def test_a_sigmoid_for_each_class_is_noted(tmp_path: Path) -> None:
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN))
    weight = build.tensor("w", values=GENERATOR.normal(size=(CLASSES, HIDDEN)).astype("f4"))
    logits, output = (build.tensor(name, (BATCH, CLASSES)) for name in ("logits", "out"))
    dense(build, [x, weight, -1], logits)
    build.operator(OPERATOR.LOGISTIC, [logits], [output])
    found = find(build.save(tmp_path / "m.tflite", [x], [output]))
    assert any("no argmax between them" in note for note in found.notes)


def test_silu_and_mean_before_the_head(tmp_path: Path) -> None:
    build = Builder()
    x = build.tensor("x", (BATCH, 4, HIDDEN))
    gate, product = (build.tensor(name, (BATCH, 4, HIDDEN)) for name in ("gate", "product"))
    axes = build.tensor("axes", values=np.array([1], np.int32))
    mean = build.tensor("mean", (BATCH, HIDDEN))
    weight = build.tensor("w", values=GENERATOR.normal(size=(CLASSES, HIDDEN)).astype("f4"))
    output = build.tensor("logits", (BATCH, CLASSES))
    build.operator(OPERATOR.LOGISTIC, [x], [gate])
    build.operator(OPERATOR.MUL, [x, gate], [product], "MulOptions", fusedActivationFunction=0)
    build.operator(OPERATOR.MEAN, [product, axes], [mean], "ReducerOptions", keepDims=False)
    dense(build, [mean, weight, -1], output)
    path = build.save(tmp_path / "m.tflite", [x], [output])
    found = find(path, domain="auto")
    assert "sigmoid" in found.domain_from
    assert "MEAN" in found.domain_from
    assert found.head.domain.lower == pytest.approx(-0.27847, abs=1e-4)
    x_values = np.full((BATCH, 4, HIDDEN), -1.2785, np.float32)  # where SiLU is least
    (mean_values,) = run(path, x_values, "mean")
    assert found.head.domain.contains(mean_values.astype(np.float64)).all()
    assert mean_values.max() < -0.27846


def test_several_outputs_are_listed(tmp_path: Path) -> None:
    build = Builder()
    x = build.tensor("x", (BATCH, HIDDEN))
    outputs = []
    for name, classes in (("colour", 3), ("shape", 4)):
        values = GENERATOR.normal(size=(classes, HIDDEN)).astype("f4")
        weight = build.tensor(name, values=values)
        outputs.append(build.tensor(f"{name} logits", (BATCH, classes)))
        dense(build, [x, weight, -1], outputs[-1])
    path = build.save(tmp_path / "m.tflite", [x], outputs)
    with pytest.raises(AmbiguousError, match=r"colour \(3 × 8\), shape \(4 × 8\).*--weight"):
        load(path)
    assert load(path, weight="shape").classes == 4


def test_labels_packed_into_the_file(tmp_path: Path) -> None:
    path = network(tmp_path / "m.tflite")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "ant\nbee\ncat\ndog\nelk\n")
    found = find(path)
    assert found.head.labels == ("ant", "bee", "cat", "dog", "elk")
    assert "labels.txt" in found.vocabulary.source


def test_a_model_without_a_head(tmp_path: Path) -> None:
    build = Builder()
    x, y = build.tensor("x", (1, 4)), build.tensor("y", (1, 4))
    build.operator(OPERATOR.TANH, [x], [y])
    with pytest.raises(AmbiguousError, match="they come from TANH"):
        load(build.save(tmp_path / "m.tflite", [x], [y]))


def test_a_graph_that_bites_its_own_tail(tmp_path: Path) -> None:
    build = Builder()
    x, y = build.tensor("x", (1, 4)), build.tensor("y", (1, 4))
    build.operator(OPERATOR.RESHAPE, [x], [y])
    build.operator(OPERATOR.RESHAPE, [y], [x])
    with pytest.raises(UncorkError):
        load(build.save(tmp_path / "m.tflite", [x], [y]))


def test_truncation_and_flipped_bytes_end_in_one_line(tmp_path: Path) -> None:
    path = network(tmp_path / "m.tflite")
    data = path.read_bytes()
    for cut in range(8, len(data), 61):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError) as raised:
            load(path)
        assert "\n" not in str(raised.value)
    for place in range(8, len(data), 7):
        for value in (0xFF, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ value]) + data[place + 1 :])
            message = ""
            try:
                load(path)
            except UncorkError as error:
                message = str(error)
            assert "cannot be read as" not in message, place
