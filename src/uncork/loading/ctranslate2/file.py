"""CTranslate2: the projection at the end of a decoder, its vocabulary, and the norm before it.

What precedes the projection is taken from CTranslate2's source, src/layers/transformer.cc
(`TransformerDecoder::decode`) and src/layers/wav2vec2.cc.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.domain import Image, LayerNorm, RMSNorm
from uncork.loading.arriving.known import LAYER_NORM_ASSUMED, NORM_ASSUMED
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    UnknownDomain,
    Vocabulary,
    as_matrix,
    listing,
)
from uncork.loading.ctranslate2.variables import Model, read_variables
from uncork.loading.vocabulary import vocabulary_of
from uncork.loading.vocabulary.token_text import split_lines

_PROJECTION = "decoder/projection"
_CTC = "encoder/lm_head"
_MOST_TEXT = 64 << 20
_SHARED = ("shared_vocabulary", "target_vocabulary")
_ALONE = ("vocabulary",)


def read_ctranslate2(path: Path) -> Contents:
    """The variables of a model.bin, and the layer whose outputs are the scores of tokens."""
    model = read_variables(path)
    config = _config(path.parent)
    return Contents(
        path,
        "ctranslate2",
        model.tensors,
        functools.partial(_choose, model, config),
        functools.partial(_around, model, config),
        vocabulary=functools.partial(_vocabulary, model, config),
        domain=functools.partial(_domain, model),
    )


def _config(folder: Path) -> Mapping[str, Any]:
    """What config.json says; nothing where it is not there or not readable."""
    try:
        found = json.loads(_text(folder / "config.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str | None:
    if not file.is_file() or file.stat().st_size > _MOST_TEXT:
        return None
    return file.read_bytes().decode("utf-8-sig", "backslashreplace")


def _layer(model: Model) -> str | None:
    return next((one for one in (_PROJECTION, _CTC) if f"{one}/weight" in model.tensors), None)


def _choose(model: Model, config: Mapping[str, Any]) -> Choice:
    layer = _layer(model)
    if layer is None:
        raise AmbiguousError(
            f"{model.path} ({printable(model.specification)}) has no {_PROJECTION}/weight and no "
            f"{_CTC}/weight: it is an encoder, or older than these names; there are "
            f"{listing(model.tensors.values())}: name the weight with --weight"
        )
    weight = model.tensors[f"{layer}/weight"]
    bias = model.tensors.get(f"{layer}/bias")
    if f"{layer}/weight_zero" in model.tensors or weight.dtype == "int32":
        raise UncorkError(
            f"{model.path}: {weight} is packed by AWQ, which is not read here: give the model it "
            "was converted from"
        )
    matrix = as_matrix(model.path, weight)
    if bias is not None and bias.shape != matrix.shape[:1]:
        raise UncorkError(f"{model.path} is damaged: bias {bias} does not fit weight {weight}")
    embedding = "decoder/embeddings/weight"
    tied = layer == _PROJECTION and model.same(weight.name, embedding)
    why = f"the layer that scores tokens in {printable(model.specification)}"
    return Choice(
        matrix,
        None if bias is None else bias.read(),
        weight.name,
        None if bias is None else bias.name,
        why + (f", tied to {embedding}" if tied else ""),
        notes=tuple(_notes(model, config, weight.folded)),
        bias_settled=True,
    )


def _notes(model: Model, config: Mapping[str, Any], folded: tuple[str, ...]) -> list[str]:
    notes = []
    if folded:
        notes.append(
            "CTranslate2 also rounds the head's inputs to 8 or 16 bits where it computes with "
            "codes, so near ties can fall differently there"
        )
    cap = model.number("decoder/final_logit_softcapping", 0.0)
    if cap > 0:
        notes.append(
            f"the logits are capped at ±{cap:g} by a tanh afterwards: the argmax is unchanged, but "
            "in low precision large logits can tie"
        )
    if (model.path.parent / "vmap.txt").is_file():
        notes.append(
            "a vocabulary mapping (vmap.txt) lies beside the model: where it is used, only the "
            "tokens it lists for a sentence compete"
        )
    suppressed = config.get("suppress_ids")
    if isinstance(suppressed, list) and suppressed:
        notes.append(
            f"config.json lists {len(suppressed)} tokens that decoding suppresses by default "
            "(suppress_ids): verdicts are about the logits before that"
        )
    return notes


def _around(model: Model, config: Mapping[str, Any], name: str) -> Choice | None:
    """The projection, under any of its names."""
    layer = _layer(model)
    if layer is None or not model.same(name, f"{layer}/weight"):
        return None
    return _choose(model, config)


def _vocabulary(model: Model, config: Mapping[str, Any], classes: int) -> Vocabulary:
    """The tokens beside the model, as its own loader finds them: a list in JSON, or lines."""
    sequences = model.specification.startswith("Transformer") and "Decoder" not in (
        model.specification
    )
    for stem in _SHARED if sequences else _ALONE:
        for name in (f"{stem}.json", f"{stem}.txt"):
            text = _text(model.path.parent / name)
            if text is None:
                continue
            tokens: Any = None
            if name.endswith(".txt"):
                tokens = split_lines(text)
            else:
                with contextlib.suppress(ValueError, RecursionError):
                    tokens = json.loads(text)
            if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
                return Vocabulary(None, f"{name} is not a list of tokens")
            unknown = config.get("unk_token", "<unk>")
            if isinstance(unknown, str) and unknown not in tokens and len(tokens) < classes:
                tokens = [*tokens, unknown]  # as the loader appends it
            return vocabulary_of(tokens, classes, name)
    return Vocabulary(None, "no vocabulary lies beside the model")


def _domain(model: Model, choice: Choice) -> FoundDomain | UnknownDomain | None:
    layer = _layer(model)
    if layer is None or not model.same(choice.weight_name, f"{layer}/weight"):
        return None
    if layer == _CTC:
        known = model.specification == "Wav2Vec2Spec" and (
            "encoder/fp_projection/weight" in model.tensors
        )
        if not known:
            return UnknownDomain(f"what precedes {_CTC} in {printable(model.specification)}")
        return _norm(model, "encoder/layer_norm")
    if "decoder/layer_norm/gamma" in model.tensors:
        return _norm(model, "decoder/layer_norm")
    if model.number("decoder/pre_norm", model.number("pre_norm", 1.0)):
        return UnknownDomain("no norm follows the last layer, which ends in a sum")
    # Norms come after each block: the last one is that of the last layer's feed-forward network.
    layers = [int(m[1]) for n in model.tensors if (m := re.match(r"decoder/layer_(\d{1,6})/", n))]
    last = f"decoder/layer_{max(layers, default=0)}"
    others = ("shared_layer_norm", "input_layer_norm", "pre_feedforward_layer_norm")
    if any(f"{last}/{one}/gamma" in model.tensors for one in others):
        return UnknownDomain("the last layer ends in a sum")
    return _norm(model, f"{last}/ffn/layer_norm")


def _norm(model: Model, name: str) -> FoundDomain | UnknownDomain:
    """What a norm leaves, through the projection and the scale that may follow it."""
    gain, offset = model.tensors.get(f"{name}/gamma"), model.tensors.get(f"{name}/beta")
    if gain is None:
        return UnknownDomain(f"there is no {name}")
    scale = model.tensors.get("decoder/scale_outputs")
    factor = 1.0 if scale is None else model.number("decoder/scale_outputs", float("nan"))
    if not np.isfinite(factor):
        return UnknownDomain(f"{scale} follows {name}")
    weight = gain.read().reshape(-1).astype(np.float32)
    if offset is None and model.number(f"{name}/layer_norm_use_residual", 0.0):
        weight = np.float32(1) + weight
    project = model.tensors.get("decoder/project_out/weight")
    shift = model.tensors.get("decoder/project_out/bias")
    steps = [f"{'LayerNorm' if offset is not None else 'RMSNorm'} {name}"]
    if project is not None:
        steps.append("the linear map decoder/project_out")
    if factor != 1.0:
        steps.append(f"the factor {factor:g} (decoder/scale_outputs)")
    inner = factor if project is None else 1.0
    gains = weight.astype(np.float64) * inner
    assumed = NORM_ASSUMED
    domain: LayerNorm | RMSNorm | Image = RMSNorm(gains)
    if offset is not None:
        domain = LayerNorm(gains, offset.read().reshape(-1).astype(np.float64) * inner)
        assumed = LAYER_NORM_ASSUMED
    if project is not None:
        moved = None if shift is None else shift.read().astype(np.float64) * factor
        domain = Image(domain, as_matrix(model.path, project).astype(np.float64) * factor, moved)
        assumed += "; so is decoder/project_out"
    why = ", then ".join(steps) + (" precede the head" if len(steps) > 1 else " precedes the head")
    return FoundDomain(domain, why, assumed)
