"""Core ML: heads of neural networks as coremltools writes them, kraken's codec, damage refused."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import UncorkError
from uncork.loading import find, load

CLASSES, FEATURES, GIVEN = 30, 8, 7
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(CLASSES, FEATURES)).astype(np.float32)
B = RANDOM.normal(size=CLASSES).astype(np.float32)
FIRST = RANDOM.normal(size=(FEATURES, GIVEN)).astype(np.float32)
RELU, TANH, SIGMOID = 10, 30, 40
CLASSIFIER, NETWORK, PIPELINE = 403, 500, 200


def field(number: int, value: int | bytes | str) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def floats(array: np.ndarray) -> bytes:
    return field(1, array.astype("<f4").tobytes())


def layer(name: str, given: str, made: str, kind: int, settings: bytes) -> bytes:
    return field(1, field(1, name) + field(2, given) + field(3, made) + field(kind, settings))


def inner(weight: bytes, outputs: int, width: int, bias: np.ndarray | None = None) -> bytes:
    data = field(1, width) + field(2, outputs) + field(20, weight)
    return data if bias is None else data + field(10, 1) + field(21, floats(bias))


def model(layers: bytes, out: str = "p", kind: int = NETWORK, metadata: bytes = b"") -> bytes:
    said = field(1, field(1, "x")) + field(10, field(1, out)) + field(100, metadata)
    return field(1, 4) + field(2, said) + field(kind, layers)


def network(weight: bytes, bias: np.ndarray | None = B, activation: int = RELU) -> bytes:
    rows = CLASSES if bias is None else len(bias)
    return (
        layer("hidden", "x", "h", 140, inner(floats(FIRST), FEATURES, GIVEN))
        + layer("act", "h", "a", 130, field(activation, b""))
        + layer("head", "a", "z", 140, inner(weight, rows, FEATURES, bias))
        + layer("soft", "z", "p", 175, b"")
    )


@pytest.mark.parametrize(
    ("activation", "domain"), [(RELU, "box:0,inf"), (TANH, "box:-1.0"), (SIGMOID, "box:0,1")]
)
def test_the_last_inner_product_is_the_head(activation: int, domain: str, tmp_path: Path) -> None:
    labels = field(100, b"".join(field(1, f"l{n}") for n in range(CLASSES)))
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(network(floats(W), activation=activation) + labels, kind=CLASSIFIER))
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert found.head.labels == tuple(f"l{n}" for n in range(CLASSES))
    assert domain in str(found.head.domain)
    assert not found.head.reading.doubts
    assert found.shown_domain is not None
    assert "computes in float32" in found.shown_domain.assumed
    assert find(tmp_path).head.fingerprint == find(path).head.fingerprint


def test_halves_and_codes_are_read_as_they_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(network(field(2, W.astype("<f2").tobytes()))))
    np.testing.assert_array_equal(load(path).weight, W.astype(np.float16))
    codes = RANDOM.integers(0, 256, W.shape).astype(np.uint8)
    scale, offset = RANDOM.uniform(0.01, 1, (2, CLASSES)).astype(np.float32)
    linear = field(1, scale.tobytes()) + field(2, offset.tobytes())
    path.write_bytes(model(network(
        field(30, codes.tobytes()) + field(40, field(1, 8) + field(101, linear))
    )))  # fmt: skip
    found = find(path)
    expected = codes * scale.astype(np.float64)[:, None] + offset.astype(np.float64)[:, None]
    np.testing.assert_array_equal(found.head.weight, expected)
    assert "dequantised: 8-bit codes" in found.head.reading.folded[0]
    table = RANDOM.normal(size=256).astype(np.float32)
    path.write_bytes(model(network(
        field(30, codes.tobytes()) + field(40, field(1, 8) + field(102, floats(table)))
    )))  # fmt: skip
    np.testing.assert_array_equal(load(path).weight, table[codes])


def lstm(size: int, width: int, last: int = TANH) -> bytes:
    usual = b"".join(field(10, field(kind, b"")) for kind in (SIGMOID, TANH, last))
    back = b"".join(field(11, field(kind, b"")) for kind in (SIGMOID, TANH, TANH))
    gates = b"".join(field(k, floats(np.ones(size * width))) for k in (1, 2, 3, 4))
    gates += b"".join(field(k, floats(np.ones(size * size))) for k in (20, 21, 22, 23))
    return field(1, width) + field(2, size) + usual + back + field(20, gates) + field(20, gates)


def test_krakens_models_have_the_labels_of_their_codec_and_the_range_of_their_lstm(
    tmp_path: Path,
) -> None:
    def layers(last: int) -> bytes:
        return (
            layer("conv", "x", "c", 500, field(10, "groupnorm"))
            + layer("rnn", "c", "a", 430, lstm(FEATURES // 2, GIVEN, last))
            + layer("lin", "a", "z", 140, inner(floats(W), CLASSES, FEATURES, B))
            + layer("soft", "z", "p", 175, b"")
        )

    table = {"a": [1], "ﬁ": [2, 3], "b": [4]}
    codec = field(100, field(1, "codec") + field(2, json.dumps({"c2l": table})))
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(layers(TANH), metadata=codec))
    found = find(path, domain="auto")
    assert found.head.labels is not None
    assert found.head.labels[:6] == ("<blank>", "a", "<part of ﬁ>", "<part of ﬁ>", "b", "<row 5>")
    assert str(found.head.domain).startswith("box:-1.0")
    assert "LSTM (rnn)" in found.domain_from
    path.write_bytes(model(layers(RELU)))
    assert find(path, domain="auto").shown_domain is None


def test_a_classifier_names_the_value_that_its_labels_are_of(tmp_path: Path) -> None:
    labels = field(100, b"".join(field(1, f"l{n}") for n in range(CLASSES))) + field(200, "p")
    other = layer("other", "a", "z2", 140, inner(floats(-W), CLASSES, FEATURES, B))
    for out in ("probabilities", "z2"):
        path = tmp_path / "m.mlmodel"
        path.write_bytes(model(network(floats(W)) + other + labels, out=out, kind=CLASSIFIER))
        np.testing.assert_array_equal(load(path).weight, W)


def test_of_two_activations_in_one_layer_none_is_believed(tmp_path: Path) -> None:
    once, twice = (
        layer("act", "h", "a", 130, one)
        for one in (field(RELU, b""), field(RELU, b"") + field(5, b""))
    )
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(network(floats(W)).replace(once, twice)))
    assert find(path, domain="auto").shown_domain is None


def small(path: Path) -> None:
    """A small network, for the damaged files."""
    path.write_bytes(model(network(floats(W[:6]), B[:6])))


DAMAGE: dict[str, bytes] = {
    "has 960 bytes for 248 values": model(network(floats(W), np.append(B, 0))),
    "without layers": model(b""),
    "several models at once": model(network(floats(W))) + field(PIPELINE, b""),
    "a pipeline of several models of Core ML": model(b"", kind=PIPELINE),
    "is 2 layers at once": model(field(1, field(1, "odd") + field(140, b"") + field(100, b""))),
    "reaches past the end": model(network(floats(W)))[:-9],
    "codes of 4 bits": model(network(field(30, bytes(120)) + field(40, field(1, 4)))),
    "with a scale for each input": model(network(field(31, bytes(240)))),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_and_other_models_are_refused(message: str, tmp_path: Path) -> None:
    (tmp_path / "m.mlmodel").write_bytes(DAMAGE[message])
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "m.mlmodel")


@pytest.mark.skipif(importlib.util.find_spec("coremltools") is None, reason="by hand")
@pytest.mark.filterwarnings("ignore")
def test_files_that_coremltools_writes_are_read(tmp_path: Path) -> None:
    """pip install coremltools: with five axes and with as many as there are."""
    import coremltools
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    def saved(builder: Any) -> Path:
        coremltools.models.utils.save_spec(builder.spec, str(tmp_path / "m.mlmodel"))
        return tmp_path / "m.mlmodel"

    ends = [("x", datatypes.Array(GIVEN))], [("p", datatypes.Array(CLASSES))]
    builder = NeuralNetworkBuilder(*ends, mode="classifier")
    builder.add_inner_product("hidden", FIRST, None, GIVEN, FEATURES, False, "x", "h")
    builder.add_activation("act", "RELU", "h", "a")
    builder.add_inner_product("head", W, B, FEATURES, CLASSES, True, "a", "z")
    builder.add_softmax("soft", "z", "p")
    builder.set_class_labels([f"l{n}" for n in range(CLASSES)])
    found = find(saved(builder), domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert found.head.labels is not None
    assert (str(found.head.domain), found.head.labels[2]) == ("box:0,inf", "l2")
    ends = [("x", datatypes.Array(5, GIVEN))], [("p", datatypes.Array(5, CLASSES))]
    builder = NeuralNetworkBuilder(*ends, disable_rank5_shape_mapping=True)
    builder.add_inner_product("hidden", FIRST, None, GIVEN, FEATURES, False, "x", "h")
    builder.add_activation("act", "TANH", "h", "a")
    builder.add_batched_mat_mul("head", ["a"], "z", weight_matrix_rows=FEATURES,
                                weight_matrix_columns=CLASSES, W=W.T.copy(), bias=B)  # fmt: skip
    builder.add_softmax_nd("soft", "z", "p", axis=-1)
    found = find(saved(builder), domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert not found.head.reading.doubts


def test_floats_one_a_field_are_the_same_as_packed_ones(tmp_path: Path) -> None:
    loose = b"".join(b"\x0d" + struct.pack("<f", value) for value in W.reshape(-1))
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(network(loose)))
    np.testing.assert_array_equal(load(path).weight, W)
