"""Named tensors with a transformers configuration: a folder's, or a live model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.arriving.preceding import found_domain
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    as_matrix,
)
from uncork.loading.decisions import decision_notes
from uncork.loading.hugging_face.codebooks import with_codebooks
from uncork.loading.hugging_face.locate import Located, class_count, locate, said_of_parts
from uncork.loading.naming import choose_by_name, choose_columns

_COMPARED_ROWS = 64


def configured(
    path: Path,
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocabulary: Callable[[int], Vocabulary],
) -> Contents:
    """The contents of a model whose configuration is known: the table says what is the head.

    `tensors` are as the model multiplies by them: codes dequantised, an adapter merged.
    """
    tensors = with_codebooks(config, tensors)
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
        choice = choose_by_name(
            self.path, self.tensors, said_of_parts(self.config), class_count(self.config)
        )
        self._refuse_other_bias(choice)
        notes = (note, *decision_notes(self.config))
        return replace(choice, notes=(*choice.notes, *notes))

    def _refuse_other_bias(self, choice: Choice) -> None:
        """Of an unknown type, a vector with one number a class may be what its head adds."""
        if choice.bias_name is not None or not choice.why.startswith("no output layer"):
            return
        classes = choice.weight.shape[:1]
        found = [t for t in self.tensors.values() if t.shape == classes]
        if found:
            raise AmbiguousError(
                f"{self.path}: {printable(choice.weight_name)} is tied to the head, and nothing "
                f"says whether {found[0]} is its bias: name both with --weight and --bias"
            )

    def around(self, name: str) -> Choice | None:
        located = self._around(name)
        if located is not None:
            # Named by itself, one of two heads is not their mean.
            alone = replace(located, weight=name, partner=None, partner_bias=None)
            return self._choice(alone)
        return choose_columns(self.path, self.tensors, name)

    def _around(self, name: str) -> Located | None:
        """What the table says of a tensor named by hand: the head, its embedding, or a codebook."""
        try:
            located = locate(self.config, self.tensors, book=name)
        except UncorkError:
            return None
        if located is None or name not in (located.weight, located.embedding):
            return None
        return located

    def _curved(self) -> str | None:
        """The head's kind where it is one of uncork.nn's whose logits are not its weight's."""
        head = self.config.get("uncork_head")
        kind = head.get("name") if isinstance(head, Mapping) else None
        bent = ("sigsoftmax", "plif", "entmax", "sparsemax", "normmax", "alpha-relu")  # in order
        if kind in (None, "softmax", *bent):
            return None
        return printable(str(kind))

    def domain(self, choice: Choice) -> FoundDomain | None:
        if self._curved():
            return None  # what precedes the head is not what its weight multiplies
        located = self._around(choice.weight_name)
        if located is None:
            return None
        return found_domain(located, self.tensors, choice.weight.shape[1])

    def _choice(self, located: Located) -> Choice:
        tensor = self.tensors[located.weight]
        matrix, folded = self._continued(as_matrix(self.path, tensor), located)
        if len(matrix) == 1:
            raise UncorkError(
                f"{self.path}: {tensor} gives a single number, a regression or a yes or no: there "
                "are not classes to compare"
            )
        bias = None
        if located.bias is not None:
            found = self.tensors[located.bias]
            bias = found.read().reshape(-1)
            if bias.shape != (matrix.shape[0],):
                raise UncorkError(
                    f"{self.path}: bias {found} does not fit weight {tensor}: damaged, or a head "
                    "that was resized; name the tensors with --weight and --bias"
                )
        choice = Choice(
            matrix, bias, located.weight, located.bias, located.why,
            (
                *located.notes, *self._untied(located, matrix),
                *decision_notes(self.config),
            ),
            folded, located.doubts, bias_settled=True,
        )  # fmt: skip
        return choice if located.partner is None else self._mean(choice, located)

    def _continued(
        self, matrix: np.ndarray, located: Located
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """The weight with the features that the model keeps in a second matrix."""
        if located.continued is None:
            return matrix, ()
        tensor = self.tensors[located.continued]
        rest = as_matrix(self.path, tensor).T
        if not rest.size:
            return matrix, ()
        if len(rest) != len(matrix):
            raise UncorkError(
                f"{self.path}: {tensor} does not continue {self.tensors[located.weight]}: damaged?"
            )
        said = f"the columns of {printable(located.continued)} as its further features"
        return np.concatenate([matrix, rest], axis=1), (said,)

    def _mean(self, choice: Choice, located: Located) -> Choice:
        """Two heads whose logits the model averages, as the one linear map that comes to."""
        assert located.partner is not None
        other = as_matrix(self.path, self.tensors[located.partner])
        if other.shape != choice.weight.shape:
            raise UncorkError(
                f"{self.path}: {self.tensors[located.partner]} does not fit "
                f"{self.tensors[located.weight]}, whose mean with it the logits are: damaged?"
            )
        first, second = (m.astype(np.float64) / 2 for m in (choice.weight, other))
        both = f"{printable(located.weight)} and {printable(located.partner)}"
        if located.layout.beside:
            weight = np.concatenate([first, second], axis=1)
            said = f"the mean of {both}, side by side: the inputs of the two, one after the other"
        else:
            weight = first + second
            said = f"the mean of {both}, added up in float64"
        bias = choice.bias
        if located.partner_bias is not None and bias is not None:
            added = self.tensors[located.partner_bias].read().reshape(-1)
            bias = (bias.astype(np.float64) + added.astype(np.float64)) / 2
        return replace(choice, weight=weight, bias=bias, folded=(said,))

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
