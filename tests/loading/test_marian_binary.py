"""Marian's .bin: the same head as in the .npz, codes as Marian reads them, damage refused."""

from __future__ import annotations

import importlib.util
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from uncork import UncorkError
from uncork.domain import LayerNorm
from uncork.loading import find, load

RANDOM = np.random.default_rng(0)
V, D = 48, 16
PLAIN = {"int8": 0x101, "int16": 0x102, "float16": 0x402, "float32": 0x404, "float64": 0x408}
CODES = {"int8": 0x4101, "int16": 0x4102}  # Bergamot's numbers
OWN_CODES = {"int8": 0x10001, "int16": 0x10002}  # Marian's
Coded = tuple[int, tuple[np.ndarray, float]]


def values(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def coded(matrix: np.ndarray, multiplier: float, dtype: str = "int8") -> tuple[np.ndarray, float]:
    """Codes and the multiplier at their end, as Marian's PrepareA rounds."""
    limit = np.iinfo(dtype).max
    codes = np.clip(np.rint(matrix * np.float32(multiplier)), -limit, limit).astype(dtype)
    return codes, multiplier


def write(path: Path, items: dict[str, np.ndarray | Coded]) -> Path:
    """As Marian's saveItems does: headers, names, shapes, padding, values with padding."""
    headers, names, shapes, data = b"", b"", b"", b""
    for name, item in items.items():
        if isinstance(item, tuple):
            kind, (array, multiplier) = item
            # Only an embedding lies as its shape says.
            laid = array if "Wemb" in name else np.ascontiguousarray(array.T)
            raw = laid.tobytes() + struct.pack("<f", multiplier)
        else:
            array, kind = item, PLAIN[item.dtype.name]
            raw = array.tobytes()
        raw += bytes(-len(raw) % 256)
        headers += struct.pack("<4Q", len(name) + 1, kind, array.ndim, len(raw))
        names += name.encode() + b"\0"
        shapes += struct.pack(f"<{array.ndim}i", *array.shape)
        data += raw
    start = struct.pack("<QQ", 1, len(items)) + headers + names + shapes
    offset = 256 - (len(start) + 8) % 256
    path.write_bytes(start + struct.pack("<Q", offset) + bytes(offset) + data)
    return path


def options(**said: object) -> np.ndarray:
    text = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in said.items())
    return np.frombuffer(text.encode() + b"\0", np.int8)


POST = options(type="transformer", dec_depth=1, transformer_postprocess="dan",
               transformer_postprocess_top='""', tied_embeddings_all="true")  # fmt: skip
REST = {
    "decoder_ff_logit_out_b": values(1, V), "decoder_l1_ffn_ffn_ln_scale": values(1, D),
    "decoder_l1_ffn_ffn_ln_bias": values(1, D),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_is_the_head_of_the_npz(dtype: str, tmp_path: Path) -> None:
    arrays = {"special:model.yml": POST, "Wemb": values(V, D).astype(dtype), **REST}
    np.savez(tmp_path / "m.npz", **arrays)  # type: ignore[arg-type]
    (tmp_path / "m.vocab.yml").write_text("".join(f"t{n}: {n}\n" for n in range(V)))
    one, other = (
        find(path, domain="auto")
        for path in (tmp_path / "m.npz", write(tmp_path / "model.bin", arrays))
    )
    assert other.contents.format == "marian bin"
    assert other.head.fingerprint == one.head.fingerprint
    assert other.head.labels == one.head.labels
    assert isinstance(other.head.domain, LayerNorm)
    assert other.domain_from == one.domain_from
    assert load(tmp_path / "model.bin", bias="decoder_ff_logit_out_b").bias is not None


@pytest.mark.parametrize("numbers", [CODES, OWN_CODES])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_tied_embedding_of_codes_is_what_marian_loads(
    dtype: str, numbers: dict[str, int], tmp_path: Path
) -> None:
    weight = values(V, D)
    multiplier = np.float32(31.7)
    codes = coded(weight, float(multiplier), dtype)
    path = write(tmp_path / "model.bin", {
        "special:model.yml": POST, "Wemb": (numbers[dtype], codes), **REST,
    })  # fmt: skip
    (tmp_path / "lex.50.50.ende.s2t.bin").write_bytes(b"\xf5\x17\x34\x01\xd5\x48\x1a\xf1")
    found = find(tmp_path, domain="auto")  # the folder: a shortlist is not a model
    expected = np.array(
        [[np.float32(code) * (np.float32(1) / multiplier) for code in row] for row in codes[0]]
    )
    np.testing.assert_array_equal(found.head.weight, expected)
    assert found.head.weight.dtype == np.float32
    assert any("dequantised" in note for note in found.notes)
    assert any("shortlist lies beside" in note for note in found.notes)
    with pytest.raises(UncorkError, match="a lexical shortlist of Bergamot"):
        load(tmp_path / "lex.50.50.ende.s2t.bin")
    assert find(path).head.fingerprint == found.head.fingerprint


def test_other_matrices_of_codes_lie_transposed(tmp_path: Path) -> None:
    weight = values(D, V)
    codes, multiplier = coded(weight, 40.0)
    items = {"special:model.yml": POST, "decoder_Wemb": values(V, D), **REST}
    path = write(tmp_path / "model.bin", {
        **items, "decoder_ff_logit_out_W": (CODES["int8"], (codes, multiplier)),
    })  # fmt: skip
    head = load(path)
    np.testing.assert_array_equal(head.weight, codes.T / np.float64(multiplier))
    path = write(tmp_path / "model.bin", {
        **items, "decoder_ff_logit_out_Wt": (CODES["int8"], (codes.T, multiplier)),
    })  # fmt: skip
    found = find(path)
    np.testing.assert_array_equal(found.head.weight, head.weight)
    assert "its own decoder does not run" in found.head.reading.doubts[0]


def damaged(kind: int = 0x404, size: int | None = None, shape: tuple[int, ...] = (V, D)) -> bytes:
    data = values(V, D).tobytes()
    name = b"decoder_Wemb\0"
    start = struct.pack("<6Q", 1, 1, len(name), kind, len(shape), size or len(data)) + name
    return start + struct.pack(f"<{len(shape)}iQ", *shape, 0) + data


REFUSED = {
    "truncated or damaged: the values": damaged(size=1 << 60),
    "takes 6144 bytes, and 3072 are there": damaged(shape=(2 * V, D)),
    r"has shape \[-1, 16\]": damaged(shape=(-1, D)),
    "packed for one kind of processor": damaged(kind=0x1801),
    "has the multiplier": damaged(kind=0x4101, shape=(D, D)),
    "truncated or damaged: a name": struct.pack("<6Q", 1, 1, 9000, 0x404, 2, 64),
}


@pytest.mark.parametrize("message", REFUSED)
def test_damage_and_packed_weights_are_refused(message: str, tmp_path: Path) -> None:
    data = REFUSED[message]
    if "multiplier" in message:
        data = data.replace(data[-V * D * 4 :], bytes(V * D * 4))
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "model.bin")


@pytest.mark.skipif(importlib.util.find_spec("pymarian") is None, reason="600 MB, by hand")
@pytest.mark.parametrize("kind", ["float32", "intgemm8", "intgemm16"])
def test_files_that_marian_writes_are_read(kind: str, tmp_path: Path) -> None:
    """pip install pymarian: a model trained and converted by Marian itself."""
    draw = random.Random(0)
    words = [f"w{n}" for n in range(V - 2)]
    lines = [" ".join(draw.choices(words, k=4)) for _ in range(200)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    table = ["</s>", "<unk>", *words]
    (tmp_path / "vocab.yml").write_text("".join(f'"{w}": {n}\n' for n, w in enumerate(table)))
    train = (
        "train --model m.npz --type transformer --train-sets text text "
        "--vocabs vocab.yml vocab.yml --dim-emb 64 --transformer-heads 2 "
        "--transformer-dim-ffn 64 --enc-depth 1 --dec-depth 1 --tied-embeddings-all "
        f"--after-batches 3 --cpu-threads 1 --dim-vocabs {V} {V} --quiet"
    )
    for command in (train, f"convert --from m.npz --to model.bin --gemm-type {kind}"):
        code = f"import _pymarian; _pymarian.main({command.split()!r})"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    one, other = (find(tmp_path / name, domain="auto") for name in ("m.npz", "model.bin"))
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.labels == other.head.labels == tuple(table)
    for name in one.contents.tensors.keys() - {"special:model.yml"}:
        tensor = one.contents.tensors[name]
        found = other.contents.tensors[name]
        step = 0.0
        if found.folded:
            step = 0.501 * np.abs(tensor.read()).max() / 127 if kind == "intgemm8" else 0.501 / 1024
        np.testing.assert_allclose(found.read(), tensor.read(), atol=step, rtol=0)
