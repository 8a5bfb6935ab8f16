"""Which tensors of a transformers model are the head, its bias and what precedes it, by name alone.

Only names and the configuration are looked at, so that of a model in many files, or on a server,
no more than these tensors need be opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from uncork.errors import UncorkError
from uncork.load.activation_ranges import RANGES
from uncork.load.contents import AmbiguousError, printable
from uncork.load.hugging_face.architectures import (
    LANGUAGE,
    SCALES,
    SOFT_CAPS,
    Activation,
    Layout,
    Norm,
)
from uncork.load.hugging_face.classifier_layouts import CLASSIFIERS, NO_CLASSES, TASKS, classifier
from uncork.load.hugging_face.tied_by_default import TIED_BY_DEFAULT

# What others put in front of names: training frameworks, adapters, multimodal models.
_WRAPPERS = (
    "", "module.", "_orig_mod.", "base_model.model.", "model.language_model.", "language_model.",
    "model.text_model.", "text_model.", "thinker.",
)  # fmt: skip
# Where a model of several parts describes the part that speaks.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")
_MOST_NESTED = 4
# First parts of names that belong to a head and not to the model below it.
_OF_HEADS = (
    "cls", "lm_head", "predictions", "head", "generator_predictions", "generator_lm_head",
    "lm_predictions", "decoder", "shared", "vocab_projector", "vocab_layer_norm", "classifier",
    "classification_head", "score", "pooler", "pre_classifier", "proj_out", "output_projection",
    "embed_out", "pred_layer",
)  # fmt: skip
# Ends of the names of classes with the language model head of the table.
_LANGUAGE_CLASSES = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForCTC",
                     "ForConditionalGeneration", "MTModel", "ForSeq2SeqLM", "ModelWithLMHead",
                     "EncoderDecoderModel", "DoubleHeadsModel", "GenerationDecoder")  # fmt: skip
_SECOND_HEADS = ("cls.seq_relationship", "sop_classifier.classifier", "entity_predictions.decoder",
                 "multiple_choice_head.summary")  # fmt: skip
_LAYER = re.compile(r"(?<=\.)[0-9]{1,6}(?=\.|$)")  # a number between the dots of a name
_NORM_NAMES = {"weight": ("weight", "gamma"), "bias": ("bias", "beta")}  # gamma: from TensorFlow


@dataclass(frozen=True)
class Located:
    """Names of tensors; `gain`, `offset` and `project` where they are there."""

    kind: str  # the model type
    weight: str
    bias: str | None
    why: str
    layout: Layout
    config: Mapping[str, Any]  # of the part that speaks
    before: Norm | Activation | None = None
    gain: str | None = None
    offset: str | None = None
    project: str | None = None
    project_offset: str | None = None
    embedding: str | None = None  # the embedding that should equal the weight, where both are there
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[str]:
        """Every tensor that the head and its domain need."""
        named = (
            self.weight, self.bias, self.gain, self.offset, self.project, self.project_offset,
            self.embedding,
        )  # fmt: skip
        return [name for name in named if name is not None]


def locate(config: Mapping[str, Any], names: Collection[str]) -> Located | None:
    """The head by the table of architectures; None where the model type is not in it.

    Raises `AmbiguousError` where the type is known and the head is not there.
    """
    names = names if isinstance(names, set | frozenset | Mapping) else set(names)
    architecture = _architecture(config)
    for ending in NO_CLASSES:
        if architecture.endswith(ending):
            raise AmbiguousError(
                f"{architecture} compares positions or answers, not classes: it has no head in "
                "uncork's sense; name a tensor with --weight to audit it all the same"
            )
    timm = config.get("pretrained_cfg")  # timm says itself where its classifier is
    if isinstance(timm, Mapping) and "classifier" in timm:
        kind = str(config.get("architecture") or timm.get("architecture") or "timm")
        finder = _Finder(names, _WRAPPERS)
        return _locate(config, config, kind, kind, Layout(_one(timm["classifier"])), finder)
    for part, wrappers in _parts(config):
        kind = str(part.get("model_type", ""))
        layout = classifier(architecture, kind) or LANGUAGE.get(kind)
        if layout is not None:
            finder = _Finder(names, wrappers)
            return _locate(config, part, kind, architecture, layout, finder)
    return None


def _one(classifier: Any) -> tuple[str, ...]:
    if isinstance(classifier, list | tuple) and len(classifier) > 1:
        raise AmbiguousError(
            f"the model has {len(classifier)} classifiers, {', '.join(map(str, classifier))}: name "
            "one with --weight"
        )
    return (str(classifier[0] if isinstance(classifier, list | tuple) else classifier),)


def _architecture(config: Mapping[str, Any]) -> str:
    listed = config.get("architectures")
    return str(listed[0]) if isinstance(listed, list | tuple) and listed else ""


def _parts(
    config: Mapping[str, Any], wrappers: tuple[str, ...] = _WRAPPERS, depth: int = 0
) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """The configuration and those nested in it, each with what may precede its names."""
    yield config, wrappers
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and depth < _MOST_NESTED:
            # An encoder-decoder made of two models keeps each below its own name.
            below = tuple(f"decoder.{w}" for w in wrappers) if key == "decoder" else wrappers
            yield from _parts(inner, below, depth + 1)


class _Finder:
    """Finds names of the table among those of a file."""

    def __init__(self, names: Collection[str], wrappers: tuple[str, ...]) -> None:
        self.names, self.wrappers = names, wrappers

    def find(self, name: str) -> str | None:
        first, _, rest = name.partition(".")
        forms = (name,) if first in _OF_HEADS or not rest else (name, rest)
        for wrapper in self.wrappers:
            for form in forms:
                full = wrapper + form
                if "{last}" in full:
                    last = self._last(full)
                    if last is not None:
                        return last
                elif full in self.names:
                    return full
        return None

    def _last(self, pattern: str) -> str | None:
        """The name with the highest numbers in the places of {last}."""
        found = self._numbered.get(pattern)
        return None if found is None else found[1]

    @cached_property
    def _numbered(self) -> dict[str, tuple[list[int], str]]:
        """Of names that differ only in the numbers of layers, the one with the highest."""
        best: dict[str, tuple[list[int], str]] = {}
        for name in self.names:
            numbers = [int(part) for part in _LAYER.findall(name)]
            if numbers:
                pattern = _LAYER.sub("{last}", name)
                if pattern not in best or numbers > best[pattern][0]:
                    best[pattern] = numbers, name
        return best

    def first(self, modules: tuple[str, ...], tensor: str) -> str | None:
        found = (self.find(f"{module}.{tensor}") for module in modules)
        return next((name for name in found if name is not None), None)

    def norm(self, module: str, tensor: str) -> str | None:
        found = (self.find(f"{module}.{name}") for name in _NORM_NAMES[tensor])
        return next((name for name in found if name is not None), None)


def _locate(
    config: Mapping[str, Any], part: Mapping[str, Any], kind: str, architecture: str,
    layout: Layout, finder: _Finder,
) -> Located:  # fmt: skip
    outer = str(config.get("model_type", kind))
    model = f"model type {kind!r}" + (f" inside {outer!r}" if outer != kind else "")
    weight = finder.first(layout.head, "weight")
    embedding = finder.first(layout.tied, "weight")
    tied = _tied(config, part, layout)
    notes = [*_logit_notes(part, kind)]
    before, gain, offset = _before(layout, part, finder)
    notes += _other_heads(finder, weight, architecture, language=kind in LANGUAGE)
    if weight is not None:
        why = f"the head of {model}"
        if not (tied and layout.tied):
            embedding = None  # free to differ
    elif embedding is None or not tied:
        raise AmbiguousError(_missing(layout, model, finder, embedding, tied))
    elif _bare(layout, finder):
        raise AmbiguousError(
            f"{architecture or 'the model'} has no head here: what {model} puts between its last "
            f"layer and the head ({_names_of(layout)}) is missing; name a tensor with --weight"
        )
    else:
        weight, embedding = embedding, None
        why = f"the input embedding, which {model} ties to its head"
    # The layer's own bias is the one it adds; others are tied to it, or stand alone.
    biases = (finder.first(layout.head, "bias"), *map(finder.find, layout.bias))
    bias = next((name for name in biases if name is not None), None)
    project = finder.find(f"{layout.project}.weight") if layout.project else None
    if layout.before and before is None:
        notes.append(f"the domain is not known: {_unmet(layout, part)}")
    elif before is None:
        notes.append(f"the domain is not known: uncork's table has none for this head of {model}")
    return Located(
        kind, weight, bias, why, layout, part, before, gain, offset, project,
        finder.find(f"{layout.project}.bias") if project else None, embedding, tuple(notes),
    )  # fmt: skip


def _other_heads(
    finder: _Finder, weight: str | None, architecture: str, language: bool
) -> Iterator[str]:
    """Notes on further heads; an error where nothing says which of two heads is the model's."""
    if language and not architecture.endswith((*_LANGUAGE_CLASSES, *TASKS)):
        classifiers = [finder.find(f"{name}.weight") for name in CLASSIFIERS]
        others = [name for name in classifiers if name is not None and name != weight]
        if others:
            every = [weight or "a tied embedding", *others]
            said = f"the class {architecture}" if architecture else "the configuration"
            raise AmbiguousError(
                f"{said} does not say which is the head: {', '.join(map(printable, every))}: name "
                "one with --weight"
            )
        if architecture:
            yield (
                f"{architecture} is no class with a head that uncork knows: what transformers' "
                "language model of this type takes was taken"
            )
    for module in _SECOND_HEADS:
        name = finder.find(f"{module}.weight")
        if name is not None and name != weight:
            yield f"there is a second head, {printable(name)}: name it with --weight to audit it"


def _tied(config: Mapping[str, Any], part: Mapping[str, Any], layout: Layout) -> bool:
    """Whether the input embedding is the head: as said, else as the type has it by default."""
    if layout.always_tied:
        return True
    said = [p["tie_word_embeddings"] for p in (config, part) if "tie_word_embeddings" in p]
    if said:
        # A model of several parts may say it of either; a part that says no may mean the other.
        return any(value is True for value in said)
    return any(str(p.get("model_type", "")) in TIED_BY_DEFAULT for p in (config, part))


def _before(
    layout: Layout, part: Mapping[str, Any], finder: _Finder
) -> tuple[Norm | Activation | None, str | None, str | None]:
    """What precedes the head: the first entry whose conditions hold and whose tensors are there."""
    for step in layout.before:
        if any(part.get(key, default) != wanted for key, default, wanted in step.when):
            continue
        if isinstance(step, Activation):
            named = replace(step, name=_activation_name(step, part))
            if named.name in RANGES and finder.find(f"{step.of}.weight") is not None:
                return named, None, None
            continue
        gain = finder.norm(step.at, "weight") if step.at else None
        offset = finder.norm(step.at, "bias") if step.at else None
        if not step.at or gain is not None:
            return step, gain, offset if step.kind == "LayerNorm" else None
    return None, None, None


def _activation_name(step: Activation, part: Mapping[str, Any]) -> str:
    if not step.name.startswith("config:"):
        return step.name
    key, default = step.name.removeprefix("config:").split("=")
    return str(part.get(key, default))


def _bare(layout: Layout, finder: _Finder) -> bool:
    """Whether the model below the head was saved alone: nothing of what precedes one is there."""
    modules = [step.at if isinstance(step, Norm) else step.of for step in layout.before]
    if not layout.before or "" in modules or any(finder.find(bias) for bias in layout.bias):
        return False
    return all(finder.norm(module, "weight") is None for module in modules)


def _missing(layout: Layout, model: str, finder: _Finder, embedding: str | None, tied: bool) -> str:
    heads = " or ".join(f"{name}.weight" for name in layout.head)
    text = f"there is no head: {model} keeps it in {heads}"
    if not layout.tied:
        return f"{text}, which is not here; name a tensor with --weight"
    if embedding is None:
        embeddings = " or ".join(f"{name}.weight" for name in layout.tied)
        return f"{text}, or in {embeddings} if tied, and none is here; name a tensor with --weight"
    assert not tied
    return (
        f"{text}, which is not here, and its configuration does not tie it to the input embedding "
        f"{printable(embedding)}: a model without its head? To audit the embedding, name it with "
        "--weight"
    )


def _names_of(layout: Layout) -> str:
    return " or ".join(step.at if isinstance(step, Norm) else step.of for step in layout.before)


def _unmet(layout: Layout, part: Mapping[str, Any]) -> str:
    for step in layout.before:
        for key, default, wanted in step.when:
            if part.get(key, default) != wanted:
                return f"config.json has {key} = {part.get(key, default)!r}"
        if isinstance(step, Activation) and (name := _activation_name(step, part)) not in RANGES:
            return f"what the activation {name!r} can give is not in uncork's table"
    return f"{_names_of(layout)}, which should precede the head, is not here"


def _logit_notes(part: Mapping[str, Any], kind: str) -> Iterator[str]:
    """What happens to the logits after the head, where it changes no argmax."""
    if kind in SCALES:
        key, default = SCALES[kind]
        scale = part.get(key, default)
        if not isinstance(scale, int | float) or not (math.isfinite(scale) and scale > 0):
            raise UncorkError(
                f"config.json has {key} = {scale!r}: with a factor on the logits that is not "
                "positive the argmax is not the head's"
            )
        if scale != 1:
            yield f"the logits are scaled ({key} = {scale:g}): the argmax is unchanged"
    for key in SOFT_CAPS:
        cap = part.get(key)
        if isinstance(cap, int | float) and cap > 0:
            yield (
                f"the logits are capped at ±{cap:g} by a tanh ({key}): the argmax is unchanged, "
                "but in low precision the largest ones can tie"
            )
