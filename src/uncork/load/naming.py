"""Which tensor of a file of named arrays is the head: the names that real models use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from uncork.load.contents import AmbiguousError, Choice, Tensor, as_matrix, listing, paired_bias

# Exact names of output layers, (classes × features).
_HEADS = (
    "lm_head.weight", "embed_out.weight", "output.weight", "head.weight",
    "cls.predictions.decoder.weight", "lm_head.decoder.weight", "predictions.decoder.weight",
    "lm_predictions.lm_head.weight", "generator_lm_head.weight", "vocab_projector.weight",
    "decoder.output_projection.weight", "proj_out.weight", "decoder.weight",
    "score.weight", "classifier.weight", "classifier.out_proj.weight", "classifier.fc.weight",
    "head.fc.weight", "heads.head.weight", "fc.weight",
    "decoder_ff_logit_out_Wt", "weight", "W", "coef_",
)  # fmt: skip
# Exact names of output layers whose classes are columns, (features × classes).
_COLUMN_HEADS = ("decoder_ff_logit_out_W", "ff_logit_W", "kernel")
# Input embeddings that double as the output layer when the file holds no other: the first counts.
_TIED = (
    "decoder_Wemb", "Wemb", "Wemb_dec",
    "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight", "transformer.wte.weight", "wte.weight",
    "backbone.embeddings.weight", "model.decoder.embed_tokens.weight",
    "decoder.embed_tokens.weight", "model.shared.weight", "shared.weight",
    "transformer.word_embeddings.weight", "word_embeddings.weight",
    "bert.embeddings.word_embeddings.weight", "roberta.embeddings.word_embeddings.weight",
    "distilbert.embeddings.word_embeddings.weight", "embed_tokens.weight",
)  # fmt: skip
_WRAPPERS = ("", "model.", "module.", "_orig_mod.")  # what training frameworks put in front


def _present(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> list[Tensor]:
    found = (tensors.get(wrapper + name) for name in names for wrapper in _WRAPPERS)
    return [tensor for tensor in found if tensor is not None and tensor.matrix_shape]


def choose_by_name(path: Path, tensors: Mapping[str, Tensor]) -> Choice:
    """The head by the names real models use, else the file's only matrix."""
    matrices = [tensor for tensor in tensors.values() if tensor.matrix_shape]
    if not matrices:
        raise AmbiguousError(
            f"{path} holds no two-dimensional array, which a weight is: there are "
            f"{listing(tensors.values())}"
        )
    rows, columns = _present(tensors, _HEADS), _present(tensors, _COLUMN_HEADS)
    tied = _present(tensors, _TIED)
    notes: tuple[str, ...] = ()
    if len(rows) + len(columns) == 1:
        chosen = (rows + columns)[0]
        why = "its name is that of an output layer"
    elif not rows and not columns and len(matrices) == 1:
        chosen, why = matrices[0], "the only two-dimensional array"
    elif not rows and not columns and tied:
        chosen = tied[0]
        why = "no output layer of its own, so the tied input embedding"
        notes = (
            f"{chosen.name} is an input embedding: it is the head only if the model ties them",
        )
    else:
        candidates = rows + columns or matrices
        raise AmbiguousError(
            f"{path} holds {len(candidates)} arrays that could be the weight: "
            f"{listing(candidates)}: name one with --weight"
        )
    if chosen in columns:
        why = f"{why}, classes are its columns"
        return _with_bias(tensors, as_matrix(path, chosen).T, chosen.name, why, notes)
    return _with_bias(tensors, as_matrix(path, chosen), chosen.name, why, notes)


def choose_columns(path: Path, tensors: Mapping[str, Tensor], name: str) -> Choice | None:
    """The head of a tensor whose name says that the classes are its columns; else None."""
    if any(name == wrapper + known for known in _COLUMN_HEADS for wrapper in _WRAPPERS):
        matrix = as_matrix(path, tensors[name]).T
        return _with_bias(tensors, matrix, name, "classes are its columns by its name", ())
    return None


def _with_bias(
    tensors: Mapping[str, Tensor], matrix: np.ndarray, name: str, why: str, notes: tuple[str, ...]
) -> Choice:
    partner = paired_bias(tensors, name, matrix.shape[0])
    bias = None if partner is None else partner.read().reshape(-1)
    return Choice(matrix, bias, name, partner.name if partner else None, why, notes)
