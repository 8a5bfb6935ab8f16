"""GGUF: rows equal the gguf package's own dequantisation; the norm and the tokens are found."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from uncork import UncorkError
from uncork.domain import LayerNorm, RMSNorm
from uncork.loading import AmbiguousError, describe, find, load
from uncork.loading.gguf import file as gguf_file

ROWS, FEATURES = 40, 512
W = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
NORM = np.random.default_rng(1).uniform(0.5, 2.0, FEATURES).astype(np.float32)
TOKENS = ["<s>", "</s>", "<unk>", *(f"t{i}" for i in range(3, 38)), "<spare>", "[PAD39]"]
TYPES = [3, 3, 2] + [1] * 35 + [5, 5]


def write(
    path: Path,
    tensors: dict[str, Any],
    architecture: str = "llama",
    *,
    rms: bool = True,
    tokens: list[str] | None = None,
    types: list[int] | None = None,
    **options: Any,
) -> Path:
    """A file by the real writer. A tensor is an array, or bytes of blocks and their type."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    if rms:
        writer.add_layer_norm_rms_eps(1e-5)
    else:
        writer.add_layer_norm_eps(1e-5)
    if tokens is not None:
        writer.add_token_list(tokens)
    if types is not None:
        writer.add_token_types(types)
    for name, value in tensors.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(kind: Kind) -> np.ndarray:
    """Rows of random quantised bytes whose scales are finite: (ROWS, bytes)."""
    generator = np.random.default_rng(int(kind))
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (ROWS, FEATURES // values, size), dtype=np.uint8)
    # Q4_K and Q5_K begin with two float16 scales, Q2_K ends with two, Q6_K and Q3_K with one.
    scales = generator.normal(scale=0.01, size=(ROWS, FEATURES // values, 2)).astype(np.float16)
    both = scales.view(np.uint8)
    if kind in (Kind.Q4_K, Kind.Q5_K):
        blocks[..., :4] = both
    elif kind == Kind.Q2_K:
        blocks[..., -4:] = both
    else:
        blocks[..., -2:] = both[..., :2]
    return blocks.reshape(ROWS, -1)


def stored(kind: Kind) -> Any:
    if kind in (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        return random_blocks(kind), kind
    return gguf.quants.quantize(W, kind), kind


@pytest.mark.parametrize(
    "kind",
    [
        Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_1, Kind.Q2_K, Kind.Q3_K,
        Kind.Q4_K, Kind.Q5_K, Kind.Q6_K,
    ],
    ids=lambda kind: kind.name,
)  # fmt: skip
def test_rows_equal_the_packages_own_dequantisation(tmp_path: Path, kind: Kind) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": stored(kind)})
    (tensor,) = gguf.GGUFReader(path).tensors
    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    head = load(path)
    assert head.weight.shape == (ROWS, FEATURES)
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(head.rows(0, ROWS), expected.astype(np.float64))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Kind.F32, np.float32), (Kind.F16, np.float16), (Kind.BF16, ml_dtypes.bfloat16)],
)
def test_plain_types_are_kept_and_mapped(tmp_path: Path, kind: Kind, dtype: Any) -> None:
    weight = load(write(tmp_path / "m.gguf", {"output.weight": stored(kind)})).weight
    assert weight.dtype == np.dtype(dtype)
    assert not weight.flags.owndata
    assert not weight.flags.writeable


def test_blocks_are_dequantised_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": stored(Kind.Q6_K)})
    whole = load(path).weight
    monkeypatch.setattr(gguf_file, "_BLOCK_BYTES", 7 * FEATURES * 4)
    np.testing.assert_array_equal(load(path).weight, whole)


def test_without_an_output_tensor_the_embedding_is_the_head(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"token_embd.weight": W, "output_norm.weight": NORM})
    found = find(path)
    assert found.weight_name == "token_embd.weight"
    assert "llama.cpp takes the token embedding" in found.why


def test_the_output_tensor_and_its_bias_come_before_the_embedding(tmp_path: Path) -> None:
    bias = np.arange(ROWS, dtype=np.float32)
    tensors = {"token_embd.weight": W, "output.weight": 2 * W, "output.bias": bias}
    head = load(write(tmp_path / "m.gguf", tensors, "phi2", rms=False))
    np.testing.assert_array_equal(head.weight, 2 * W)
    np.testing.assert_array_equal(head.bias, bias)


def test_an_encoder_has_no_head(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"token_embd.weight": W}, "nomic-bert", rms=False)
    with pytest.raises(AmbiguousError, match="an encoder"):
        load(path)
    assert load(path, weight="token_embd.weight").classes == ROWS


def test_a_classifier_has_its_own_labels(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "bert")
    writer.add_classifier_output_labels(["yes", "no", "maybe"])
    writer.add_tensor("cls.output.weight", W[:3])
    writer.add_tensor("token_embd.weight", W)
    finish(writer)
    assert load(tmp_path / "m.gguf").labels == ("yes", "no", "maybe")


def test_an_rms_norm_is_the_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W, "output_norm.weight": NORM})
    found = find(path, domain="auto")
    assert isinstance(found.head.domain, RMSNorm)
    assert "RMSNorm output_norm precedes the head" in found.domain_from
    # What llama.cpp computes from any hidden state lies in it.
    x = np.random.default_rng(2).normal(size=(5, FEATURES))
    x = NORM * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    assert found.head.domain.contains(x, 1e-12).all()
    assert not found.head.domain.contains(1.01 * x).any()


def test_a_norm_with_a_bias_is_a_layer_norm(tmp_path: Path) -> None:
    tensors = {"output.weight": W, "output_norm.weight": NORM, "output_norm.bias": NORM / 2}
    path = write(tmp_path / "m.gguf", tensors, "gpt2", rms=False)
    domain = find(path, domain="auto").head.domain
    assert isinstance(domain, LayerNorm)
    x = np.random.default_rng(2).normal(size=(5, FEATURES))
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    assert domain.contains(NORM * x + NORM / 2, 1e-12).all()
    assert not domain.contains(NORM * x, 1e-12).any()


def test_a_norm_without_bias_is_told_by_its_epsilon(tmp_path: Path) -> None:
    tensors = {"output.weight": W, "output_norm.weight": NORM}
    path = write(tmp_path / "m.gguf", tensors, "command-r", rms=False)
    assert isinstance(find(path, domain="auto").head.domain, LayerNorm)


def test_olmo_ends_in_a_norm_without_parameters(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W}, "olmo", rms=False)
    assert isinstance(find(path, domain="auto").head.domain, LayerNorm)


def test_tokens_and_their_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W}, tokens=TOKENS, types=TYPES)
    vocabulary = find(path).vocabulary
    assert vocabulary.labels is not None
    assert vocabulary.labels[:38] == tuple(TOKENS[:38])
    assert (vocabulary.special, vocabulary.unused) == ((0, 1, 2), (38,))
    assert vocabulary.padding == (39,)  # the converter's name for a row past the tokenizer's end


def test_byte_level_tokens_are_written_as_text(tmp_path: Path) -> None:
    tokens = ["Ġword", "Ã©", *(f"t{i}" for i in range(38))]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_tensor("output.weight", W)
    finish(writer)
    vocabulary = find(tmp_path / "m.gguf").vocabulary
    assert vocabulary.labels is not None
    assert vocabulary.labels[:2] == (" word", "é")
    assert vocabulary.tokens is not None
    assert vocabulary.tokens[1] == "Ã©"


def test_rows_past_the_last_token_are_padding(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W}, tokens=TOKENS[:38])
    vocabulary = find(path).vocabulary
    assert vocabulary.padding == (38, 39)
    assert vocabulary.labels is not None
    assert len(vocabulary.labels) == ROWS


def test_more_tokens_than_rows_are_no_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W[:10]}, tokens=TOKENS)
    found = find(path)
    assert found.head.labels is None
    assert any("40 entries for 10 classes" in note for note in found.notes)


def test_scale_and_cap_of_the_logits_are_noted(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma2")
    writer.add_logit_scale(0.0625)
    writer.add_final_logit_softcapping(30.0)
    writer.add_tensor("output.weight", W)
    finish(writer)
    notes = " ".join(describe(tmp_path / "m.gguf").notes)
    assert "scaled by 0.0625" in notes
    assert "capped at ±30" in notes


def test_a_split_model_is_read_from_any_part(tmp_path: Path) -> None:
    tensors = {f"blk.{i}.x": W for i in range(3)} | {"output.weight": 3 * W}
    # The writer splits into parts of two tensors.
    write(tmp_path / "m.gguf", tensors, tokens=TOKENS, split_max_tensors=2)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    for part in parts:
        np.testing.assert_array_equal(load(part).weight, 3 * W)
        assert load(part).labels == tuple(TOKENS)
    parts[1].unlink()
    with pytest.raises(UncorkError, match=r"m-00002-of-00002.gguf is not beside it"):
        load(parts[0])


def test_a_big_endian_file_is_turned(tmp_path: Path) -> None:
    for kind in (Kind.F32, Kind.BF16):
        data, _ = stored(kind)
        path = tmp_path / f"{kind.name}.gguf"
        write(path, {"output.weight": (data.copy(), kind)}, tokens=TOKENS)
        little = load(path).rows(0, ROWS)
        turned = data.copy().view(f"u{gguf.GGML_QUANT_SIZES[kind][1]}").byteswap().view(data.dtype)
        writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
        writer.add_tensor(
            "output.weight", turned, raw_dtype=kind, tensor_endianess=gguf.GGUFEndian.BIG
        )
        finish(writer)
        np.testing.assert_array_equal(load(path).rows(0, ROWS), little)


def test_without_the_package_quantised_heads_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised = write(tmp_path / "q.gguf", {"output.weight": stored(Kind.Q8_0)})
    plain = write(tmp_path / "p.gguf", {"output.weight": W})
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    with pytest.raises(UncorkError, match=r"uncork\[gguf\]"):
        load(quantised)
    assert load(plain).classes == ROWS  # and plain ones need no package


def entry(name: bytes = b"w", dims: tuple[int, ...] = (3, 4), kind: int = 0, at: int = 0) -> bytes:
    return struct.pack(
        f"<Q{len(name)}sI{len(dims)}QIQ", len(name), name, len(dims), *dims, kind, at
    )


def header(tensors: int = 1, entries: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


HUGE = 2**63
HOSTILE = {
    "tensor count": header(2**50),
    "tensor count beyond the file": header(1000),
    "entry count": header(0, 2**63),
    "key length": header(0, 1, struct.pack("<Q", HUGE) + b"k" * 60),
    "string length": header(0, 1, struct.pack("<QcIQ", 1, b"k", 8, HUGE) + b"k" * 60),
    "strings in a list": header(0, 1, struct.pack("<QcIIQ", 1, b"k", 9, 8, HUGE) + b"k" * 60),
    "numbers in a list": header(0, 1, struct.pack("<QcIIQ", 1, b"k", 9, 0, HUGE) + b"k" * 60),
    "lists in a list": header(0, 1, struct.pack("<QcIIQ", 1, b"k", 9, 9, 3) + b"k" * 60),
    "unknown type": header(0, 1, struct.pack("<QcI", 1, b"k", 77) + b"k" * 60),
    "version": header(version=9),
    "dimensions": header(1, 0, struct.pack("<QcI", 1, b"w", 2**31) + bytes(99)),
    "shape": header(1, 0, entry(dims=(2**40, 2**40)) + bytes(99)),
    "values past the end": header(1, 0, entry(dims=(2**20, 2**20)) + bytes(99)),
    "quantised past the end": header(1, 0, entry(dims=(2**20, 2**20), kind=12) + bytes(99)),
    "uneven blocks": header(1, 0, entry(kind=8) + bytes(99)),
    "unknown kind": header(1, 0, entry(kind=999) + bytes(99)),
    "kind that is not dequantised": header(1, 0, entry(dims=(256, 2), kind=15) + bytes(9999)),
    "offset": header(1, 0, entry(at=2**62) + bytes(99)),
    "the same tensor twice": header(2, 0, entry() * 2 + bytes(99)),
    "alignment": header(0, 1, struct.pack("<Q17sII", 17, b"general.alignment", 4, 3) + bytes(99)),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_hostile_headers_end_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[damage])
    with pytest.raises(UncorkError) as raised:
        load(path, weight="w")
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)  # foreseen, not caught at the last door


def test_truncation_anywhere_ends_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"output.weight": W[:3, :8].copy()}, tokens=["a", "b", "c"])
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    for cut in range(4, used):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError):
            load(path)
