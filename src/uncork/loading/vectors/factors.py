"""Factor models of recommenders: which arrays are the items', and which column is their bias.

implicit's .npz, and arrays under the names of LightFM, Surprise and RecBole. An item's score for a
user is the inner product of their factors, plus a bias of the item; what a user's own bias adds
changes no order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from uncork.loading.contents import Choice, Contents, Tensor, as_matrix


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
        "models that pass embeddings through a graph or a network before they are multiplied "
        "(LightGCN, NGCF, NeuMF …) score with other vectors than these",
    ),
)  # fmt: skip


def with_factors(contents: Contents) -> Contents:
    """The same contents, chosen from as a recommender uses them where they are one's factors."""
    names = _names(contents.tensors)
    if names is None:
        return contents
    choose = functools.partial(_choose, contents.path, contents.tensors, names)
    return replace(contents, choose=choose, metric="inner")


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
