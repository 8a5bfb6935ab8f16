"""Which tensor of a file of named arrays is the head: the names that real models use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from uncork.core.text import printable
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Tensor,
    as_matrix,
    listing,
    paired_bias,
)

# Names of output layers, (classes × features), wherever in a model they are.
_ANYWHERE = (
    "lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight",
    "lm_head.decoder.weight", "predictions.decoder.weight", "lm_predictions.lm_head.weight",
    "generator_lm_head.weight", "vocab_projector.weight", "decoder.output_projection.weight",
    "mlm_score.decoder.weight", "lm_loss.weight",
)  # fmt: skip
# Names that only mean the output layer at the top of a model.
_HEADS = (
    *_ANYWHERE, "output.weight", "head.weight", "proj_out.weight", "decoder.weight",
    "score.weight", "classifier.weight", "classifier.out_proj.weight", "classifier.fc.weight",
    "head.fc.weight", "heads.head.weight", "fc.weight", "_fc.weight", "decoder.fc_out.weight",
    "arcface.weight", "arc_face.weight", "metric_fc.weight",
    "Prediction.weight", "Prediction.generator.weight", "decoder_ff_logit_out_Wt", "fc_w",
    "weight", "W", "coef_",
)  # fmt: skip
# Layers that end a model and are a Sequential in some, of which the last layer is the head.
_SEQUENCES = ("classifier", "fc", "head")
# Exact names of output layers whose classes are columns, (features × classes).
_COLUMN_HEADS = ("decoder_ff_logit_out_W", "ff_logit_W", "kernel")
# Input embeddings that are the output layer in Marian's and Nematus's files that hold no other.
_TIED = ("decoder_Wemb", "Wemb", "Wemb_dec")
# Input embeddings, which are the output layer only where a configuration says so.
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|tok_embeddings|word_embeddings?|embeddings|token_embedding|embed_in|"
    r"tokens_embed|shared|embedding)\.weight$"
)
_WRAPPERS = ("", "model.", "module.", "_orig_mod.")  # what training frameworks put in front
# Parts of names that make a tensor likely to be a head, and such as make it unlikely.
_LIKELY = re.compile(r"head|classif|score|logit|output_proj|proj_out|predict|vocab", re.IGNORECASE)
_NUMBERED = re.compile(r"\.[0-9]+\.")
_LISTED = 8


def _present(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> list[Tensor]:
    """Tensors of these names, as they are or with what training puts in front."""
    found = (tensors.get(wrapper + name) for name in names for wrapper in _WRAPPERS)
    return [tensor for tensor in found if tensor is not None and tensor.matrix_shape]


def _below(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Output layers of a model inside another, `language_model.lm_head.weight` say."""
    endings = tuple(f".{name}" for name in _ANYWHERE)
    return [
        tensors[name]
        for name in tensors
        if name.endswith(endings) and not _NUMBERED.search(name) and tensors[name].matrix_shape
    ]


def _last_of_a_sequence(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The last layer of a top-level `classifier.0`, `classifier.1`, …, if it is a linear one."""
    for wrapper in _WRAPPERS:
        for name in _SEQUENCES:
            parts = re.compile(re.escape(f"{wrapper}{name}.") + r"([0-9]+)\.")
            numbers = [int(found[1]) for found in map(parts.match, tensors) if found]
            last = tensors.get(f"{wrapper}{name}.{max(numbers, default=0)}.weight")
            if last is not None and last.matrix_shape:
                return [last]
    return []


def likely_first(names: Iterable[str]) -> list[str]:
    """Names of tensors, those named like a head first, then embeddings, numbered blocks last."""

    def rank(name: str) -> tuple[bool, bool, bool]:
        like = bool(_LIKELY.search(name)) and not name.endswith("bias")
        return bool(_NUMBERED.search(name)), not like, not _EMBEDDING.search(name)

    return sorted(names, key=rank)


def could_be(names: Iterable[str]) -> str:
    """The end of a message on a missing head: the tensors that may be meant."""
    weights = [n for n in names if not n.endswith(("bias", "norm.weight", "ln_f.weight"))]
    likely = [
        n for n in likely_first(weights)
        if not _NUMBERED.search(n) and (_LIKELY.search(n) or _EMBEDDING.search(n))
    ]  # fmt: skip
    if not likely:
        return "; name a tensor with --weight"
    rest = f" and {len(likely) - _LISTED} more" if len(likely) > _LISTED else ""
    shown = ", ".join(printable(n) for n in likely[:_LISTED])
    return f"; name a tensor with --weight: {shown}{rest}"


def choose_by_name(
    path: Path, tensors: Mapping[str, Tensor], tied: bool = False, classes: int | None = None
) -> Choice:
    """The head by the names real models use, else the file's only matrix.

    An input embedding is taken only where `tied` says that it is the head; `classes` is how many
    the configuration announces.
    """
    matrices = [tensor for tensor in tensors.values() if tensor.matrix_shape]
    if not matrices:
        raise AmbiguousError(
            f"{path} holds no two-dimensional array, which a weight is: there are "
            f"{listing(tensors.values())}"
        )
    rows, columns = _present(tensors, _HEADS), _present(tensors, _COLUMN_HEADS)
    if not rows and not columns:
        rows = _below(tensors)
    sequence = [] if rows or columns else _last_of_a_sequence(tensors)
    embeddings = [tensor for tensor in matrices if _EMBEDDING.search(tensor.name)]
    shared = _present(tensors, _TIED) or (_vocabulary(embeddings, classes) if tied else [])
    if len(rows) + len(columns) == 1:
        chosen = (rows + columns)[0]
        why = "its name is that of an output layer"
    elif sequence:
        chosen = sequence[0]
        why = "the last layer of a sequence whose name is that of an output layer"
    elif not rows and not columns and len(matrices) == 1 and not embeddings:
        chosen, why = matrices[0], "the only two-dimensional array"
    elif not rows and not columns and shared:
        chosen = shared[0]
        why = "no output layer of its own, so the input embedding, which is tied to it"
    else:
        raise AmbiguousError(_unclear(path, rows + columns, matrices, embeddings, classes))
    if chosen in columns:
        why = f"{why}, classes are its columns"
        return _with_bias(tensors, as_matrix(path, chosen).T, chosen.name, why, ())
    return _with_bias(tensors, as_matrix(path, chosen), chosen.name, why, ())


def _vocabulary(embeddings: list[Tensor], classes: int | None) -> list[Tensor]:
    """The embedding of the output vocabulary, if it is a single one."""
    fitting = [t for t in embeddings if not _NUMBERED.search(t.name)]
    if classes is not None and len(fitting) > 1:
        fitting = [t for t in fitting if t.shape[0] == classes] or fitting
    return fitting if len(fitting) == 1 else []


def _unclear(
    path: Path, heads: list[Tensor], matrices: list[Tensor], embeddings: list[Tensor],
    classes: int | None,
) -> str:  # fmt: skip
    """Why there is no head to take, and the tensors that could be meant, the likely ones first."""
    if heads:
        return (
            f"{path} holds {len(heads)} arrays that could be the weight: {listing(heads)}: name "
            "one with --weight"
        )
    by_name = {tensor.name: tensor for tensor in matrices}
    ordered = [by_name[name] for name in likely_first(by_name)]
    if classes is not None:
        ordered.sort(key=lambda tensor: classes not in tensor.shape)
    if embeddings:
        return (
            f"{path} holds no output layer: {printable(embeddings[0].name)} is an input embedding, "
            "and nothing says that it is tied to the head; name a tensor with --weight: "
            f"{listing(ordered)}"
        )
    return (
        f"{path} holds {len(ordered)} arrays that could be the weight: {listing(ordered)}: name "
        "one with --weight"
    )


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
