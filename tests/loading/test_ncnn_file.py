"""ncnn: what the real run-time computes is the head's, of inputs that its domain holds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import pytest
from run_time import holds

from uncork import UncorkError
from uncork.loading import find, load

CLASSES, FEATURES, GIVEN = 30, 8, 7
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(CLASSES, FEATURES)).astype(np.float32)
B = RANDOM.normal(size=CLASSES).astype(np.float32)
FIRST = RANDOM.normal(size=(FEATURES, GIVEN)).astype(np.float32)
HALF, CODES, PLAIN = 0x01306B47, 0x000D4B38, 0x0002C056


def tagged(array: np.ndarray, kind: int = 0) -> bytes:
    """A weight as ncnn's tools write it: a tag, the values, padding."""
    form = {HALF: "<f2", CODES: "i1"}.get(kind, "<f4")
    data = array.astype(form).tobytes()
    return struct.pack("<I", kind) + data + bytes(-len(data) % 4)


def plain(array: np.ndarray) -> bytes:
    return array.astype("<f4").tobytes()


def write(path: Path, lines: Sequence[str], *weights: bytes) -> Path:
    path.write_text(f"7767517\n{len(lines)} {len(lines) + 9}\n" + "\n".join(lines) + "\n")
    path.with_suffix(".bin").write_bytes(b"".join(weights))
    return path


def scores(path: Path, shape: tuple[int, ...] = (GIVEN,), out: str = "out") -> np.ndarray:
    """Those of the run-time, for a few dozen inputs, in float32."""
    net = ncnn.Net()
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    net.opt.num_threads = 1
    assert net.load_param(str(path)) == 0
    assert net.load_model(str(path.with_suffix(".bin"))) == 0
    rng, found = np.random.default_rng(1), []
    for _ in range(40):
        extractor = net.create_extractor()
        given = 3 * rng.normal(size=shape).astype(np.float32)
        assert extractor.input("x", ncnn.Mat(given)) == 0
        result, value = extractor.extract(out)
        assert result == 0
        found.append(np.array(value, dtype=np.float64).reshape(-1, CLASSES))
    return np.concatenate(found)


INPUT = f"Input input 0 1 x 0={GIVEN}"
HIDDEN = f"InnerProduct hidden 1 1 x h 0={FEATURES} 2={FEATURES * GIVEN}"
HEAD = f"InnerProduct head 1 1 a out 0={CLASSES} 1=1 2={CLASSES * FEATURES}"
STORED = tagged(FIRST), tagged(W), plain(B)


def kinds(after: str) -> list[str]:
    return [INPUT, HIDDEN, f"{after.split()[0]} act 1 1 h a {' '.join(after.split()[1:])}", HEAD]


BEFORE = {
    "ReLU": "box:0,inf",
    "Sigmoid": "box:0,1",
    "TanH": "box:-1.0",
    "Clip 0=-0.5 1=0.25": "box:-0.5,0.25",
    "Swish": "box:-0.278",
    "HardSwish 0=0.16666667 1=0.5": "box:-0.375",
    "HardSigmoid 0=0.16666667 1=0.5": "box:0,1",
    "GELU 0=1": "box:-0.1700",
    "ELU 0=1.0": "box:-1",
    "Mish": "box:-0.3088",
    "UnaryOp 0=16": "box:-1.0",
    "BinaryOp 0=4 1=1 2=0.5": "box:0.5,inf",
    "Dropout": "image(matrix, of unbounded)",  # of seven numbers
}


@pytest.mark.parametrize("before", BEFORE)
def test_the_head_is_what_the_run_time_computes(before: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.param", kinds(before), *STORED)
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    np.testing.assert_array_equal(found.head.bias, B)
    assert BEFORE[before] in str(found.head.domain), (str(found.head.domain), found.domain_from)
    holds(found, scores(path), 1e-4)
    for other in (path.with_suffix(".bin"), tmp_path):
        assert find(other).head.fingerprint == find(path).head.fingerprint


@pytest.mark.parametrize("activation", ["1", "2 -23310=1,0.0", "3 -23310=2,0.0,6.0", "4", "5",
                                        "6 10=0.16666667,0.5"])  # fmt: skip
def test_an_activation_at_the_end_of_a_layer_bounds_the_next(
    activation: str, tmp_path: Path
) -> None:
    lines = [INPUT, f"{HIDDEN.replace(' h ', ' a ')} 9={activation}", HEAD]
    path = write(tmp_path / "m.param", lines, *STORED)
    found = find(path, domain="auto")
    assert str(found.head.domain) != "box:-100,100"
    holds(found, scores(path), 1e-4)


def test_norms_are_the_domain(tmp_path: Path) -> None:
    gain, offset = RANDOM.normal(size=(2, FEATURES)).astype(np.float32)
    lines = kinds(f"LayerNorm 0={FEATURES} 1=0.00001 2=1")
    path = write(tmp_path / "m.param", lines, STORED[0], plain(gain), plain(offset), *STORED[1:])
    found = find(path, domain="auto")
    assert "rmsnorm(gain)" in str(found.head.domain)
    holds(found, scores(path), 1e-4)
    lines = kinds(f"RMSNorm 0={FEATURES} 1=0.00001 2=1")
    found = find(write(path, lines, STORED[0], plain(gain), *STORED[1:]), domain="auto")
    assert "rmsnorm(gain)" in str(found.head.domain)
    holds(found, scores(path), 1e-4)


@pytest.mark.parametrize("kind", [HALF, PLAIN, 1])
def test_types_are_read_by_their_tags(kind: int, tmp_path: Path) -> None:
    stored = tagged(W, kind)
    weight = W.astype(np.float16) if kind == HALF else W
    if kind == 1:  # a table of 256 numbers and an index each
        table = RANDOM.normal(size=256).astype(np.float32)
        index = RANDOM.integers(0, 256, W.shape).astype(np.uint8)
        stored = struct.pack("<I", 1) + plain(table) + index.tobytes() + bytes(-index.size % 4)
        weight = table[index]
    path = write(tmp_path / "m.param", kinds("ReLU"), STORED[0], stored, STORED[2])
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, weight)
    holds(found, scores(path), 1e-4)


@pytest.mark.parametrize("codes", [True, False])
def test_codes_are_taken_over_their_scales(codes: bool, tmp_path: Path) -> None:
    lines = kinds("Sigmoid")
    lines[-1] += " 8=2"
    scale = (127 / np.abs(W).max(axis=1)).astype(np.float32)
    rounded = np.rint(W * scale[:, None])
    stored = tagged(rounded, CODES) if codes else tagged(W)
    path = write(tmp_path / "m.param", lines, STORED[0], stored, plain(B), plain(scale),
                 plain(np.array([127.0])))  # fmt: skip
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, rounded / scale.astype(np.float64)[:, None])
    assert "over head.weight scale" in found.head.reading.folded[0]
    assert any("rounds the head's inputs" in note for note in found.notes)
    holds(found, scores(path), 0.05)  # the run-time rounds the inputs too


def test_a_convolution_and_a_pool_before_and_a_softmax_after(tmp_path: Path) -> None:
    kernel = RANDOM.normal(size=(FEATURES, 3, 3, 3)).astype(np.float32)
    lines = [
        "Input input 0 1 x 0=9 1=9 2=3",
        f"Convolution conv 1 1 x c 0={FEATURES} 1=3 4=1 5=0 6={kernel.size} 9=1",
        "Split split 1 2 c c1 c2",
        "Pooling few 1 1 c1 m 0=1 1=2 2=2",
        "Pooling pool 1 1 m a 0=1 4=1",
        HEAD.replace(" out ", " logits "),
        "Softmax soft 1 1 logits out",
        f"ConvolutionDepthWise odd 1 1 c2 d 0={FEATURES} 1=1 6={FEATURES} 7={FEATURES}",
    ]
    path = write(tmp_path / "m.param", lines, tagged(kernel), *STORED[1:], tagged(FIRST[:, 0]))
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    assert str(found.head.domain) == "box:0,inf", found.domain_from
    assert not found.head.reading.doubts
    holds(found, scores(path, (3, 9, 9), "logits"), 1e-3)


@pytest.mark.parametrize("pad", [0, 2])
def test_a_convolution_of_width_one_is_a_head(pad: int, tmp_path: Path) -> None:
    kernel = RANDOM.normal(size=(FEATURES, 3, 3, 3)).astype(np.float32)
    lines = [
        "Input input 0 1 x 0=9 1=9 2=3",
        f"Convolution conv 1 1 x a 0={FEATURES} 1=3 5=0 6={kernel.size} 9=1",
        f"Convolution head 1 1 a c 0={CLASSES} 1=1 4={pad} 5=1 6={CLASSES * FEATURES}",
        "Reshape flat 1 1 c r 0=-1 1=30",
        "Permute turned 1 1 r t 0=1",
        "Softmax soft 1 1 t p 0=1 1=1",
    ]
    path = write(tmp_path / "m.param", lines, tagged(kernel), *STORED[1:])
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.weight, W)
    assert str(found.head.domain) == "box:0,inf", found.domain_from
    assert bool(found.head.reading.doubts) is bool(pad)  # whose shape is not followed
    holds(found, scores(path, (3, 9, 9), "t"), 1e-3)


@pytest.mark.parametrize(
    ("kind", "gates", "biases"), [("LSTM", 4, 4), ("GRU", 3, 4), ("RNN", 1, 1)]
)
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_bounds_the_head(
    kind: str, gates: int, biases: int, both: bool, tmp_path: Path
) -> None:
    sides, size = (2, FEATURES // 2) if both else (1, FEATURES)
    parts = [RANDOM.normal(size=n * sides) for n in
             (GIVEN * size * gates, size * biases, size * size * gates)]  # fmt: skip
    layer = f"{kind} rnn 1 1 x a 0={size} 1={len(parts[0])} 2={2 if both else 0}"
    lines = [f"Input input 0 1 x 0={GIVEN} 1=5", layer, HEAD]
    path = write(tmp_path / "m.param", lines, *map(tagged, parts), *STORED[1:])
    found = find(path, domain="auto")
    assert "box:-1.0" in str(found.head.domain), found.domain_from
    holds(found, scores(path, (5, GIVEN)), 1e-4)


def test_a_gemm_is_a_head(tmp_path: Path) -> None:
    gemm = f"Gemm head 1 1 a out 3=1 5=1 6=1 8={CLASSES} 9={FEATURES} 10=4"
    lines = [f"Input input 0 1 x 0={GIVEN} 1=5", HIDDEN, "ReLU act 1 1 h a", gemm]
    path = write(tmp_path / "m.param", lines, tagged(FIRST), tagged(W), tagged(B))
    found = find(path, domain="auto")
    np.testing.assert_array_equal(found.head.bias, B)
    assert str(found.head.domain) == "box:0,inf", found.domain_from
    holds(found, scores(path, (5, GIVEN)), 1e-4)


def binary(path: Path, layers: Sequence[tuple[int, list[int], list[int], dict[int, Any]]]) -> None:
    data = struct.pack("<3i", 7767517, len(layers), 9)
    for kind, given, made, settings in layers:
        data += struct.pack(f"<3i{len(given) + len(made)}i", kind, len(given), len(made), *given,
                            *made)  # fmt: skip
        for key, value in settings.items():
            data += struct.pack("<i", key)
            data += struct.pack("<f" if isinstance(value, float) else "<i", value)
        data += struct.pack("<i", -233)
    path.write_bytes(data)


def test_a_binary_network_is_the_same_as_its_text(tmp_path: Path) -> None:
    path = write(tmp_path / "m.param", kinds("Clip 0=-0.5 1=0.25"), *STORED)
    one = find(path, domain="auto")
    path.unlink()
    inner = 15
    binary(tmp_path / "m.param.bin", [
        (16, [], [0], {0: GIVEN}), (inner, [0], [1], {0: FEATURES, 2: FEATURES * GIVEN}),
        (54, [1], [2], {0: -0.5, 1: 0.25}),
        (inner, [2], [3], {0: CLASSES, 1: 1, 2: CLASSES * FEATURES}),
    ])  # fmt: skip
    for given in ("m.param.bin", "m.bin"):
        other = find(tmp_path / given, domain="auto")
        assert other.head.fingerprint == one.head.fingerprint
        assert str(other.head.domain) == str(one.head.domain)
    net = ncnn.Net()
    assert net.load_param_bin(str(tmp_path / "m.param.bin")) == 0  # ncnn reads it as well


def small(path: Path) -> None:
    """A small network with codes and a norm, for the damaged files."""
    lines = [INPUT, HIDDEN, f"LayerNorm act 1 1 h a 0={FEATURES} 1=0.001",
             f"InnerProduct head 1 1 a out 0=6 1=1 2={6 * FEATURES} 8=1"]  # fmt: skip
    write(path, lines, tagged(FIRST), plain(W[0]), plain(W[1]), tagged(W[:6] * 20, CODES),
          plain(B[:6]), plain(np.full(6, 20.0)), plain(np.ones(1)))  # fmt: skip


DAMAGE = {
    "is not a layer of ncnn's": (("1 1 h a", "1 x h a"), b""),
    "it has 4 layers, and announces": (("4 13", "5 13"), b""),
    "two layers make one value": (("1 1 h a", "1 1 h h"), b""),
    "two layers have one name": (("act 1 1 h a", "hidden 1 1 h a"), b""),
    "a layer of someone's own": (("LayerNorm", "Whatever"), b""),
    "truncated or damaged": (("0=6 1=1 2=48", "0=6 1=1 2=999999"), b""),
    "bytes are left": (("", ""), b"more"),
    "for the shape": (("0=6 1=1 2=48", "0=7 1=1 2=48"), b"12345678"),
    "does not begin with 7767517": (("7767517", "77675170"), b""),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.param"
    small(path)
    assert load(path).classes == 6
    (old, new), more = DAMAGE[message]
    path.write_text(path.read_text().replace(old, new, 1))
    weights = path.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes() + more)
    with pytest.raises(UncorkError, match=message):
        load(path)


def test_both_files_are_needed(tmp_path: Path) -> None:
    small(tmp_path / "m.param")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(UncorkError, match=r"weights \(m\.bin\) do not lie beside it"):
        load(tmp_path / "m.param")
