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

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.arriving.activation_ranges import RANGES
from uncork.loading.contents import AmbiguousError
from uncork.loading.hugging_face.architectures import (
    LANGUAGE,
    SCALES,
    SOFT_CAPS,
    Activation,
    Layout,
    Norm,
)
from uncork.loading.hugging_face.classifier_layouts import (
    CLASSIFIERS,
    NO_CLASSES,
    TASKS,
    classifier,
    compares_classes,
    task_of,
)
from uncork.loading.hugging_face.tied_by_default import TIED_BY_DEFAULT
from uncork.loading.naming import could_be

# What others put in front of names: training frameworks, adapters, multimodal models.
_WRAPPERS = (
    "", "module.", "_orig_mod.", "base_model.model.", "model.language_model.", "language_model.",
    "language_model.model.", "model.text_model.", "text_model.", "thinker.",
)  # fmt: skip
# Where a model of several parts describes the part that speaks.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")
_MOST_NESTED = 4
# First parts of names that belong to a head and not to the model below it.
_OF_HEADS = (
    "cls", "lm_head", "predictions", "head", "generator_predictions", "generator_lm_head",
    "lm_predictions", "decoder", "shared", "vocab_projector", "vocab_layer_norm", "classifier",
    "classification_head", "score", "pooler", "pre_classifier", "proj_out", "output_projection",
    "embed_out", "pred_layer", "mlm_score", "text_decoder", "text_decoder_postnet", "joint",
    "sequence_summary", "projection_head", "lm_loss",
)  # fmt: skip
# Ends of the names of classes with the language model head of the table.
_LANGUAGE_CLASSES = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForCTC",
                     "ForConditionalGeneration", "MTModel", "ForSeq2SeqLM", "ModelWithLMHead",
                     "EncoderDecoderModel", "DoubleHeadsModel", "GenerationDecoder")  # fmt: skip
_SECOND_HEADS = ("cls.seq_relationship", "sop_classifier.classifier", "entity_predictions.decoder",
                 "multiple_choice_head.summary")  # fmt: skip
_LAYER = re.compile(r"(?<=\.)[0-9]{1,6}(?=\.|$)")  # a number between the dots of a name
_BOOK = re.compile(r"(?<=\.)[0-9]{1,6}(?=\.)|(?<=\[)[0-9]{1,6}(?=\]$)")  # lm_heads.3. or w[3]
_LISTED = 8
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
    partner: str | None = None  # the second of two heads whose mean the logits are
    partner_bias: str | None = None
    continued: str | None = None  # the features past the weight's own, as features × classes
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[str]:
        """Every tensor that the head and its domain need."""
        named = (
            self.weight, self.bias, self.gain, self.offset, self.project, self.project_offset,
            self.embedding, self.partner, self.partner_bias, self.continued,
        )  # fmt: skip
        return [name for name in named if name is not None]


def locate(
    config: Mapping[str, Any], names: Collection[str], book: str | None = None
) -> Located | None:
    """The head by the table of architectures; None where the model type is not in it.

    Raises `AmbiguousError` where the type is known and the head is not there. Of a model with a
    head for each codebook, `book` says which.
    """
    names = names if isinstance(names, set | frozenset | Mapping) else set(names)
    architecture = _architecture(config)
    if not compares_classes(architecture, str(config.get("model_type", ""))):
        raise AmbiguousError(
            f"{architecture} compares positions or answers, not classes: it has no head in "
            "uncork's sense; name a tensor with --weight to audit it all the same"
        )
    timm = config.get("pretrained_cfg")  # timm says itself where its classifier is
    if isinstance(timm, Mapping) and "classifier" in timm:
        kind = str(config.get("architecture") or timm.get("architecture") or "timm")
        finder = _Finder(names, _WRAPPERS)
        return _Search(config, config, kind, architecture, finder).head(
            Layout(_one(timm["classifier"]))
        )
    task = task_of(architecture)
    for part, wrappers in _parts(config):
        kind = str(part.get("model_type", ""))
        known = classifier(architecture, kind)
        layout = known if known is not None or task else LANGUAGE.get(kind)
        if layout is not None:
            search = _Search(config, part, kind, architecture, _Finder(names, wrappers))
            return search.head(layout, book)
    if not task:
        return None
    kind = str(config.get("model_type", ""))
    return _Search(config, config, kind, architecture, _Finder(names, _WRAPPERS)).head(
        Layout(CLASSIFIERS)
    )


def said_of_parts(config: Mapping[str, Any]) -> bool:
    """Whether a model of a type that is not in the table ties its embedding to its head."""
    return any(says_tied(config, part) for part, _ in _parts(config))


def class_count(config: Mapping[str, Any]) -> int | None:
    """How many classes the configuration announces: labels of a classifier, else the vocabulary."""
    if task_of(_architecture(config)):
        labels = config.get("id2label")
        return len(labels) if isinstance(labels, Mapping) else None
    sizes = (part.get("vocab_size") for part, _ in _parts(config))
    return next((size for size in sizes if isinstance(size, int)), None)


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
        forms = (name,) if first in _OF_HEADS or "." not in rest else (name, rest)
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

    def every(self, pattern: str) -> list[str]:
        """All names that differ from the pattern in the numbers in it, in their order."""
        found = [
            (list(map(int, _BOOK.findall(name))), name)
            for name in self.names
            for wrapper in self.wrappers
            if _BOOK.sub("{last}", name) == wrapper + pattern
        ]
        return [name for _, name in sorted(found)]

    def norm(self, module: str, tensor: str) -> str | None:
        found = (self.find(f"{module}.{name}") for name in _NORM_NAMES[tensor])
        return next((name for name in found if name is not None), None)


@dataclass(frozen=True)
class _Search:
    """The search for one head: a configuration, the part of it that speaks, a file's names."""

    config: Mapping[str, Any]
    part: Mapping[str, Any]
    kind: str
    architecture: str
    finder: _Finder

    @property
    def model(self) -> str:
        outer = str(self.config.get("model_type", self.kind))
        return f"model type {self.kind!r}" + (f" inside {outer!r}" if outer != self.kind else "")

    @property
    def language(self) -> bool:
        return not (task_of(self.architecture) or self.architecture.endswith(NO_CLASSES))

    def head(self, layout: Layout, book: str | None = None) -> Located:
        self._refuse(layout)
        weight = self._book(layout, book) or self.finder.first(layout.head, "weight")
        embedding = self.finder.first(layout.tied, "weight")
        tied = _tied(self.config, self.part, layout)
        notes = [*_logit_notes(self.part, self.kind)] if self.language else []
        notes += _other_heads(
            self.finder, weight, self.architecture, self.language and self.kind in LANGUAGE
        )
        if weight is not None:
            why = f"the head of {self.model}"
            if not (tied and layout.tied) or _says_untied(self.config, self.part):
                embedding = None  # free to differ
        elif embedding is None or not tied:
            raise AmbiguousError(_missing(layout, self.model, self.finder, embedding))
        elif _bare(layout, self.finder):
            raise AmbiguousError(
                f"{self.architecture or 'the model'} has no head here: what {self.model} puts "
                f"between its last layer and the head ({_names_of(layout)}) is missing"
                + could_be(self.finder.names)
            )
        elif _base_class(self.architecture):
            raise AmbiguousError(
                f"{self.architecture} is a model without a head: its class returns hidden states"
                + could_be(self.finder.names)
            )
        else:
            weight, embedding = embedding, None
            why = f"the input embedding, which {self.model} ties to its head"
        return self._located(layout, weight, embedding, why, notes)

    def _located(
        self, layout: Layout, weight: str, embedding: str | None, why: str, notes: list[str]
    ) -> Located:
        # The layer's own bias is the one it adds; others are tied to it, or stand alone.
        find = self.finder.find
        biases = (self.finder.first(layout.head, "bias"), *map(find, layout.bias))
        before, gain, offset = _before(layout, self.part, self.finder)
        project = find(f"{layout.project}.weight") if layout.project else None
        partner = find(f"{layout.partner}.weight") if layout.partner else None
        if before is None:
            notes.append(f"the domain is not known: {self._unknown(layout)}")
        return Located(
            self.kind, weight, next((name for name in biases if name is not None), None), why,
            layout, self.part, before, gain, offset, project,
            find(f"{layout.project}.bias") if project else None, embedding, partner,
            find(f"{layout.partner}.bias") if partner else None,
            find(f"{layout.continued}.weight") if layout.continued else None, tuple(notes),
            tuple(_silenced(self.part)),
        )  # fmt: skip

    def _unknown(self, layout: Layout) -> str:
        if layout.before:
            return _unmet(layout, self.part)
        return f"uncork's table has none for this head of {self.model}"

    def _refuse(self, layout: Layout) -> None:
        for (key, default, wanted), text in layout.refused:
            if self.part.get(key, default) != wanted:
                raise AmbiguousError(
                    f"{self.architecture or self.model} has no single head: {text}; name a tensor "
                    "with --weight to audit it alone"
                )

    def _book(self, layout: Layout, book: str | None) -> str | None:
        """The head of one codebook; an error that lists them where none was named."""
        if not layout.books:
            return None
        heads = [name for pattern in layout.books for name in self.finder.every(pattern)]
        if book in heads:
            return book
        raise AmbiguousError(
            f"{self.model} has a head for each of its codebooks, and compares the classes of each "
            "by themselves: name one with --weight: "
            + (", ".join(map(printable, heads[:_LISTED])) or "none is here")
            + (f" and {len(heads) - _LISTED} more" if len(heads) > _LISTED else "")
        )


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
                f"{architecture} is not a class with a head that uncork knows: what transformers' "
                "language model of this type takes was taken"
            )
    for module in _SECOND_HEADS:
        name = finder.find(f"{module}.weight")
        if name is not None and name != weight:
            yield f"there is a second head, {printable(name)}: name it with --weight to audit it"


def _tied(config: Mapping[str, Any], part: Mapping[str, Any], layout: Layout) -> bool:
    return layout.always_tied or says_tied(config, part)


def says_tied(config: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Whether the input embedding is the head: as said, else as the type has it by default."""
    said = [p["tie_word_embeddings"] for p in (config, part) if "tie_word_embeddings" in p]
    if said:
        # A model of several parts may say it of either; a part that says no may mean the other.
        return any(value is True for value in said)
    return any(str(p.get("model_type", "")) in TIED_BY_DEFAULT for p in (config, part))


def _says_untied(config: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Whether the configuration itself says that the head is one of its own."""
    said = [p["tie_word_embeddings"] for p in (config, part) if "tie_word_embeddings" in p]
    return bool(said) and not any(value is True for value in said)


def _base_class(architecture: str) -> bool:
    """Whether the class is one of transformers' models without a head."""
    return architecture.endswith("Model") and not architecture.endswith(_LANGUAGE_CLASSES)


def _silenced(part: Mapping[str, Any]) -> Iterator[str]:
    """What to know of classes whose logits the model itself sets to the lowest number."""
    table = part.get("vocabulary_map")
    if part.get("model_type") != "chameleon" or not isinstance(table, Mapping):
        return
    images = sorted(
        number for name, number in table.items()
        if str(name).startswith("IMGIMG") and isinstance(number, int)
    )  # fmt: skip
    if images:
        yield (
            f"the model never says {len(images)} of its classes, the image tokens "
            f"{images[0]} to {images[-1]} (IMGIMG… in config.json's vocabulary_map): it sets their "
            "logits to the lowest number. Leave them out with --classes, and mind that a class "
            "which only they beat is not lost"
        )


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


def _missing(layout: Layout, model: str, finder: _Finder, embedding: str | None) -> str:
    heads = " or ".join(f"{name}.weight" for name in layout.head[:_LISTED])
    text = f"there is no head: {model} keeps it in {heads}"
    if not layout.tied:
        return f"{text}, which is not here" + could_be(finder.names)
    if embedding is None:
        embeddings = " or ".join(f"{name}.weight" for name in layout.tied)
        return f"{text}, or in {embeddings} if tied, and none is here" + could_be(finder.names)
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
