"""PEFT adapters: which tensors of their base model they change, and the values peft merges to.

Held to peft's `merge_and_unload()`: sums are taken in the type, and rounded at the places, that it
takes and rounds them. Types of adapters other than LoRA, trained tokens and trained norms are not
merged: a tensor that one of them changes is refused when it is read.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.codes.layer import is_float
from uncork.loading.contents import Tensor
from uncork.loading.hugging_face.locate import locate

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Put input before the model's own, or into its attention: no tensor of the model is changed.
_PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT",
            "CARTRIDGE", "ADAPTION_PROMPT")  # fmt: skip
_MERGED = ("LORA", "TRAINABLE_TOKENS", "LN_TUNING")
# Change the layers whose names their tensors carry, and no others.
_BY_LAYER = (
    "ADALORA", "BOFT", "BEFT", "IA3", "LOHA", "LOKR", "OFT", "VERA", "PVERA", "FOURIERFT", "GLORA",
    "HRA", "VBLORA", "MISS", "BONE", "RANDLORA", "ROAD", "HIRA", "SHIRA", "C3A", "WAVEFT", "DELORA",
    "GRALORA", "PSOFT",
)  # fmt: skip
# How names in the file end, the longest first, and what the tensor is to the layer before it.
_ROLES = {
    ".token_adapter.trainable_tokens_delta": "tokens", ".trainable_tokens_delta": "tokens",
    ".lora_magnitude_vector.weight": "magnitude", ".lora_magnitude_vector": "magnitude",
    ".lora_A.weight": "A", ".lora_B.weight": "B", ".lora_B.bias": "B bias",
    ".lora_embedding_A": "embedding A", ".lora_embedding_B": "embedding B",
    ".ln_tuning_layers.weight": "weight", ".ln_tuning_layers.bias": "bias",
    ".modules_to_save.weight": "weight", ".modules_to_save.bias": "bias",
    ".base_layer.weight": "weight", ".base_layer.bias": "bias",
    ".weight": "weight", ".bias": "bias",
}  # fmt: skip
# Settings of LoRA that make another sum of it.
_VARIANTS = ("use_qalora", "use_bdlora", "arrow_config", "alora_invocation_tokens", "velora_config",
             "monteclora_config", "kasa_config")  # fmt: skip
_PLAIN_STARTS = (None, True, False, "gaussian", "eva")  # others change the base's weight as well
# Patterns that cannot be made to search for ever: names, dots and stars.
_PATTERN = re.compile(r"(?:[\w^|-]|\\?\.\*?|\\d\+?){1,200}")
_TASKS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
_CLASS_ENDS = re.compile(r"(For[A-Z]\w*|LMHeadModel|DoubleHeadsModel|Model|MTModel)$")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_HEADS = ("lm_head", "embed_out", "output_projection")
_IN_A_BLOCK = re.compile(r"\.\d+\.")


class UnmergedError(UncorkError):
    """A tensor that the adapter changes in a way that is not followed."""


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder: its settings, and its tensors named as the base model names layers."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def kind(self) -> str:
        return str(self.settings.get("peft_type") or "unknown")[:40].upper()

    @property
    def base(self) -> str:
        """The model it was trained on, as its settings name it: a hub id, or a path elsewhere."""
        return printable(str(self.settings.get("base_model_name_or_path") or "")[:200])

    def __str__(self) -> str:
        return f"the {printable(self.kind)} adapter"


@dataclass
class Change:
    """What an adapter does to one layer: tensors by their role."""

    layer: str
    parts: dict[str, Tensor] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)  # names with no role that is known

    @property
    def changes_weight(self) -> bool:
        return self.adds or "tokens" in self.parts

    @property
    def adds(self) -> bool:
        """Whether something is added to the layer's weight rather than put in its place."""
        return "A" in self.parts or "embedding A" in self.parts


def adapter_of(path: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Adapter:
    """The adapter, its tensors without the prefix that peft writes before each name."""
    named = {}
    for name, tensor in tensors.items():
        for prefix in ("base_model.model.", "base_model."):
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        named[name] = tensor
    adapter = Adapter(path, settings, named)
    if adapter.kind not in (*_MERGED, *_PROMPTS, *_BY_LAYER):
        raise UncorkError(f"{path}: {_unmerged(adapter, 'the model')}")
    return adapter


def refuse_unmerged(path: Path, names: Iterable[str]) -> None:
    """Refuse weights that were saved with an adapter's factors still beside them."""
    for name in names:
        if ".lora_" in name and not _IN_A_BLOCK.search(name):
            raise UncorkError(
                f"{path} holds {printable(name)}, of an adapter that is not merged: call "
                "merge_and_unload() in peft and save the model it returns (an adapter by itself: "
                "give its folder, with --base)"
            )


def configuration(config: Mapping[str, Any], adapter: Adapter) -> dict[str, Any]:
    """The base model's configuration with the class that the adapter was trained in."""
    found = dict(config)
    mapping = adapter.settings.get("auto_mapping")
    named = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    ending = _TASKS.get(str(adapter.settings.get("task_type")))
    listed = config.get("architectures")
    before = str(listed[0]) if isinstance(listed, list) and listed else ""
    if isinstance(named, str):
        found["architectures"] = [named]
    elif ending and before and not before.endswith(ending):
        found["architectures"] = [_CLASS_ENDS.sub("", before) + ending]
    return found


@dataclass(frozen=True)
class Tied:
    """An input embedding that doubles as the head."""

    embedding: str
    heads: tuple[str, ...]  # names that the head's layer may have
    stored: str | None = None  # the head's tensor, where the file holds the shared values twice


def tied_embedding(config: Mapping[str, Any], names: Mapping[str, Tensor]) -> Tied | None:
    """The embedding that is the head, by the table of architectures or by the configuration."""
    try:
        located = locate(config, names)
    except UncorkError:  # no head in the base model: the adapter may bring it
        return None
    if located is not None:
        heads = located.layout.head
        if located.embedding is not None:
            return Tied(located.embedding, heads, located.weight)
        own = _ends(located.weight.removesuffix(".weight"), heads)
        return None if own else Tied(located.weight, heads)
    if config.get("tie_word_embeddings") is not True:
        return None
    found = [name for name in names if name.endswith(_EMBEDDINGS)]
    return Tied(found[0], _HEADS) if len(found) == 1 else None


def without_ties(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model whose head is no longer its embedding."""
    return {
        key: without_ties(value) if isinstance(value, Mapping)
        else False if key == "tie_word_embeddings" else value
        for key, value in {"tie_word_embeddings": False, **config}.items()
    }  # fmt: skip


class Adapted(Mapping[str, Tensor]):
    """A base model's tensors with an adapter's changes, each worked out when it is asked for.

    `tied` is None where the head is a tensor of its own; `untied`: the adapter gave it one.
    """

    def __init__(
        self,
        base: Mapping[str, Tensor],
        adapter: Adapter,
        tied: Tied | None,
    ) -> None:
        self._base, self._adapter = base, adapter
        self._made: dict[str, Tensor] = {}
        self._steps: dict[str, tuple[Step, Change]] = {}
        heads = () if tied is None else tied.heads
        changes = _changes(adapter, lambda layer: self._is_layer(layer, heads))
        self.untied = tied is not None and self._share(tied, changes)
        for layer, change in changes.items():
            for kind, step in (("weight", _weight), ("bias", _bias)):
                there = _named_like(f"{layer}.{kind}", base)
                if there is not None or kind in change.parts:
                    self._steps[there or f"{layer}.{kind}"] = step, change
                elif kind == "weight" and change.changes_weight and not _IN_A_BLOCK.search(layer):
                    raise UncorkError(
                        f"{adapter.path} changes {printable(layer)}, and its base model has no "
                        "weight of that name: is it another base (--base)? Else call "
                        "merge_and_unload() in peft, save the model and give that"
                    )

    def _is_layer(self, layer: str, heads: tuple[str, ...]) -> bool:
        return _ends(layer, heads) or _named_like(f"{layer}.weight", self._base) is not None

    def _share(self, tied: Tied, changes: dict[str, Change]) -> bool:
        """The one parameter of embedding and head as peft leaves it; whether it parts the two."""
        adapter, embedding = self._adapter, tied.embedding
        inside = _layer_of(embedding, self._base, changes)
        outside = next((name for name in changes if _ends(name, tied.heads)), tied.heads[0])
        below, above = changes.pop(inside, None), changes.pop(outside, None)
        if below is None and above is None:
            return False
        shared = self._base[tied.stored or embedding]
        if _in_codes(shared):
            self._made[shared.name] = _refused(adapter, shared, _codes(shared))
            return False
        head = tied.stored or f"{outside}.weight"
        if above is not None and _saved(adapter, above):
            self._made[head] = _placed(adapter, above.parts["weight"], shared, head)
            if "bias" in above.parts:
                self._steps[f"{outside}.bias"] = _bias, above
            if below is not None:
                self._steps[embedding] = _weight, below
            return True
        if below is not None and _saved(adapter, below):
            self._steps[embedding] = _weight, below
            kept = f"the tied embedding as it was: {adapter} replaces it as input alone"
            tensor = _copy(shared, head, shared.read, kept)
            self._made[head] = tensor if above is None else _weight(adapter, above, tensor, head)
            return True
        both = [change for change in (below, above) if change is not None]
        placed = [change.parts.pop("weight") for change in both if "weight" in change.parts]
        tensor = _placed(adapter, placed[-1], shared, shared.name) if placed else shared
        for change in both:
            tensor = _weight(adapter, change, tensor, shared.name)
        if below is not None and below.adds:
            doubt = (
                f"{adapter} changes the input embedding, which is tied to the head: read as "
                "merge_and_unload() leaves it; the model with its adapter unmerged multiplies by "
                "the head without this change"
            )
            tensor = _copy(tensor, tensor.name, tensor.read, doubt=doubt)
        for name in (embedding, tied.stored):
            if name is not None:
                self._made[name] = _copy(tensor, name, tensor.read)
        return False

    @property
    def elsewhere(self) -> str:
        """What to say of an adapter that leaves the head alone."""
        if self._adapter.kind in _PROMPTS:
            return f"{self._adapter} adds to what the model reads: its head is the base model's"
        return f"{self._adapter} changes other layers: the head is the base model's"

    @property
    def changed(self) -> set[str]:
        """The names of tensors that the adapter changes or brings."""
        return {*self._made, *self._steps}

    def __contains__(self, name: object) -> bool:
        return name in self._made or name in self._steps or name in self._base

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            if name not in self._steps:
                return self._base[name]
            step, change = self._steps[name]
            before = self._base.get(name)
            if before is not None and _in_codes(before):
                self._made[name] = _refused(self._adapter, before, _codes(before))
            else:
                self._made[name] = step(self._adapter, change, before, name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from sorted(name for name in self.changed if name not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)


# From names to changes.


def _changes(adapter: Adapter, is_layer: Callable[[str], bool]) -> dict[str, Change]:
    """What is done to each layer of the base model, or to one that the adapter brings."""
    found: dict[str, Change] = {}
    for name, tensor in adapter.tensors.items():
        ending = next((end for end in _ROLES if name.endswith(end)), "")
        role, layer = _ROLES.get(ending, ""), name.removesuffix(ending)
        above = layer.rpartition(".")[0]
        if role in ("weight", "bias") and not is_layer(layer) and is_layer(above):
            role, layer = "", above  # lm_head.oft_R.weight: a part of lm_head
        elif not role:
            layer = above
        elif role in ("A", "B", "B bias") and adapter.kind != "LORA":
            role = ""
        change = found.setdefault(layer, Change(layer))
        if not role:
            change.others.append(name)
        elif role not in change.parts or ".base_layer." in name:
            change.parts[role] = tensor
    if adapter.kind in _PROMPTS:
        return {layer: change for layer, change in found.items() if change.parts}
    return found


def _saved(adapter: Adapter, change: Change) -> bool:
    """Whether the layer as a whole was trained and is put in the place of the base model's."""
    listed = adapter.settings.get("modules_to_save")
    return (
        "weight" in change.parts
        and not change.adds
        and isinstance(listed, list)
        and any(part in listed for part in change.layer.split("."))
    )


def _named_like(name: str, base: Mapping[str, Tensor]) -> str | None:
    """The base model's tensor of that name, perhaps with a part more or less in front."""
    if name in base:
        return name
    if _IN_A_BLOCK.search(name):
        return None
    like = [one for one in base if one.endswith(f".{name}") or name.endswith(f".{one}")]
    return like[0] if len(like) == 1 else None


def _layer_of(tensor: str, base: Mapping[str, Tensor], changes: Mapping[str, Change]) -> str:
    """The layer of the adapter whose weight that tensor of the base model is."""
    layer = tensor.removesuffix(".weight")
    if layer in changes:
        return layer
    like = [one for one in changes if _named_like(f"{one}.weight", base) == tensor]
    return like[0] if len(like) == 1 else layer


def _ends(layer: str, names: tuple[str, ...]) -> bool:
    return any(layer == name or layer.endswith(f".{name}") for name in names)


# The values.


def _in_codes(tensor: Tensor) -> bool:
    return bool(tensor.folded) or not is_float(tensor.dtype)


def _codes(tensor: Tensor) -> str:
    return (
        f"it changes {printable(tensor.name)}, which its base model keeps as codes, and merging "
        "would round these anew: give the base in full precision (--base)"
    )


Step = Callable[[Adapter, Change, Tensor | None, str], Tensor]


def _weight(adapter: Adapter, change: Change, before: Tensor | None, name: str) -> Tensor:
    parts = change.parts
    if "weight" in parts:
        before = _placed(adapter, parts["weight"], before, name)
    assert before is not None
    if change.others:
        return _refused(adapter, before, _unmerged(adapter, change.layer))
    if change.adds:
        before = _with_sum(adapter, change, before)
    return _with_tokens(adapter, change, before) if "tokens" in parts else before


def _bias(adapter: Adapter, change: Change, before: Tensor | None, name: str) -> Tensor:
    parts = change.parts
    if "bias" in parts:
        before = _placed(adapter, parts["bias"], before, name)
    assert before is not None
    if change.others:
        return _refused(adapter, before, _unmerged(adapter, change.layer))
    if "B bias" not in parts:
        return before
    scale = _scale(adapter, change)
    read = functools.partial(_add_bias, before.read, parts["B bias"].read, scale)
    return _copy(before, name, read, f"{adapter} merged: {scale:g}·lora_B.bias added")


def _placed(adapter: Adapter, new: Tensor, before: Tensor | None, name: str) -> Tensor:
    """A trained tensor in the base model's place, in the type the base model keeps it in."""
    if before is None:
        return Tensor(name, new.shape, new.dtype, new.read, (f"brought by {adapter}",))

    def read() -> np.ndarray:
        return new.read().astype(before.read().dtype, copy=False)

    return Tensor(name, new.shape, before.dtype, read, (f"taken from {adapter}",))


def _with_sum(adapter: Adapter, change: Change, before: Tensor) -> Tensor:
    parts, layer = change.parts, printable(change.layer)
    embedding = "embedding A" in parts
    first, second = (parts.get(f"{'embedding ' if embedding else ''}{one}") for one in "AB")
    if first is None or second is None:
        raise UncorkError(f"{adapter.path} has one of lora_A and lora_B of {layer}: damaged")
    odd = [name for name in _VARIANTS if adapter.settings.get(name)]
    start = adapter.settings.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        odd.append(f"init_lora_weights = {printable(str(start))}")
    if odd:
        return _refused(adapter, before, _unmerged(adapter, change.layer, f" with {odd[0]}"))
    scale, rank = _scale(adapter, change), first.shape[0]
    shape = before.matrix_shape or ()
    sides = (math.prod(first.shape[1:]), second.shape[0])
    sides = sides if embedding else sides[::-1]
    turned = sides != shape and sides[::-1] == shape
    if (sides != shape and not turned) or math.prod(second.shape[1:]) != rank:
        raise UncorkError(
            f"{adapter.path}: {first} and {second} do not fit {before}: the adapter of another "
            "base model?"
        )
    magnitude = parts.get("magnitude")
    if bool(adapter.settings.get("use_dora")) != (magnitude is not None):
        raise UncorkError(f"{adapter.path}: use_dora and the magnitude of {layer} do not agree")
    if magnitude is not None and magnitude.shape != (sides[1] if embedding else sides[0],):
        raise UncorkError(f"{adapter.path}: {magnitude} does not fit {before}: damaged")
    read = functools.partial(
        _sum, before.read, first.read, second.read, scale, embedding, turned,
        None if magnitude is None else magnitude.read,
    )  # fmt: skip
    text = f"{adapter} merged: {scale:g}·lora_B·lora_A of rank {rank} added to {layer}"
    if magnitude is not None:
        text += ", scaled to the trained magnitudes (DoRA)"
    return _copy(before, before.name, read, text)


def _scale(adapter: Adapter, change: Change) -> float:
    """alpha / r, or alpha / √r; r is the size of the stored factors."""
    first = change.parts.get("A") or change.parts.get("embedding A")
    alpha = adapter.settings.get("lora_alpha", 8)
    table = adapter.settings.get("alpha_pattern")
    for pattern, value in table.items() if isinstance(table, Mapping) else ():
        if not _PATTERN.fullmatch(pattern):
            raise UncorkError(
                f"{adapter.path / CONFIG} has alpha_pattern {pattern[:80]!r}, which is not "
                "followed: call merge_and_unload() in peft, save the model and give that"
            )
        if re.match(rf"(.*\.)?({pattern})$", change.layer):
            alpha = value
            break
    rank = 0 if first is None or not first.shape else first.shape[0]
    if not isinstance(alpha, int | float) or not math.isfinite(alpha) or rank < 1:
        raise UncorkError(
            f"{adapter.path / CONFIG}: {printable(change.layer)} has lora_alpha = {alpha!r} and "
            f"rank {rank}: damaged"
        )
    return alpha / math.sqrt(rank) if adapter.settings.get("use_rslora") else alpha / rank


def _sum(
    base: Callable[[], np.ndarray], first: Callable[[], np.ndarray],
    second: Callable[[], np.ndarray], scale: float, embedding: bool, turned: bool,
    magnitude: Callable[[], np.ndarray] | None,
) -> np.ndarray:  # fmt: skip
    """W + scale·B·A as peft sums it, and with DoRA each row (column of an embedding) rescaled."""
    weight = base()
    a, b = _wide(first()), _wide(second())
    delta = b.reshape(len(b), len(a)) @ a.reshape(len(a), -1)
    delta = delta.T if embedding or turned else delta
    delta = (delta * delta.dtype.type(scale)).reshape(weight.shape)
    wide = np.result_type(_wide(weight[:0]), delta)
    if magnitude is None:
        if embedding:  # here peft rounds what it adds as well
            delta = delta.astype(weight.dtype)
        return (weight.astype(wide) + delta.astype(wide)).astype(weight.dtype)
    whole = weight.astype(wide) + delta
    axis = 0 if embedding or turned else 1
    length = np.linalg.norm(whole.reshape(weight.shape[:2]), axis=axis).astype(wide)
    factor = np.expand_dims(_wide(magnitude()) / length, axis)
    factor = factor.reshape(factor.shape + (1,) * (weight.ndim - 2))
    return (factor * whole).astype(weight.dtype)


def _add_bias(
    base: Callable[[], np.ndarray], added: Callable[[], np.ndarray], scale: float
) -> np.ndarray:
    bias, more = base(), _wide(added())
    more = more * more.dtype.type(scale)
    return (bias.astype(np.result_type(_wide(bias[:0]), more)) + more).astype(bias.dtype)


def _wide(values: np.ndarray) -> np.ndarray:
    """Narrow floats as float32, which peft computes in."""
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _with_tokens(adapter: Adapter, change: Change, before: Tensor) -> Tensor:
    rows = change.parts["tokens"]
    ids = _token_ids(adapter, change.layer)
    shape = before.matrix_shape or (0, 0)
    if ids is None or rows.shape != (len(ids), shape[1]) or any(k >= shape[0] for k in ids):
        raise UncorkError(
            f"{adapter.path}: {rows} does not fit the trained tokens that {CONFIG} lists and "
            f"{before}"
        )

    def read() -> np.ndarray:
        weight = np.array(before.read())
        weight[ids] = rows.read().astype(weight.dtype)
        return weight

    text = f"{adapter} merged: {len(ids)} trained rows put into {printable(change.layer)}"
    return _copy(before, before.name, read, text)


def _token_ids(adapter: Adapter, layer: str) -> list[int] | None:
    key = "token_indices" if adapter.kind == "TRAINABLE_TOKENS" else "trainable_token_indices"
    found = adapter.settings.get(key)
    if isinstance(found, Mapping):
        found = next((ids for name, ids in found.items() if _ends(layer, (name,))), None)
    whole = isinstance(found, list) and all(type(k) is int and k >= 0 for k in found)
    return found if whole else None


def _refused(adapter: Adapter, before: Tensor, problem: str) -> Tensor:
    """A tensor that is listed like any other, and says why when it is read."""

    def read() -> np.ndarray:
        raise UnmergedError(f"{adapter.path}: {problem}")

    return Tensor(before.name, before.shape, before.dtype, read)


def _unmerged(adapter: Adapter, layer: str, how: str = "") -> str:
    return (
        f"an adapter of type {printable(adapter.kind)}{how} changes {printable(layer)}, which "
        "uncork does not merge: call merge_and_unload() in peft, save the model with "
        "save_pretrained and give that"
    )


def _copy(
    tensor: Tensor, name: str, read: Callable[[], np.ndarray], text: str = "", doubt: str = ""
) -> Tensor:
    folded = (*tensor.folded, text) if text else tensor.folded
    doubts = (*tensor.doubts, doubt) if doubt else tensor.doubts
    return Tensor(name, tensor.shape, tensor.dtype, read, folded, doubts)
