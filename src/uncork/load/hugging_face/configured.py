"""Named tensors with a transformers configuration: a folder's, or a live model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.errors import UncorkError
from uncork.load.codes import decoded
from uncork.load.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    as_matrix,
    printable,
)
from uncork.load.hugging_face.locate import Located, locate
from uncork.load.naming import choose_by_name, choose_columns
from uncork.load.preceding import found_domain

_COMPARED_ROWS = 64


def configured(
    path: Path,
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocabulary: Callable[[int], Vocabulary],
) -> Contents:
    """The contents of a model whose configuration is known: the table says what is the head."""
    tensors = decoded(path, tensors, config, of_a_model=True)
    model = _Model(path, config, tensors)
    return Contents(
        path, kind, tensors, model.choose, model.around, vocabulary, model.domain
    )  # fmt: skip


class _Model:
    def __init__(
        self, path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        self.path, self.config, self.tensors = path, config, tensors
        self._located: Located | None = None
        self._looked = False

    def located(self) -> Located | None:
        """The head by the table; raises where the model's type is known and it is not there."""
        if not self._looked:
            try:
                self._located = locate(self.config, self.tensors)
            except AmbiguousError as error:
                raise AmbiguousError(f"{self.path}: {error}") from None
            except UncorkError as error:
                raise UncorkError(f"{self.path}: {error}") from None
            self._looked = True
        return self._located

    def choose(self) -> Choice:
        if self._curved():
            raise AmbiguousError(
                f"{self.path}: its head is uncork.nn's {self._curved()}, not one of these tensors: "
                "uncork.nn.heads.load_pretrained(…).get_output_embeddings().audit() audits it"
            )
        located = self.located()
        if located is not None:
            return self._choice(located)
        kind = self.config.get("model_type")
        what = f"model type {str(kind)!r} is" if kind else "config.json names no model type that is"
        note = f"{printable(what)} not in uncork's table: the head was found by its name alone"
        choice = choose_by_name(self.path, self.tensors)
        return replace(choice, notes=(*choice.notes, note))

    def around(self, name: str) -> Choice | None:
        try:
            located = self.located()
        except AmbiguousError:
            located = None
        if located is not None and name in (located.weight, located.embedding):
            return replace(self._choice(located), weight_name=name)
        return choose_columns(self.path, self.tensors, name)

    def _curved(self) -> str | None:
        """The head's kind where it is one of uncork.nn's whose logits are not its weight's."""
        head = self.config.get("uncork_head")
        kind = head.get("name") if isinstance(head, Mapping) else None
        if kind in (None, "softmax", "sigsoftmax", "plif", "entmax", "sparsemax", "alpha-relu"):
            return None
        return printable(str(kind))

    def domain(self, choice: Choice) -> FoundDomain | None:
        if self._curved():
            return None  # what precedes the head is not what its weight multiplies
        try:
            located = self.located()
        except AmbiguousError:
            return None
        if located is None or choice.weight_name not in (located.weight, located.embedding):
            return None
        return found_domain(located, self.tensors, choice.weight.shape[1])

    def _choice(self, located: Located) -> Choice:
        tensor = self.tensors[located.weight]
        matrix = as_matrix(self.path, tensor)
        bias = None
        if located.bias is not None:
            found = self.tensors[located.bias]
            bias = found.read().reshape(-1)
            if bias.shape != (matrix.shape[0],):
                raise UncorkError(
                    f"{self.path}: bias {found} does not fit weight {tensor}: damaged, or a head "
                    "that was resized; name the tensors with --weight and --bias"
                )
        return Choice(
            matrix, bias, located.weight, located.bias, located.why,
            (*located.notes, *self._untied(located, matrix)),
        )  # fmt: skip

    def _untied(self, located: Located, matrix: np.ndarray) -> tuple[str, ...]:
        """A note where a head that should be tied differs from the embedding beside it."""
        if located.embedding is None:
            return ()
        embedding = self.tensors[located.embedding]
        if embedding.shape == matrix.shape:
            rows = np.linspace(0, len(matrix) - 1, _COMPARED_ROWS).astype(np.int64)
            if np.array_equal(embedding.read()[rows], matrix[rows]):
                return ()
        return (
            f"the configuration ties the head to {printable(located.embedding)}, but the two "
            "differ: the head itself was taken, as transformers 5 does (older versions overwrite "
            "it with the embedding)",
        )
