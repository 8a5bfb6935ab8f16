"""Factor models of recommenders: which arrays are the items', and which column is their bias.

implicit's .npz, and arrays under the names of LightFM, Surprise and RecBole. An item's score for a
user is the inner product of their factors, plus a bias of the item; what a user's own bias adds
changes no order. RecBole's first row is not an item: it pads sequences, and is never recommended.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from uncork.loading.contents import Choice, Contents, Tensor, Vocabulary, as_matrix


@dataclass(frozen=True)
class _Names:
    """How a library calls its arrays."""

    library: str
    items: str
    users: str
    bias: str = ""
    doubt: str = ""


_KNOWN = (
    _Names("implicit", "item_factors", "user_factors"),
    _Names(
        "LightFM", "item_embeddings", "user_embeddings", "item_biases",
        "LightFM's embeddings are of features: these rows are items only where each item has its "
        "own feature and no other (else save what get_item_representations gives)",
    ),
    _Names("Surprise", "qi", "pu", "bi"),
    _Names(
        "RecBole", "item_embedding.weight", "user_embedding.weight", "",
        "if RecBole made this, row 0 is its padding, which it never recommends (delete the row), "
        "and models that pass embeddings through a graph or a network before they are multiplied "
        "(LightGCN, NGCF, NeuMF …) score with other vectors than these",
    ),
)  # fmt: skip
_PLAIN = "BPR"  # of RecBole's models the one that multiplies these embeddings, and does no more


def with_factors(contents: Contents, made_of: Sequence[str] = ()) -> Contents:
    """The same contents, chosen from as a recommender uses them where they are one's factors.
    `made_of` are the classes that a checkpoint names."""
    names = _names(contents.tensors)
    if names is None:
        return contents
    choose = functools.partial(_choose, contents.path, contents.tensors, names)
    model = _recbole_model(made_of)
    if names.library != "RecBole" or model is None:
        return replace(contents, choose=choose, metric="inner")

    def around(name: str) -> Choice | None:
        if name != names.items:
            return contents.around(name)
        return _without_padding(choose(), model)

    items = contents.tensors[names.items].shape[0] - 1

    def vocabulary(rows: int) -> Vocabulary:
        if rows != items:
            return contents.vocabulary(rows)
        return Vocabulary(tuple(str(i + 1) for i in range(rows)), "RecBole's own numbers, from 1")

    return replace(
        contents, choose=lambda: _without_padding(choose(), model), around=around, metric="inner",
        vocabulary=vocabulary,
    )  # fmt: skip


def _recbole_model(made_of: Sequence[str]) -> str | None:
    """The model of RecBole that a checkpoint is of; None where RecBole did not make it."""
    if not any(name.startswith("recbole.") for name in made_of):
        return None
    named = [name.rpartition(".")[2] for name in made_of if name.startswith("recbole.model.")]
    return named[0] if len(named) == 1 else "a model that it does not name"


def _without_padding(choice: Choice, model: str) -> Choice:
    doubts = () if model == _PLAIN else (
        f"the checkpoint is of {model}, which may score with other vectors than its embeddings: "
        "only BPR is known to multiply them as they are",
    )  # fmt: skip
    padding = "row 0 is RecBole's padding, which it never recommends, and is left out"
    return replace(choice, weight=choice.weight[1:], folded=(padding,), doubts=doubts)


def _names(tensors: Mapping[str, Tensor]) -> _Names | None:
    for known in _KNOWN:
        items, users = tensors.get(known.items), tensors.get(known.users)
        if items is None or users is None or items.matrix_shape is None:
            continue
        if users.matrix_shape is not None and items.shape[1] == users.shape[1]:
            return known
    return None


def _choose(path: Path, tensors: Mapping[str, Tensor], names: _Names) -> Choice:
    why = f"the items' factors, by the names that {names.library} gives them"
    weight = as_matrix(path, tensors[names.items])
    doubts = (names.doubt,) if names.doubt else ()
    choice = Choice(weight, None, names.items, None, why, doubts=doubts, bias_settled=True)
    bias = tensors.get(names.bias)
    if bias is not None and bias.shape == (len(weight),):
        return replace(choice, bias=bias.read(), bias_name=names.bias)
    if names.library != "implicit":
        return choice
    # implicit keeps a bias as a column beside factors that are one for every user.
    users = as_matrix(path, tensors[names.users])
    ones = np.flatnonzero((users == 1).all(axis=0)) if len(users) else np.empty(0, dtype=np.int64)
    if len(ones) != 1:
        return choice
    column = int(ones[0])
    note = f"column {column} of {names.items} is the items' bias: that factor is 1 for every user"
    return replace(
        choice, weight=np.delete(weight, column, axis=1), bias=weight[:, column].copy(),
        bias_name=f"{names.items}[:, {column}]", folded=(note,),
    )  # fmt: skip
