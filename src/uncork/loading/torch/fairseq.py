"""fairseq checkpoints: which tensor is the head, and the norm that precedes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Domain, Image, LayerNorm
from uncork.loading.arriving.known import LAYER_NORM_ASSUMED
from uncork.loading.contents import Choice, FoundDomain, Tensor, as_matrix, paired_bias
from uncork.loading.naming import choose_by_name

_HEADS = ("decoder.output_projection.weight", "decoder.embed_out", "decoder.lm_head.weight",
          "encoder.lm_head.weight")  # fmt: skip
_TIED = "decoder.embed_tokens.weight"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


def _is_fairseq(tensors: Mapping[str, Tensor]) -> bool:
    return _TIED in tensors and any(_LAYER.match(name) for name in tensors)


def fairseq_choice(path: Path, tensors: Mapping[str, Tensor]) -> Choice:
    """The head of a torch checkpoint: fairseq's own names first, then those of other models."""
    if not _is_fairseq(tensors):
        return choose_by_name(path, tensors)
    if any(name.startswith("decoder.adaptive_softmax.") for name in tensors):
        raise UncorkError(
            f"{path} is a fairseq model with an adaptive softmax: its classes are spread over "
            "several matrices, and no single one is the head"
        )
    for name in _HEADS:
        if name in tensors and tensors[name].matrix_shape:
            why, notes = "the output layer of a fairseq model", ()
            break
    else:
        # fairseq leaves it out of the file only where the decoder shares its input embedding.
        name, why, notes = _TIED, "a fairseq model that shares its input embedding", ()
    matrix = as_matrix(path, tensors[name])
    partner = paired_bias(tensors, name, matrix.shape[0])
    bias = None if partner is None else partner.read().reshape(-1)
    return Choice(matrix, bias, name, partner.name if partner else None, why, notes)


def fairseq_domain(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], choice: Choice
) -> FoundDomain | None:
    """The last LayerNorm of a fairseq decoder; None where the file leaves doubts.

    fairseq's TransformerDecoder ends in `decoder.layer_norm` if it normalises before each block
    (checkpoints of version 3 on; earlier ones carry on without), else in the last block's own
    `final_layer_norm`; then `project_out_dim`, where the widths differ.
    """
    if choice.weight_name not in ("decoder.output_projection.weight", "decoder.embed_out", _TIED):
        return None
    if not _is_fairseq(tensors):
        return None
    last = max((int(found[1]) for name in tensors if (found := _LAYER.match(name))), default=-1)
    if "decoder.layer_norm.weight" in tensors:
        version = tensors.get("decoder.version")
        if version is None or not float(np.max(version.read(), initial=0)) >= 3:
            return None
        prefix = "decoder.layer_norm"
    elif settings.get("decoder_normalize_before") is False:
        prefix = f"decoder.layers.{last}.final_layer_norm"
    else:
        return None
    gain, offset = tensors.get(f"{prefix}.weight"), tensors.get(f"{prefix}.bias")
    if gain is None or offset is None:
        return None
    domain: Domain = LayerNorm(gain.read(), offset.read())
    why = f"LayerNorm {prefix} precedes the head"
    projection = tensors.get("decoder.project_out_dim.weight")
    if projection is not None:
        domain = Image(domain, projection.read())
        why = f"LayerNorm {prefix} and the linear map decoder.project_out_dim precede the head"
    return FoundDomain(domain, why, LAYER_NORM_ASSUMED)
