"""flair's models: the output layer of a tagger or classifier, its labels, and what precedes it.

A checkpoint is a table with the weights under `state_dict` and the labels under `tag_dictionary` or
`label_dictionary`, an object of flair's that is decoded as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.domain import Box
from uncork.loading.contents import Choice, FoundDomain, Tensor, Vocabulary, as_matrix
from uncork.loading.torch.pickle_decoder import Call, Decoded, Name, Table

_DICTIONARIES = ("tag_dictionary", "label_dictionary")
_TAGGER = "linear.weight"
_UNIT = 2.0**-24  # of float32
_STEPS = 1 << 16
_CRF = (
    "a CRF follows the head: it chooses a path of classes by their scores and its own transitions, "
    "so that a class that never comes first can still lie on it"
)
_CANDIDATES = (
    "flair chooses among the candidates of each mention only: a class that never comes first of "
    "all can still come first of these"
)


def is_flair(decoded: Decoded) -> bool:
    """Whether a checkpoint is one that flair saved."""
    top = decoded.value
    named = any(name.startswith("flair.") for name in decoded.names)
    return named and isinstance(top, Table) and _labels(decoded) is not None


def _labels(decoded: Decoded) -> list[str] | None:
    """The entries of the dictionary of labels, in the order of their numbers."""
    for name in _DICTIONARIES:
        found = decoded.value.get(name) if isinstance(decoded.value, Table) else None
        state = found.state if isinstance(found, Call) else found
        items = state.get("idx2item") if isinstance(state, Table) else None
        if isinstance(items, list) and items:
            texts = [_text(one) for one in items]
            return [] if None in texts else [text for text in texts if text is not None]
    return None


def _text(item: Any) -> str | None:
    """A label, which flair keeps as bytes; older pickles spell bytes as text to be encoded.

    None for anything else, which may be endless as text.
    """
    if isinstance(item, Call) and isinstance(item.function, Name):
        given = item.arguments if isinstance(item.arguments, tuple) else ()
        if str(item.function) == "_codecs.encode" and given and isinstance(given[0], str):
            item = given[0].encode("latin-1", "replace")
        elif item.function.name == "bytes" and not given:
            item = b""
    if isinstance(item, bytes):
        return item.decode("utf-8", "backslashreplace")
    return item if isinstance(item, str) else None


def flair_choice(
    path: Path, decoded: Decoded, tensors: Mapping[str, Tensor], choice: Choice | None
) -> Choice | None:
    """A tagger's output layer, or the one found by name, with what flair does with its scores."""
    crf = any(name.split(".")[-1] == "transitions" for name in tensors)
    weight, bias = tensors.get(_TAGGER), tensors.get("linear.bias")
    if weight is not None and weight.matrix_shape:
        offset = None if bias is None else bias.read().reshape(-1)
        choice = Choice(
            as_matrix(path, weight), offset, _TAGGER, None if bias is None else bias.name,
            "the output layer of a tagger of flair's", bias_settled=True,
        )  # fmt: skip
    if choice is None:
        return None
    several = decoded.value.get("multi_label") is True
    doubts = [_CRF] if crf else []
    if decoded.value.get("candidates") is not None:
        doubts.append(_CANDIDATES)
    note = "its classifier gives several labels at once: uncork labels asks about sets of them"
    return replace(
        choice,
        doubts=(*choice.doubts, *doubts),
        notes=(*choice.notes, *((note,) if several else ())),
    )


def flair_vocabulary(decoded: Decoded, classes: int) -> Vocabulary:
    """The dictionary's labels, if there is one for each class."""
    labels = _labels(decoded) or []
    if len(labels) != classes:
        why = f"flair's dictionary has {len(labels)} labels for {classes} classes"
        return Vocabulary(None, f"{why}: not used")
    return Vocabulary(tuple(labels), "flair's dictionary of labels")


def flair_domain(tensors: Mapping[str, Tensor], choice: Choice) -> FoundDomain | None:
    """What a recurrent layer leaves, where it is the last before the head."""
    prefixes = ("document_embeddings.rnn", "embeddings.rnn")  # before version 0.12, and since
    widths: tuple[int, ...]
    document = next((one for one in prefixes if f"{one}.weight_hh_l0" in tensors), None)
    if choice.weight_name == _TAGGER and "rnn.weight_hh_l0" in tensors:
        name, widths, kinds = "rnn", (1, 2), {4: "LSTM"}
    elif choice.weight_name == "decoder.weight" and document is not None:
        name, widths, kinds = document, (1, 2, 4), {4: "LSTM", 3: "GRU"}
    else:
        return None
    shape = tensors[f"{name}.weight_hh_l0"].shape
    if len(shape) != 2 or not shape[1] or shape[0] % shape[1]:
        return None
    kind = kinds.get(shape[0] // shape[1])
    if kind is None or choice.weight.shape[1] not in [k * shape[1] for k in widths]:
        return None
    assumed = "flair computes in float32"
    most = 1 + 64 * _UNIT
    if kind == "GRU":
        most += 8 * _UNIT * _STEPS
        assumed += f"; texts have at most {_STEPS} tokens"
    return FoundDomain(Box(-most, most), f"{kind} ({name}) precedes the head", assumed)
