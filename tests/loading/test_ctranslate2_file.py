"""CTranslate2: what the real run-time computes is the head's, of inputs that its domain holds."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec
from run_time import holds

from uncork import UncorkError
from uncork.loading import find, load
from uncork.loading.contents import UnknownDomain

TOKENS, FEATURES, INNER = 60, 8, 16
NAMES = ["<unk>", "<s>", "</s>", *(f"t{n}" for n in range(3, TOKENS))]


def filled(spec: Any, tied: bool = True, features: int = FEATURES, tokens: int = TOKENS) -> Any:
    """Random weights for every layer of a specification."""
    rng = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    def norm(layer: Any) -> None:
        layer.gamma = 1 + values(features) / 4
        if hasattr(layer, "beta"):
            layer.beta = values(features)

    def linear(layer: Any, out: int, size: int) -> None:
        layer.weight, layer.bias = values(out, size) / 3, values(out)

    for side in (getattr(spec, "encoder", None), spec.decoder):
        if side is None:
            continue
        embedding = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embedding.weight = values(tokens, features)
        side.position_encodings.encodings = values(32, features)
        if hasattr(side, "layer_norm"):
            norm(side.layer_norm)
        for layer in side.layer:
            linear(layer.self_attention.linear[0], 3 * features, features)
            linear(layer.self_attention.linear[1], features, features)
            norm(layer.self_attention.layer_norm)
            if hasattr(layer, "attention"):
                linear(layer.attention.linear[0], features, features)
                linear(layer.attention.linear[1], 2 * features, features)
                linear(layer.attention.linear[2], features, features)
                norm(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, INNER, features)
            linear(layer.ffn.linear_1, features, INNER)
            norm(layer.ffn.layer_norm)
    decoder = spec.decoder
    decoder.projection.weight = decoder.embeddings.weight if tied else values(tokens, features)
    if not tied:
        decoder.projection.bias = values(tokens)
    decoder.scale_embeddings = False
    return spec


def saved(spec: Any, folder: Path, quantization: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    if isinstance(spec, TransformerSpec):
        spec.register_source_vocabulary(NAMES)
        spec.register_target_vocabulary(NAMES)
    else:
        spec.register_vocabulary(NAMES)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    return folder


def language_model(**options: Any) -> Any:
    return TransformerDecoderModelSpec.from_config(2, 2, **options)


def logits(folder: Path) -> np.ndarray:
    """Those of the run-time, for a few dozen positions."""
    rng = np.random.default_rng(1)
    lines = [[NAMES[n] for n in rng.integers(3, TOKENS, 12)] for _ in range(5)]
    model = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
    out = model.forward_batch(lines, return_log_probs=False)
    return np.array(out, dtype=np.float64).reshape(-1, TOKENS)


def sample(path: Path) -> None:
    """A small file with codes, a norm and an alias."""
    spec = filled(language_model(), tokens=6, features=4)
    spec.register_vocabulary(NAMES[:6])
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(str(path.parent))
    (path.parent / "model.bin").rename(path)


CASES = {
    "LayerNorm": ({}, True, "LayerNorm decoder/layer_norm precedes"),
    "RMSNorm": ({"rms_norm": True}, True, "RMSNorm decoder/layer_norm precedes"),
    "with a bias": ({}, False, "LayerNorm decoder/layer_norm precedes"),
    "after each block": (
        {"pre_norm": False}, True, "LayerNorm decoder/layer_1/ffn/layer_norm precedes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_head_is_what_the_run_time_computes(case: str, tmp_path: Path) -> None:
    options, tied, why = CASES[case]
    folder = saved(filled(language_model(**options), tied), tmp_path / "m")
    found = find(folder, domain="auto")
    assert found.head.labels is not None
    assert list(found.head.labels) == NAMES
    assert why in found.domain_from
    assert (found.bias_name == "decoder/projection/bias") is not tied
    assert ("tied to decoder/embeddings/weight" in found.why) is tied
    holds(found, logits(folder), 2e-5)


@pytest.mark.parametrize("factor", [0.25, -2.0])
def test_a_scale_and_a_projection_before_the_head_are_part_of_the_domain(
    factor: float, tmp_path: Path
) -> None:
    spec = filled(language_model())
    spec.decoder.scale_outputs = factor
    found = find(saved(spec, tmp_path / "m"), domain="auto")
    assert "the factor" in found.domain_from
    holds(found, logits(tmp_path / "m"), 2e-5)
    spec = filled(language_model(project_in_out=True))
    rng = np.random.default_rng(3)
    narrow = rng.normal(size=(TOKENS, 5)).astype(np.float32)
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = narrow
    spec.decoder.project_in.weight = rng.normal(size=(FEATURES, 5)).astype(np.float32)
    spec.decoder.project_out.weight = rng.normal(size=(5, FEATURES)).astype(np.float32)
    spec.decoder.scale_outputs = factor
    found = find(saved(spec, tmp_path / "projected"), domain="auto")
    assert "decoder/project_out" in found.domain_from
    holds(found, logits(tmp_path / "projected"), 2e-5)


@pytest.mark.parametrize("kind", ["int8", "int16", "float16", "bfloat16", "int8_float16"])
def test_stored_types_are_read_as_the_run_time_dequantises_them(kind: str, tmp_path: Path) -> None:
    folder = saved(filled(language_model(), tied=False), tmp_path / "m", kind)
    found = find(folder, domain="auto")
    whole = kind.startswith("int")
    assert str(found.head.weight.dtype) == ("float64" if whole else kind)
    assert any("codes over decoder/projection/weight_scale" in note for note in found.notes) is (
        whole
    )
    # Codes over a scale are rounded to float32 by the run-time, to float64 here.
    holds(found, logits(folder), 2e-5)
    tied = find(saved(filled(language_model()), tmp_path / "tied", kind), domain="auto")
    holds(tied, logits(tmp_path / "tied"), 2e-5)


def test_a_translation_model_takes_the_target_vocabulary(tmp_path: Path) -> None:
    spec = filled(TransformerSpec.from_config(1, 2, pre_norm=True))
    folder = saved(spec, tmp_path / "m")
    model = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    rng = np.random.default_rng(5)
    lines = [[NAMES[n] for n in rng.integers(3, TOKENS, 9)] for _ in range(4)]
    results = model.translate_batch(
        lines, beam_size=1, max_decoding_length=8, min_decoding_length=8, return_logits_vocab=True,
        disable_unk=False,
    )  # fmt: skip
    out = [np.array(step) for result in results for step in result.logits[0]]
    found = find(folder / "model.bin", domain="auto")
    assert list(found.head.labels or ()) == NAMES
    holds(found, np.array(out, dtype=np.float64).reshape(-1, TOKENS), 2e-5)
    (folder / "shared_vocabulary.json").unlink()
    (folder / "target_vocabulary.txt").write_text("\n".join(NAMES[1:]) + "\n")
    (folder / "vmap.txt").write_text("")
    found = find(folder)
    assert list(found.head.labels or ()) == [*NAMES[1:], "<unk>"]  # which the loader appends
    assert any("vocabulary mapping" in note for note in found.notes)


def test_without_a_norm_at_the_end_nothing_is_claimed(tmp_path: Path) -> None:
    folder = saved(filled(language_model(no_final_norm=True)), tmp_path / "m")
    found = find(folder, domain="auto")
    assert found.shown_domain is None
    assert "ends in a sum" in found.domain_from
    shown = found.contents.domain(found.contents.choose())
    assert isinstance(shown, UnknownDomain)


def test_the_embedding_by_hand_is_the_tied_head(tmp_path: Path) -> None:
    folder = saved(filled(language_model()), tmp_path / "m", "int8")
    one = find(folder, weight="decoder/embeddings/weight", domain="auto")
    other = find(folder, domain="auto")
    assert one.head.fingerprint == other.head.fingerprint
    with pytest.raises(UncorkError, match="part of decoder/embeddings/weight"):
        load(folder, weight="decoder/embeddings/weight_scale")


def variables(*entries: tuple[str, tuple[int, ...], int, bytes], aliases: int = 0) -> bytes:
    """A file as CTranslate2 writes it, by hand."""

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    data = (
        struct.pack("<I", 6) + text("TransformerDecoderSpec") + struct.pack("<II", 8, len(entries))
    )
    for name, shape, kind, values in entries:
        data += text(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
        data += struct.pack("<BI", kind, len(values)) + values
    return data + struct.pack("<I", aliases)


def encoded(shape: tuple[int, ...], dtype: str = "f4") -> bytes:
    return np.ones(shape, dtype).tobytes()


HEAD = "decoder/projection/weight"
REFUSED = {
    "int8 without a scale": variables((HEAD, (3, 2), 1, encoded((3, 2), "i1"))),
    "does not fit the codes": variables(
        (HEAD, (3, 2), 1, encoded((3, 2), "i1")), (f"{HEAD}_scale", (2,), 0, encoded((2,)))
    ),
    "scales that are not positive": variables(
        (HEAD, (3, 2), 1, encoded((3, 2), "i1")), (f"{HEAD}_scale", (3,), 0, bytes(12))
    ),
    "which is not known": variables((HEAD, (3, 2), 9, encoded((3, 2)))),
    r"has shape \[3, 3\] in float32, and 24 bytes": variables((HEAD, (3, 3), 0, encoded((3, 2)))),
    "truncated or damaged": variables((HEAD, (3, 2), 0, encoded((3, 2))), aliases=1 << 30),
    "bytes are left": variables((HEAD, (3, 2), 0, encoded((3, 2)))) + b"\0",
    "does not fit weight": variables(
        (HEAD, (3, 2), 0, encoded((3, 2))), ("decoder/projection/bias", (2,), 0, encoded((2,)))
    ),
    "packed by AWQ": variables((HEAD, (3, 2), 3, encoded((3, 2), "i4"))),
    "it is an encoder": variables(("encoder/layer_norm/gamma", (2,), 0, encoded((2,)))),
}


@pytest.mark.parametrize("message", REFUSED)
def test_damage_and_other_models_are_refused_in_one_line(message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(REFUSED[message])
    with pytest.raises(UncorkError, match=message) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_vocabularies_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(variables((HEAD, (3, 2), 0, np.arange(6, dtype=np.float32).tobytes())))
    (tmp_path / "vocabulary.json").write_text(json.dumps({"a": 1}))
    assert any("is not a list of tokens" in note for note in find(path).notes)
    (tmp_path / "vocabulary.json").write_text(json.dumps(["a", "b", "c", "d"]))
    assert any("4 entries" in note for note in find(path).notes)
