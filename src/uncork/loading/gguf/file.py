"""GGUF: heads of llama.cpp models; quantised blocks are dequantised as the gguf package does."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import LayerNorm, RMSNorm
from uncork.loading.arriving.known import LAYER_NORM_ASSUMED, NORM_ASSUMED
from uncork.loading.bounded.cursor import mapped
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    as_matrix,
    listing,
)
from uncork.loading.gguf.header import Header, Place, read_header
from uncork.loading.vocabulary import vocabulary_of

_PLAIN: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
}  # fmt: skip
_BLOCK_BYTES = 16 << 20  # dequantised values that are worked on in one go
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MOST_SPLITS = 1000
_OUTPUT, _EMBEDDING, _CLASSIFIER = "output.weight", "token_embd.weight", "cls.output.weight"
# Token types of `tokenizer.ggml.token_type`.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_AS_WRITTEN = (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)
_ENCODERS = ("t5encoder", "gemma-embedding", "clip", "wavtokenizer-dec")


def read_gguf(path: Path) -> Contents:
    """Every tensor of the file, and of the other parts where a model was split."""
    header = _whole(path, read_header(path))
    tensors = {
        name: Tensor(name, place.shape, place.type_name.lower(), functools.partial(_read, place))
        for name, place in header.tensors.items()
    }
    if not tensors:
        raise UncorkError(f"{path} holds no tensors")
    architecture = str(header.metadata.get("general.architecture", ""))
    return Contents(
        path,
        "gguf",
        tensors,
        functools.partial(_choose, path, header, tensors, architecture),
        vocabulary=functools.partial(_vocabulary, header.metadata, architecture),
        domain=functools.partial(_domain, header.metadata, architecture, tensors),
    )


def _whole(path: Path, header: Header) -> Header:
    """The header with the tensors of every part: model-00001-of-00003.gguf and so on."""
    count = header.metadata.get("split.count", 1)
    name = _SPLIT.fullmatch(path.name)
    if type(count) is not int or not 1 < count <= _MOST_SPLITS or name is None:
        return header
    if int(name[3]) != count:
        raise UncorkError(f"{path} is one of {count} parts by its header, of {name[3]} by its name")
    metadata: dict[str, Any] = {}
    tensors: dict[str, Place] = {}
    for part in range(1, count + 1):
        sibling = path.with_name(f"{name[1]}-{part:05d}-of-{name[3]}.gguf")
        if part == int(name[2]):
            found = header
        elif sibling.is_file():
            found = read_header(sibling)
        else:
            raise UncorkError(
                f"{path} is one of {count} parts, and {sibling.name} is not beside it"
            )
        metadata = {**found.metadata, **metadata}  # the first part has the tokenizer
        tensors |= found.tensors
    return Header(metadata, tensors)


def _read(place: Place) -> np.ndarray:
    dtype = _PLAIN.get(place.type_name)
    if dtype is not None:
        # ml_dtypes knows only this machine's byte order, so bytes are turned before the type.
        kind = np.dtype(dtype)
        if place.order == "<" or kind.itemsize == 1:
            return mapped(place.path, kind, place.shape, place.offset)
        unsigned = np.dtype(f">u{kind.itemsize}")
        turned = mapped(place.path, unsigned, place.shape, place.offset)
        return turned.astype(unsigned.newbyteorder("=")).view(kind)
    return _dequantise(place)


def _dequantise(place: Place) -> np.ndarray:
    """Quantised rows in float32, a few at a time: the whole is never held twice."""
    where = f"{place.path}: tensor {place.name!r}"
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise UncorkError(
            f"{where} is quantised ({place.type_name}), and reading it needs the gguf package: "
            "pip install 'uncork[gguf]'"
        ) from None
    if place.order == ">":
        raise UncorkError(f"{where} is quantised in a big-endian file, which is not read")
    try:
        kind = GGMLQuantizationType(place.kind)
        values, size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise UncorkError(
            f"{where} is of {place.type_name}, which this gguf package does not know: update it"
        ) from None
    if not place.shape or place.shape[-1] % values:
        raise UncorkError(
            f"{where} has shape {list(place.shape)}, and {place.type_name} comes in blocks of "
            f"{values}: damaged"
        )
    rows, columns = math.prod(place.shape[:-1]), place.shape[-1]
    raw = mapped(place.path, np.uint8, (rows, columns // values * size), place.offset)
    result = np.empty((rows, columns), np.float32)
    step = max(1, _BLOCK_BYTES // max(1, columns * 4))
    try:
        # A scale of infinity is damage, and Head names the value it ends in.
        with np.errstate(all="ignore"):
            for start in range(0, rows, step):
                result[start : start + step] = dequantize(raw[start : start + step], kind)
    except NotImplementedError:
        raise UncorkError(
            f"{where} is {place.type_name}, which the gguf package does not dequantise: "
            "convert the head to another type (llama-quantize --output-tensor-type f16)"
        ) from None
    return result.reshape(place.shape)


def _choose(path: Path, header: Header, tensors: Mapping[str, Tensor], architecture: str) -> Choice:
    output, classifier = tensors.get(_OUTPUT), tensors.get(_CLASSIFIER)
    embedding = tensors.get(_EMBEDDING)
    if classifier is not None and classifier.shape[:1] == (1,):
        classifier = None  # a reranker's single score is not a choice between classes
    found = [tensor for tensor in (output, classifier) if tensor is not None]
    if len(found) > 1:
        raise AmbiguousError(
            f"{path} holds {len(found)} output layers: {listing(found)}: name one with --weight"
        )
    notes: list[str] = []
    if found:
        chosen, why = found[0], "its name is that of an output layer"
    elif embedding is None:
        raise AmbiguousError(
            f"{path} has neither {_OUTPUT} nor {_EMBEDDING} (architecture {architecture!r}): there "
            f"are {listing(tensors.values())}: name the weight with --weight"
        )
    elif architecture.endswith("bert") or "-bert" in architecture or architecture in _ENCODERS:
        raise AmbiguousError(
            f"{path} is an encoder ({architecture[:80]!r}) without an output layer: it computes "
            "embeddings and predicts no token; name a weight with --weight to audit it all the same"
        )
    else:
        chosen, why = embedding, f"no {_OUTPUT}, so llama.cpp takes the token embedding"
    if chosen.dtype.upper() not in _PLAIN:
        notes.append(
            f"{chosen.name} is quantised ({chosen.dtype.upper()}): its values are float32 as the "
            "gguf package dequantises them; llama.cpp also rounds the head's inputs to 8 bits, so "
            "near ties can fall differently there"
        )
    notes += _scale_notes(path, header.metadata, architecture)
    bias = tensors.get(chosen.name.removesuffix("weight") + "bias")
    if bias is not None and math.prod(bias.shape) != chosen.shape[0]:
        bias = None
    choice = Choice(as_matrix(path, chosen), None, chosen.name, None, why, tuple(notes))
    if bias is not None:
        choice = replace(choice, bias=bias.read().reshape(-1), bias_name=bias.name)
    return choice


def _scale_notes(path: Path, metadata: Mapping[str, Any], architecture: str) -> list[str]:
    notes = []
    scale = metadata.get(f"{architecture}.logit_scale")
    if isinstance(scale, float | int) and scale != 0:  # 0 means none
        if not scale > 0:
            raise UncorkError(
                f"{path} scales its logits by {scale}: a negative scale makes the argmax an argmin"
            )
        notes.append(f"the logits are scaled by {scale:g} afterwards: the argmax is unchanged")
    cap = metadata.get(f"{architecture}.final_logit_softcapping")
    if isinstance(cap, float | int) and cap > 0:
        notes.append(
            f"the logits are capped at ±{cap:g} by a tanh afterwards: the argmax is unchanged, but "
            "in low precision large logits can tie"
        )
    return notes


def _domain(
    metadata: Mapping[str, Any], architecture: str, tensors: Mapping[str, Tensor], choice: Choice
) -> FoundDomain | None:
    """The final norm. Gemma's 1 + w is already added in GGUF."""
    if choice.weight_name not in (_OUTPUT, _EMBEDDING):
        return None
    features = choice.weight.shape[1]
    name = "dec.output_norm" if "dec.output_norm.weight" in tensors else "output_norm"
    gain, offset = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if any(norm is not None and norm.shape != (features,) for norm in (gain, offset)):
        return None
    keys = f"{architecture}.attention.layer_norm"
    layer, rms = f"{keys}_epsilon" in metadata, f"{keys}_rms_epsilon" in metadata
    if gain is None:
        if architecture == "olmo" and layer:  # the one whose norms have no parameters
            why = "OLMo ends in a LayerNorm without parameters"
            return FoundDomain(LayerNorm(features=features), why, LAYER_NORM_ASSUMED)
        return None
    weight = gain.read().astype(np.float64)
    if offset is not None:
        # RMS norms have no offset; where both epsilons are given, the offset decides.
        if not layer:
            return None
        why = f"LayerNorm {name} (weight and bias) precedes the head"
        domain = LayerNorm(weight, offset.read().astype(np.float64))
        return FoundDomain(domain, why, LAYER_NORM_ASSUMED)
    if rms:
        # Both are there where only an inner part (DeepSeek's indexer) has a LayerNorm.
        assumed = f"that {name}, which has no bias, is the RMSNorm of the two" if layer else ""
        why = f"RMSNorm {name} precedes the head ({keys}_rms_epsilon)"
        return FoundDomain(RMSNorm(weight), why, "; ".join(filter(None, (assumed, NORM_ASSUMED))))
    if layer:
        why = f"LayerNorm {name} precedes the head ({keys}_epsilon)"
        return FoundDomain(LayerNorm(weight), why, LAYER_NORM_ASSUMED)
    return None


def _vocabulary(metadata: Mapping[str, Any], architecture: str, classes: int) -> Vocabulary:
    outputs = metadata.get(f"{architecture}.classifier.output_labels")
    if isinstance(outputs, list) and len(outputs) == classes:
        return Vocabulary(tuple(map(str, outputs)), "metadata classifier.output_labels")
    key = "tokenizer.ggml.tokens"
    tokens = metadata.get(key)
    if not isinstance(tokens, list) or not tokens:
        return Vocabulary()
    if len(tokens) > classes:
        return Vocabulary(None, f"{key} has {len(tokens)} entries for {classes} classes: not used")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        kinds = np.zeros(len(tokens))
    unused = np.flatnonzero(kinds == _UNUSED).tolist()
    # Rows that the tokenizer does not have get such names from the converter.
    fillers = {row for row in unused if tokens[row] in (f"[PAD{row}]", f"<pad{row}>")}
    return vocabulary_of(
        {row: str(token) for row, token in enumerate(tokens) if row not in fillers},
        classes,
        f"metadata {key!r}",
        special=np.flatnonzero((kinds == _CONTROL) | (kinds == _UNKNOWN)).tolist(),
        unused=unused,
        # llama.cpp writes these as they are, and decodes only the others from bytes.
        literal=np.flatnonzero(np.isin(kinds, _AS_WRITTEN)).tolist(),
        byte_level=metadata.get("tokenizer.ggml.model") == "gpt2",
    )
