"""spaCy pipelines and Thinc models: the output layer of each component, and its labels."""

from __future__ import annotations

import configparser
import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.arriving.known import Stopped, found_by
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
    listing,
)
from uncork.loading.decisions import MULTI_LABEL, sigmoids
from uncork.loading.spacy.domain import Walk
from uncork.loading.spacy.head import Ending, NoHead, ending, is_linear
from uncork.loading.spacy.labels import labels_of
from uncork.loading.spacy.model import MAGIC, PARSER, Model, read_model

_CONFIG = "config.cfg"
_MOST_CONFIG = 16 << 20
_MOST_COMPONENTS = 1000
_MOVES = (
    "the classes are the moves of a transition system: spaCy takes the highest of those that the "
    "state allows, so that a move that never comes first can still be made where others are not "
    "allowed"
)
_TREES = (
    "the classes are edit trees, numbered as in the component's file of trees; one that does not "
    "fit its word falls back on another"
)


@dataclass(frozen=True)
class Component:
    """A component of a pipeline: its model, and what the pipeline's configuration says of it."""

    name: str
    folder: Path
    model: Model
    factory: str
    names: Mapping[int, str]  # layers as their tensors are named


@dataclass(frozen=True)
class Settings:
    """What of config.cfg is used: factories in their order, and who listens to whom."""

    factories: Mapping[str, str]
    upstream: Mapping[str, str]


def read_pipeline(path: Path) -> Contents:
    """A pipeline's folder: every component with a model of its own."""
    settings = _settings(path / _CONFIG)
    named = [name for name in settings.factories if _is_model(path / name / "model")]
    models = [(name, path / name) for name in named]
    if not models:
        raise UncorkError(
            f"{path} is a spaCy pipeline in which no component has a model of Thinc's"
        )
    return _contents(path, models, settings, many=True)


def read_component(path: Path) -> Contents:
    """The folder of one component, or its model file."""
    folder = path if path.is_dir() else path.parent
    file = folder / "model" if path.is_dir() else path
    above = folder.parent / _CONFIG
    settings = _settings(above) if above.is_file() else Settings({}, {})
    return _contents(path, [(folder.name, folder)], settings, many=False, file=file)


def _is_model(path: Path) -> bool:
    """Whether this is a file that begins like a model of Thinc's; a link is followed."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _settings(path: Path) -> Settings:
    """The components of config.cfg. Values are JSON, and none that matters here is computed."""
    if path.stat().st_size > _MOST_CONFIG:
        raise UncorkError(f"{path} is too large for a configuration")
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(path.read_text("utf-8"), str(path))
    except (configparser.Error, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())[:200]
        raise UncorkError(f"{path} is not a configuration of spaCy's: {line}") from error
    factories: dict[str, str] = {}
    upstream: dict[str, str] = {}
    for section in parser.sections():
        parts = section.split(".")
        if len(parts) < 2 or parts[0] != "components":
            continue
        name = parts[1]
        if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
            raise UncorkError(f"{path} is damaged: a component is called {printable(name)[:80]!r}")
        values = parser[section]
        if len(parts) == 2:
            factories[name] = values.get("factory", "").strip('"')
        elif "Listener" in values.get("@architectures", ""):
            upstream[name] = values.get("upstream", '"*"').strip('"')
    if len(factories) > _MOST_COMPONENTS:
        raise UncorkError(f"{path} announces {len(factories)} components")
    return Settings(factories, upstream)


def _contents(
    path: Path,
    folders: list[tuple[str, Path]],
    settings: Settings,
    many: bool,
    file: Path | None = None,
) -> Contents:
    components = []
    tensors: dict[str, Tensor] = {}
    for name, folder in folders:
        model = read_model(file or folder / "model")
        names = _layer_names(model, f"{name}/" if many else "")
        component = Component(name, folder, model, settings.factories.get(name, ""), names)
        components.append(component)
        for layer in model.layers:
            for key, array in layer.arrays.items():
                called = f"{names[layer.index]}.{key}"
                tensors[called] = Tensor(called, array.shape, array.dtype.name, array.read)
    return Contents(
        path,
        "spacy",
        tensors,
        functools.partial(_choose, path, components, tensors),
        functools.partial(_around, components),
        domain=functools.partial(_domain, components, settings),
    )


def _layer_names(model: Model, prefix: str) -> dict[int, str]:
    """What layers are called in names of tensors: by number where the model has no other name."""
    count = Counter(layer.name for layer in model.layers if layer.arrays)
    called = {number: name for name, number in reversed(list(model.root.refs.items()))}
    found = {}
    for layer in model.layers:
        name = layer.name
        if count[name] > 1:
            name = called.get(layer.index, f"{name}#{layer.index}")
        found[layer.index] = prefix + name
    if len({found[one.index] for one in model.layers if one.arrays}) < sum(
        1 for one in model.layers if one.arrays
    ):  # a layer that is called like another is named
        found = {one.index: f"{prefix}{one.name}#{one.index}" for one in model.layers}
    return found


def _choose(
    path: Path, components: list[Component], tensors: Mapping[str, Tensor]
) -> Choice:  # fmt: skip
    heads, without = [], []
    for component in components:
        try:
            heads.append((component, ending(component.model)))
        except NoHead as error:
            without.append(f"{printable(component.name)}: {error}")
    if not heads:
        raise AmbiguousError(
            f"{path} has no component that ends in a softmax or linear layer ("
            f"{'; '.join(without[:8])}): name a weight with --weight"
        )
    if len(heads) > 1:
        weights = [tensors[f"{one.names[end.layer.index]}.W"] for one, end in heads]
        raise AmbiguousError(
            f"{path} is a pipeline with {len(heads)} heads: {listing(weights)}: name one with "
            "--weight, or give the component's folder"
        )
    return _choice(*heads[0])


def _around(components: list[Component], name: str) -> Choice | None:
    found = _layer_of(components, name)
    if found is None:
        return None
    component, number = found
    layer = component.model.layers[number]
    try:
        end = ending(component.model)
    except NoHead:
        end = None
    if end is not None and end.layer.index == number:
        return _choice(component, end)
    if not is_linear(layer):
        return None
    why = f"a {layer.name} layer inside {printable(component.name)}"
    bias = layer.arrays.get("b")
    called = component.names[number]
    return Choice(
        layer.arrays["W"].read(), None if bias is None else bias.read(), f"{called}.W",
        None if bias is None else f"{called}.b", why, bias_settled=True,
    )  # fmt: skip


def _layer_of(components: list[Component], name: str) -> tuple[Component, int] | None:
    for component in components:
        for layer in component.model.layers:
            if "W" in layer.arrays and name == f"{component.names[layer.index]}.W":
                return component, layer.index
    return None


def _choice(component: Component, end: Ending) -> Choice:
    layer, called = end.layer, component.names[end.layer.index]
    notes, doubts = [], []
    if component.model.root.name == PARSER:
        notes.append(_MOVES)
    if "lemmatizer" in component.factory:
        notes.append(_TREES)
    if component.model.root.attributes.get("multi_label") is True:
        notes.append(MULTI_LABEL)
    elif {"logistic", "sigmoid_activation"} & set(end.after):
        notes.append(sigmoids(f"the model of {printable(component.name)}"))
    if not end.sure:
        doubts.append(
            f"the file of {printable(component.name)} does not show how its layers are put "
            "together: its output layer is taken by the name that the model gives it"
        )
    temperature = layer.attributes.get("softmax_temperature", 1.0)
    if isinstance(temperature, int | float) and not temperature > 0:
        doubts.append(f"the softmax divides by {temperature:g}, which changes the order of classes")
    bias = layer.arrays.get("b")
    weight = layer.arrays["W"]
    if component.model.root.name == PARSER:
        why = f"the upper layer of {printable(component.name)}, which scores its moves"
    else:
        why = f"the {layer.name} layer at the end of {printable(component.name)}"
    return Choice(
        weight.read(),
        None if bias is None else bias.read(),
        f"{called}.W",
        None if bias is None else f"{called}.b",
        why,
        tuple(notes),
        doubts=tuple(doubts),
        bias_settled=True,
        vocabulary=_vocabulary(component, weight.shape[0]),
    )


def _vocabulary(component: Component, classes: int) -> Vocabulary:
    return labels_of(component.folder, component.factory or component.name, classes)


def _domain(
    components: list[Component], settings: Settings, choice: Choice
) -> FoundDomain | UnknownDomain | None:
    found = _layer_of(components, choice.weight_name)
    if found is None:
        return None
    component, number = found
    walk = Walk(component.model, functools.partial(_upstream, component, settings))
    return found_by(lambda: walk.arriving(component.model.layers[number]))


def _upstream(component: Component, settings: Settings) -> tuple[str, Model]:
    """The component that this one listens to, if its model lies beside."""
    above = component.folder.parent
    wanted = settings.upstream.get(component.name)
    if wanted is None:
        raise Stopped("what it listens to is not said beside it")
    if wanted == "*":
        speaking = [
            n for n, kind in settings.factories.items() if kind in ("tok2vec", "transformer")
        ]
        if len(speaking) != 1:
            raise Stopped(f"it may listen to any of {len(speaking)} components")
        wanted = speaking[0]
    if wanted not in settings.factories or not _is_model(above / wanted / "model"):
        raise Stopped(f"the model of {printable(wanted)[:80]}, which it listens to, is not Thinc's")
    return printable(wanted), read_model(above / wanted / "model")
