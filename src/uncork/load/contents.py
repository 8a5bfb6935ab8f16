"""What a reader hands back: the tensors of a file by name, and the head among them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from uncork.domain import Domain
from uncork.errors import UncorkError

_LISTED = 8  # how many tensors an error names before it says "and N more"


@dataclass(frozen=True)
class Tensor:
    """One array of a file, known by its header and read only when it is asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)

    @property
    def matrix_shape(self) -> tuple[int, int] | None:
        """The shape as a matrix: two dimensions, or a 1×1 convolution's four; else None."""
        if len(self.shape) == 2 or (len(self.shape) == 4 and self.shape[2:] == (1, 1)):
            return self.shape[0], self.shape[1]
        return None

    def __str__(self) -> str:
        return f"{printable(self.name)} ({' × '.join(map(str, self.shape)) or 'a single number'})"


@dataclass(frozen=True)
class Choice:
    """The head a reader picked: weight (classes, features), bias (classes,), and why these."""

    weight: np.ndarray
    bias: np.ndarray | None
    weight_name: str
    bias_name: str | None
    why: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """What a source says of its classes.

    `labels` has one entry a class, or is None where there are none that fit; `source` says where
    they are from, or why there are none ("" where nothing was there to look at). The other fields
    tell apart the rows that stand for no ordinary word.
    """

    labels: tuple[str, ...] | None = None
    source: str = ""
    special: tuple[int, ...] = ()  # control tokens: <s>, [CLS], <|endoftext|>, a CTC blank
    unused: tuple[int, ...] = ()  # reserved for later: [unused12], <extra_id_3>, madeupword0001
    padding: tuple[int, ...] = ()  # rows past the tokenizer's last entry
    tokens: tuple[str, ...] | None = None  # as the tokenizer spells them, where labels differ
    notes: tuple[str, ...] = ()  # what does not fit: ids that are no row, rows without a name


@dataclass(frozen=True)
class FoundDomain:
    """The inputs that can arrive at a head, as the source shows it.

    `why` names what was seen ("LayerNorm transformer.ln_f precedes the head"); `assumed` what was
    taken for granted without being seen, "" where nothing was.
    """

    domain: Domain
    why: str
    assumed: str = ""


@dataclass(frozen=True)
class Contents:
    """A file as its reader sees it.

    `choose` picks the head when nothing is named by hand and raises `AmbiguousError` where the
    file alone does not say. `around(name)` is the head with that tensor as its weight, where the
    file itself shows how the tensor is used (None where it does not); `vocabulary(classes)` is what
    it says of its classes; `domain(choice)` what precedes that head, None where it does not show.
    """

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    choose: Callable[[], Choice]
    around: Callable[[str], Choice | None] = lambda name: None
    vocabulary: Callable[[int], Vocabulary] = lambda classes: Vocabulary()
    domain: Callable[[Choice], FoundDomain | None] = lambda choice: None

    def tensor(self, name: str, option: str) -> Tensor:
        """The tensor of that name, or an error that lists what is there."""
        found = self.tensors.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.tensors, n=1, cutoff=0.5)
        hint = f"did you mean {printable(near[0])}? " if near else ""
        raise UncorkError(
            f"{self.path} has no tensor {name!r} ({option}): {hint}There are "
            f"{listing(self.tensors.values())}"
        )


class AmbiguousError(UncorkError):
    """The file can be read, but does not say by itself which tensor is the head."""


def printable(text: str) -> str:
    """Text from a file, with what would move the cursor or break the line written as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def require_file(path: Path) -> None:
    """Refuse what is no regular file: opening a pipe would wait for ever."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise UncorkError(f"{path} {what}")


def listing(tensors: Iterable[Tensor]) -> str:
    """Tensors with their shapes, the first few by name: for error messages."""
    every = list(tensors)
    if not every:
        return "no tensors"
    rest = len(every) - _LISTED
    return ", ".join(map(str, every[:_LISTED])) + (f" and {rest} more" if rest > 0 else "")


def choose_by_hand(
    contents: Contents, weight: str | None, bias: str | None, transpose: bool
) -> Choice:
    """The head from tensors named by hand; a missing name is left to the reader's own choice."""
    tensor = None if weight is None else contents.tensor(weight, "--weight")
    if tensor is None:
        if transpose and contents.format == "onnx":
            raise UncorkError(
                f"{contents.path}: the graph already says which side of the weight the classes are "
                "on; --transpose goes with --weight"
            )
        choice: Choice | None = contents.choose()
    else:
        choice = None if transpose else contents.around(tensor.name)
    if choice is None:
        assert tensor is not None
        matrix = as_matrix(contents.path, tensor)
        choice = Choice(matrix, None, tensor.name, None, "named by hand")
    elif tensor is not None:
        choice = replace(choice, why=f"named by hand, {choice.why}")
    if transpose:
        # A bias that fitted the rows need not fit the columns: it is looked for again below.
        why = f"{choice.why}, classes are its columns"
        choice = replace(choice, weight=choice.weight.T, bias=None, bias_name=None, why=why)
    matrix, offset, bias_name = choice.weight, choice.bias, choice.bias_name
    name = choice.weight_name
    if bias is None and bias_name is None:
        # `paired_bias` only ever returns a vector of the right length.
        partner = paired_bias(contents.tensors, name, matrix.shape[0])
        if partner is not None:
            bias_name, offset = partner.name, partner.read().reshape(-1)
    if bias is not None:
        tensor = contents.tensor(bias, "--bias")
        offset, bias_name = tensor.read(), bias
        if offset.size == max(offset.shape, default=0):  # (1, C) and (C, 1) are vectors too
            offset = offset.reshape(-1)
        if offset.shape != (matrix.shape[0],):
            turned = offset.shape == (matrix.shape[1],)
            raise UncorkError(
                f"{contents.path}: bias {tensor} does not fit weight {name} with "
                f"{matrix.shape[0]} classes and {matrix.shape[1]} features"
                + (": are classes the columns? then use --transpose" if turned else "")
            )
    return replace(choice, bias=offset, bias_name=bias_name)


def as_matrix(path: Path, tensor: Tensor) -> np.ndarray:
    """The tensor as a matrix (rows, columns), or an error that says its shape."""
    shape = tensor.matrix_shape
    if shape is None:
        raise UncorkError(
            f"{path}: {tensor} has {len(tensor.shape)} dimensions; a weight needs two, "
            "classes × features: name another tensor with --weight"
        )
    return tensor.read().reshape(shape)


# Where the bias of a weight is found, by how the weight's name ends.
_PARTNERS = {
    "decoder.weight": ("decoder.bias", "bias"),  # BERT and RoBERTa keep it one level up
    "weight": ("bias",),
    "kernel": ("bias",),
    "coef_": ("intercept_",),
    "decoder_ff_logit_out_Wt": ("decoder_ff_logit_out_b",),
    "_W": ("_b",),
    "W": ("b",),
    "w": ("b",),
}
_TIED_BIAS = {  # a tied head's bias has a name of its own
    "Wemb": ("decoder_ff_logit_out_b",),
    "decoder_Wemb": ("decoder_ff_logit_out_b",),
    "Wemb_dec": ("ff_logit_b",),
}
_EMBEDDING_BIAS = ("final_logits_bias", "model.final_logits_bias", "cls.predictions.bias",
                   "lm_head.bias")  # fmt: skip


def bias_names(weight: str) -> list[str]:
    """The names under which the bias of a weight of that name is looked for, likeliest first."""
    names = list(_TIED_BIAS.get(weight, ()))
    for ending, partners in _PARTNERS.items():
        if weight == ending or weight.endswith((f".{ending}", f"/{ending}")) or (
            ending.startswith("_") and weight.endswith(ending)
        ):  # fmt: skip
            names += [weight.removesuffix(ending) + partner for partner in partners]
    if "embed" in weight or weight.endswith(("wte.weight", "shared.weight", "lm_head.weight")):
        names += _EMBEDDING_BIAS
    return names


def paired_bias(tensors: Mapping[str, Tensor], weight: str, classes: int) -> Tensor | None:
    """The bias whose name goes with the weight's, if it has one number a class."""
    for name in bias_names(weight):
        tensor = tensors.get(name)
        if (
            tensor is not None
            and math.prod(tensor.shape) == classes
            and max(tensor.shape) == classes
        ):
            return tensor
    return None
