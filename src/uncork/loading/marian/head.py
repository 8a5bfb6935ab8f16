"""Marian's and Nematus's models: which array is the head, and by the options, what precedes it.

What precedes the head is taken from the sources of the two programs, not guessed: Marian's
src/models/transformer.h (`postProcess`) and src/models/s2s.h (`DecoderS2S::step`), Nematus's nmt.py
(`build_decoder`). Where an option is not understood, nothing is claimed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.domain import Box, LayerNorm
from uncork.loading.arriving.known import LAYER_NORM_ASSUMED
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    as_matrix,
    turned_to,
)
from uncork.loading.vocabulary import find_vocabulary

_CONFIG = "special:model.yml"
_MOST_CONFIG = 1 << 20
_OUTPUTS = ("decoder_ff_logit_out", "decoder_ff_logit_l2")  # transformer; recurrent decoder


def with_marian(contents: Contents) -> Contents:
    """The same contents, chosen from as Marian or Nematus use them where they wrote the file."""
    tensors = contents.tensors
    nematus = "ff_logit_lstm_W" in tensors and ("ff_logit_b" in tensors or "ff_logit_W" in tensors)
    marian = any(name.startswith(("decoder_ff_logit_", "decoder_l1_")) for name in tensors)
    if not (nematus or marian or _CONFIG in tensors):
        return contents
    path = contents.path
    vocabulary = lambda classes: find_vocabulary(path.parent, classes)  # noqa: E731
    if nematus:
        return replace(
            contents,
            format=f"nematus {contents.format}",
            choose=functools.partial(_choose_nematus, path, tensors),
            vocabulary=vocabulary,
            domain=functools.partial(_domain_nematus, tensors),
        )
    options = _options(tensors)
    return replace(
        contents,
        format=f"marian {contents.format}",
        choose=functools.partial(_choose_marian, path, tensors, options),
        vocabulary=vocabulary,
        domain=functools.partial(_domain_marian, tensors, options),
    )


def _options(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The plain options of the model's YAML: key to text; a list as its items, comma-separated."""
    stored = tensors.get(_CONFIG)
    if stored is None or len(stored.shape) != 1 or stored.shape[0] > _MOST_CONFIG:
        return {}
    text = stored.read().tobytes().decode("utf-8", "replace").rstrip("\0")
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        plain = re.fullmatch(r"([\w-]+):(?:\s+(.*))?", line)
        item = re.fullmatch(r"\s*-\s+(.*)", line)
        if plain:
            key = plain[1]
            found[key] = (plain[2] or "").strip().strip("\"'").strip("[]")
        elif item and key:
            value = item[1].strip().strip("\"'")
            found[key] = f"{found[key]},{value}" if found[key] else value
    return found


def _true(options: Mapping[str, str], *names: str) -> bool:
    return any(options.get(name, "").lower() in ("true", "yes", "on") for name in names)


def _choose_marian(path: Path, tensors: Mapping[str, Tensor], options: Mapping[str, str]) -> Choice:
    lemmas = options.get("lemma-dim-emb", "")
    if lemmas not in ("", "0") or any(name.endswith("_lemmaEt") for name in tensors):
        raise UncorkError(
            f"{path} has a factored vocabulary: its rows are parts of words, and no row is a class"
        )
    for output in _OUTPUTS:
        if f"{output}_Wt" in tensors:
            return _with_bias(path, tensors, f"{output}_Wt", output, "Marian's output layer")
        if f"{output}_W" in tensors:
            why = "Marian's output layer, classes are its columns"
            return _with_bias(path, tensors, f"{output}_W", output, why, turned=True)
    # `tied-embeddings-all` and `-src` put the shared embedding into Wemb, `tied-embeddings` leaves
    # the decoder's own in decoder_Wemb.
    output = next((one for one in _OUTPUTS if f"{one}_b" in tensors), _OUTPUTS[0])
    name = (
        "Wemb" if _true(options, "tied-embeddings-all", "tied-embeddings-src") else "decoder_Wemb"
    )
    if name not in tensors:
        name = "Wemb" if "Wemb" in tensors else "decoder_Wemb"
    if name not in tensors:
        raise UncorkError(
            f"{path} is a Marian model without an output layer or a shared embedding: name the "
            "weight with --weight"
        )
    return _with_bias(path, tensors, name, output, "Marian's tied embedding")


def _with_bias(
    path: Path,
    tensors: Mapping[str, Tensor],
    name: str,
    output: str,
    why: str,
    turned: bool = False,
) -> Choice:
    """The head with its bias. Files cut down to the head may hold an embedding the other way
    round, features × classes: what the bias fits is right, and without one nothing says it."""
    matrix = as_matrix(path, tensors[name])
    choice = Choice(matrix.T if turned else matrix, None, name, None, why)
    bias = tensors.get(f"{output}_b")
    if bias is None:
        return replace(choice, sides_open=_CONFIG not in tensors and not turned)
    length = max(bias.shape, default=0)
    if length == choice.weight.shape[1] != choice.weight.shape[0]:
        choice = turned_to(choice, f"bias {bias.name}")
    if math.prod(bias.shape) != choice.weight.shape[0]:
        raise AmbiguousError(
            f"{path}: bias {bias} does not fit weight {tensors[name]} on either side: name the "
            "tensors with --weight and --bias"
        )
    return replace(choice, bias=bias.read().reshape(-1), bias_name=bias.name)


def _domain_marian(
    tensors: Mapping[str, Tensor], options: Mapping[str, str], choice: Choice
) -> FoundDomain | None:
    kind = options.get("type", "")
    name = choice.weight_name
    if not name.startswith(_OUTPUTS) and name not in ("Wemb", "decoder_Wemb"):
        return None
    if kind in ("s2s", "multi-s2s") and "decoder_ff_logit_l1_b" in tensors:
        return FoundDomain(
            Box(1.0), "the decoder's hidden layer decoder_ff_logit_l1 ends in tanh (Marian's s2s)"
        )
    if kind != "transformer":
        return None
    # Dropout does nothing at inference, so that only the last other step counts.
    top = options.get("transformer-postprocess-top", "").replace("d", "")
    each = options.get("transformer-postprocess", "").replace("d", "")
    if top.endswith("n"):
        prefix = "decoder_top"
    elif top == "" and each.endswith("n") and "decoder_top_ln_scale" not in tensors:
        layer = options.get("transformer-tied-layers", "").split(",")[-1].strip()
        layer = layer or options.get("dec-depth", "")
        prefix = f"decoder_l{layer}_ffn_ffn"
    else:
        return None
    gain, offset = tensors.get(f"{prefix}_ln_scale"), tensors.get(f"{prefix}_ln_bias")
    if gain is None or offset is None:
        return None
    domain = LayerNorm(gain.read().reshape(-1), offset.read().reshape(-1))
    why = f"layer normalisation {prefix}_ln precedes the head"
    return FoundDomain(domain, why, LAYER_NORM_ASSUMED)


def _choose_nematus(path: Path, tensors: Mapping[str, Tensor]) -> Choice:
    if "ff_logit_W" in tensors:
        why = "Nematus's output layer, classes are its columns"
        return _with_bias(path, tensors, "ff_logit_W", "ff_logit", why, turned=True)
    name = "Wemb_dec" if "Wemb_dec" in tensors else "Wemb"
    if name not in tensors:
        raise UncorkError(f"{path} is a Nematus model without an output layer: use --weight")
    return _with_bias(path, tensors, name, "ff_logit", "Nematus's tied embedding")


def _domain_nematus(tensors: Mapping[str, Tensor], choice: Choice) -> FoundDomain | None:
    # Some forks add further layers in between.
    if any("deep_output" in name for name in tensors) or "ff_logit_prev_W" not in tensors:
        return None
    if choice.weight_name not in ("ff_logit_W", "Wemb_dec", "Wemb"):
        return None
    return FoundDomain(
        Box(1.0), "tanh of ff_logit_lstm + ff_logit_prev + ff_logit_ctx precedes the head (Nematus)"
    )
