"""What a reader hands back: the tensors of a file by name, and the head among them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.links import Links
from uncork.core.text import printable
from uncork.domain import Domain

_BY_HAND = "named by hand"
UNSAID = ""  # the metric of an index whose file does not tell which it is
_LISTED = 8  # how many tensors an error names before it says "and N more"


@dataclass(frozen=True)
class Tensor:
    """One array of a file, known by its header and read only when it is asked for.

    `folded` says how it is made where it is not stored as such, `doubts` what the file leaves open
    about it; `part_of` names the weight whose codes or scales it holds, `slice_of` the stored
    tensor that it is one matrix of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)
    folded: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    part_of: str = ""
    slice_of: str = ""

    @property
    def matrix_shape(self) -> tuple[int, int] | None:
        """The shape as a matrix: two dimensions, or a convolution's of width one; else None."""
        if self.part_of:
            return None
        if len(self.shape) == 2 or self.shape[2:] in ((1,), (1, 1)):
            return self.shape[0], self.shape[1]
        return None

    def __str__(self) -> str:
        return f"{printable(self.name)} ({' × '.join(map(str, self.shape)) or 'a single number'})"


@dataclass(frozen=True)
class Choice:
    """The head a reader picked: weight (classes, features), bias (classes,), and why these.

    `folded` names what was worked into the weight on the way from the file ("dequantised: int8
    codes times lm_head.SCB / 127"); `doubts` what a reader of the result must know first, because
    the file does not settle it ("nothing says whether classes are rows or columns"); `notes`
    everything else worth knowing. `sides_open`: nothing so far says that the classes are the rows
    of the weight and not its columns.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    weight_name: str
    bias_name: str | None
    why: str
    notes: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    sides_open: bool = False
    bias_settled: bool = False  # the source says which bias is added, be it none
    vocabulary: Vocabulary | None = None  # of these rows, where a source has several heads


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
    notes: tuple[str, ...] = ()  # what does not fit: ids beyond the rows, rows without a name


@dataclass(frozen=True)
class FoundDomain:
    """The inputs that can arrive at a head, as the source shows it.

    `why` names what was seen ("LayerNorm transformer.ln_f precedes the head"); `assumed` what was
    taken for granted without being seen, "" where nothing was.
    """

    domain: Domain
    why: str
    assumed: str = ""

    @property
    def in_steps(self) -> bool:
        """Whether it rests on more than one rule, one step after the other."""
        return ", through " in self.why or ", then " in self.why


@dataclass(frozen=True)
class UnknownDomain:
    """Nothing is known of what arrives at a head; `why` says where the source stops telling."""

    why: str


@dataclass(frozen=True)
class Contents:
    """A file as its reader sees it.

    `choose` picks the head when nothing is named by hand and raises `AmbiguousError` where the
    file alone does not say. `around(name)` is the head with that tensor as its weight, where the
    file itself shows how the tensor is used (None where it does not); `vocabulary(classes)` is what
    it says of its classes; `domain(choice)` what precedes that head; where it does not show, why
    not (None where there is nothing to say). `typed` maps where a source lies in the hub's cache to
    what people typed for it. `metric` is how an index compares its rows with a query (see `Items`),
    UNSAID where its file does not tell; None where the source is not an index, and its rows are
    multiplied with inputs unless another metric is asked for. `of_items` says that it holds vectors
    of items and nothing else, whether or not it tells the metric. `links()` is the graph that a
    search of the index walks, where it has one.
    """

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    choose: Callable[[], Choice]
    around: Callable[[str], Choice | None] = lambda name: None
    vocabulary: Callable[[int], Vocabulary] = lambda classes: Vocabulary()
    domain: Callable[[Choice], FoundDomain | UnknownDomain | None] = lambda choice: None
    typed: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    of_items: bool = False
    links: Callable[[], Links] | None = None

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


class LabelCountError(UncorkError):
    """There are labels, but not one for each row."""


def require_file(path: Path) -> None:
    """Refuse what is not a regular file: opening a pipe would wait for ever."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise UncorkError(f"{path} {what}")


# How output layers are called, outside the numbered layers of a model.
_LIKE_A_HEAD = re.compile(
    r"head|logit|classif|score|embed_out|unembed|output|predictions|proj_out|coef_|"
    r"(^|[._])(fc|vocab\w*)[._]|(^|\.)decoder\.weight$|^(weight|W)$",
    re.IGNORECASE,
)
_IN_A_BLOCK = re.compile(r"(^|\.)\d+\.")


def listing(tensors: Iterable[Tensor]) -> str:
    """Tensors with their shapes, the likeliest weights by name and size first: for errors."""
    every = sorted(tensors, key=_unlikely)
    if not every:
        return "no tensors"
    rest = len(every) - _LISTED
    return ", ".join(map(str, every[:_LISTED])) + (f" and {rest} more" if rest > 0 else "")


def _unlikely(tensor: Tensor) -> tuple[bool, bool, bool, int]:
    """Sorts the tensors that are likely to be a head before the others."""
    inside = _IN_A_BLOCK.search(tensor.name) is not None
    named = _LIKE_A_HEAD.search(tensor.name) is not None
    return tensor.matrix_shape is None, inside, not named, -max(tensor.shape, default=0)


def choose_by_hand(
    contents: Contents,
    weight: str | None,
    bias: str | None,
    transpose: bool,
    drop_bias: bool = False,
) -> Choice:
    """The head from tensors named by hand; a missing name is left to the reader's own choice."""
    tensor = None if weight is None else contents.tensor(weight, "--weight")
    named = None if bias is None or drop_bias else contents.tensor(bias, "--bias")
    choice = _turned(contents, tensor, transpose)
    if not transpose:
        choice = _beside_bias(contents, choice, named)
    if drop_bias:
        return _whole(contents, replace(choice, bias=None, bias_name=None))
    classes, features = choice.weight.shape
    if named is not None:
        offset = named.read()
        offset = offset.reshape(_flat(offset.shape))
        if list(offset.shape) != [classes]:
            hint = _other_side(contents, tensor, transpose, offset.shape)
            raise UncorkError(
                f"{contents.path}: bias {named} does not fit weight {choice.weight_name} with "
                f"{classes} classes and {features} features" + (f": {hint}" if hint else "")
            )
        return _whole(contents, replace(choice, bias=offset, bias_name=bias))
    # A graph shows what is added to the logits, and that nothing is.
    shown = contents.format in _GRAPHS and choice.why != _BY_HAND
    if choice.bias_name is not None or choice.bias_settled or shown:
        return _whole(contents, choice)
    # `paired_bias` only ever returns a vector of the right length.
    partner = paired_bias(contents.tensors, choice.weight_name, classes)
    if partner is not None:
        offset = partner.read().reshape(-1)
        return _whole(contents, replace(choice, bias=offset, bias_name=partner.name))
    left = _left_over(contents, choice.weight_name)
    if left is None:
        return _whole(contents, choice)
    if _flat(left.shape) in ((), (1,)):  # scikit-learn's intercept_ = 0.0 where it fits none
        same = f"{printable(left.name)} is one number for all classes, which changes no order"
        return _whole(contents, replace(choice, notes=(*choice.notes, f"{same}: left out")))
    hint = _other_side(contents, tensor, transpose, _flat(left.shape))
    raise AmbiguousError(
        f"{contents.path}: {left} is by its name the bias of "
        f"{contents.tensors[choice.weight_name]}, but does not fit its {classes} classes: "
        + (f"{hint}; else " if hint else "")
        + "name another with --bias, or go without one (--drop-bias of audit, verify, rank, draw)"
    )


def _whole(contents: Contents, choice: Choice) -> Choice:
    """The choice with what its tensors carry of what was worked into them."""
    names = [name for name in (choice.weight_name, choice.bias_name) if name in contents.tensors]
    tensors = [contents.tensors[name] for name in names if name is not None]
    folded = [
        text if t.name == choice.weight_name else f"{printable(t.name)}: {text}"
        for t in tensors
        for text in t.folded
    ]
    doubts = [text for t in tensors for text in t.doubts]
    return replace(
        choice,
        folded=tuple(dict.fromkeys((*choice.folded, *folded))),
        doubts=tuple(dict.fromkeys((*choice.doubts, *doubts))),
    )


_GRAPHS = ("onnx", "ort")  # formats whose graph shows how a weight is used
# Formats whose arrays stand alone: nothing says which side the classes of one are on.
_LONE = ("npy", "npz", "pickle", "safetensors", "torch", "json weights")


def _beside_bias(contents: Contents, choice: Choice, named: Tensor | None) -> Choice:
    """The side of a lone weight that its bias fits, where it fits one only; else both are open."""
    stored = contents.tensors.get(choice.weight_name)
    sides = choice.weight.shape
    if contents.format not in _LONE or stored is None or stored.matrix_shape != sides:
        return choice
    if sides[0] == sides[1]:
        return choice
    own = [contents.tensors.get(name) for name in _own_bias_names(choice.weight_name)]
    lengths = {
        _flat(one.shape): one
        for one in ([named] if named is not None else [t for t in own if t is not None])
    }
    fits = [(side,) in lengths for side in sides]
    if fits == [False, True]:
        return turned_to(choice, f"bias {printable(lengths[sides[1:]].name)}")
    if fits == [True, False]:
        return kept_at(choice, f"bias {printable(lengths[sides[:1]].name)}")
    return replace(choice, sides_open=True)


def kept_at(choice: Choice, by: str) -> Choice:
    """The same choice, which says what fits its rows where there are more columns."""
    rows, columns = choice.weight.shape
    said = f"{choice.why}, classes are its rows: {by} fits them alone"
    return replace(choice, sides_open=False, why=said if rows < columns else choice.why)


def turned_to(choice: Choice, by: str) -> Choice:
    """The same weight with its columns as classes, because something fits these alone."""
    rows, columns = choice.weight.shape
    note = (
        f"classes are the {columns} columns of {printable(choice.weight_name)}, not its {rows} "
        f"rows: {by} fits them alone"
    )
    return replace(
        choice, weight=choice.weight.T, bias=None, bias_name=None, sides_open=False,
        vocabulary=None, why=f"{choice.why}, classes are its columns", notes=(*choice.notes, note),
    )  # fmt: skip


def _turned(contents: Contents, tensor: Tensor | None, transpose: bool) -> Choice:
    """The head around that weight (or the reader's own), with the classes on the side asked for."""
    if tensor is None:
        if transpose and contents.format in _GRAPHS:
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
        choice = Choice(matrix, None, tensor.name, None, _BY_HAND)
    elif tensor is not None:
        choice = replace(choice, why=f"named by hand, {choice.why}")
    if not transpose or _columns_already(contents, choice):
        return replace(choice, sides_open=choice.sides_open and not transpose)
    said = choice if tensor is None else contents.around(tensor.name)
    against = (
        f"--transpose took the columns of {printable(choice.weight_name)} as classes; the model's "
        "own configuration says that they are its rows"
    )
    doubts = (against,) if said is not None and said.bias_settled else ()
    # A bias that fitted the rows need not fit the columns: the caller looks for it again.
    why = f"{choice.why}, classes are its columns"
    return replace(
        choice,
        weight=choice.weight.T,
        bias=None,
        bias_name=None,
        bias_settled=False,
        vocabulary=None,
        doubts=(*choice.doubts, *doubts),
        why=why,
        sides_open=False,
    )


def _columns_already(contents: Contents, choice: Choice) -> bool:
    """Whether the reader itself took the stored weight's columns as classes."""
    stored = contents.tensors.get(choice.weight_name)
    if stored is None or stored.matrix_shape != choice.weight.shape[::-1]:
        return False
    return np.array_equal(as_matrix(contents.path, stored).T, choice.weight, equal_nan=True)


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without dimensions of one: (1, C) and (C, 1) are vectors too."""
    longest = max(shape, default=0)
    return (longest,) if math.prod(shape) == longest else shape


def _other_side(
    contents: Contents, tensor: Tensor | None, transpose: bool, shape: tuple[int, ...]
) -> str:
    """What to say of --transpose where a bias of that shape does not fit: "" if it is no help."""
    try:
        other = _turned(contents, tensor, not transpose)
    except UncorkError:
        return ""
    if shape != other.weight.shape[:1]:
        return ""
    what = "leave --transpose out" if transpose else "use --transpose"
    return f"it fits the weight's other side; if the classes are there, {what}"


def as_matrix(path: Path, tensor: Tensor) -> np.ndarray:
    """The tensor as a matrix (rows, columns), or an error that says its shape."""
    shape = tensor.matrix_shape
    if tensor.part_of:
        raise UncorkError(
            f"{path}: {tensor} is a part of {printable(tensor.part_of)}, which is stored as codes: "
            f"name that with --weight {printable(tensor.part_of)}"
        )
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
    "_w": ("_b",),
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


# Formats in which a bias is found by its name alone: nothing else in the file says what it adds to.
_BY_NAME = ("npz", "pickle", "safetensors", "torch", "hugging face folder", "json weights")


def bias_names(weight: str) -> list[str]:
    """The names under which the bias of a weight of that name is looked for, likeliest first."""
    names = _own_bias_names(weight)
    if "embed" in weight or weight.endswith(("wte.weight", "shared.weight", "lm_head.weight")):
        names += _EMBEDDING_BIAS
    return names


def _own_bias_names(weight: str) -> list[str]:
    """Those of a bias that belongs to this weight and no other."""
    names = [*_TIED_BIAS.get(weight, ())]
    for ending, partners in _PARTNERS.items():
        if weight == ending or weight.endswith((f".{ending}", f"/{ending}")) or (
            ending.startswith("_") and weight.endswith(ending)
        ):  # fmt: skip
            names += [weight.removesuffix(ending) + partner for partner in partners]
    return names


def paired_bias(tensors: Mapping[str, Tensor], weight: str, classes: int) -> Tensor | None:
    """The bias whose name goes with the weight's, if it has one number a class."""
    for name in bias_names(weight):
        tensor = tensors.get(name)
        if tensor is not None and _flat(tensor.shape) == (classes,):
            return tensor
    return None


def _left_over(contents: Contents, weight: str) -> Tensor | None:
    """The weight's own bias by its name, where `paired_bias` found none that fits.

    The bias of a tied embedding is not meant: it may be shorter than a padded vocabulary.
    """
    if contents.format not in _BY_NAME:
        return None
    found = (contents.tensors.get(name) for name in _own_bias_names(weight))
    return next((tensor for tensor in found if tensor is not None), None)
