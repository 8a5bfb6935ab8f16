"""The layers of a Keras model as its configuration lists them, and which hands on to which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError

_MODELS = ("Functional", "Model", "Sequential")
_MOST_LAYERS = 100_000
_MOST_STEPS = 10_000
_DEEPEST = 20


@dataclass(frozen=True)
class Layer:
    """A layer that is no model itself; `scope` is the model it stands in."""

    kind: str
    name: str
    config: Mapping[str, Any]
    scope: Scope
    node: int = 0  # which of its uses, where a layer is shared
    wrapped: bool = False  # inside a TimeDistributed

    def setting(self, key: str) -> Any:
        return self.config.get(key)

    @property
    def activation(self) -> str:
        """The name of its activation, "linear" where it has none, "?" where it is not a name."""
        value = self.config.get("activation", "linear")
        if isinstance(value, dict):  # a registered function, or an activation layer
            inner = value.get("config")
            value = inner if isinstance(inner, str) else value.get("class_name")
        if value is None:
            return "linear"
        return value.lower() if isinstance(value, str) else "?"


@dataclass(frozen=True)
class _Reference:
    scope: Scope
    name: str
    node: int = 0
    tensor: int = 0


@dataclass
class Scope:
    """A model, or a model used as a layer: its layers by name, and what feeds it."""

    path: Path
    sequential: bool
    layers: dict[str, Mapping[str, Any]]
    groups: dict[str, str]  # the name under which .keras files keep each layer's variables
    inputs: Sequence[str]
    ends: Sequence[tuple[str, int, int]]
    trail: tuple[str, ...] = ()  # names of the models around this one, outermost first
    parent: Scope | None = None
    used_as: int = 0
    children: dict[tuple[str, int], Scope] = field(default_factory=dict)

    def outputs(self) -> list[_Reference]:
        return [_Reference(self, *end) for end in self.ends]

    def before(self, name: str, node: int) -> list[_Reference]:
        """What a layer of this model is given."""
        if self.sequential:
            names = list(self.layers)
            place = names.index(name)
            if place:
                return [_Reference(self, names[place - 1])]
            return self._outside()
        nodes = self.layers[name].get("inbound_nodes")
        if not isinstance(nodes, list) or not nodes:
            return []
        return [_Reference(self, *ref) for ref in _references(nodes[min(node, len(nodes) - 1)])]

    def _outside(self) -> list[_Reference]:
        return [] if self.parent is None else self.parent.before(self.trail[-1], self.used_as)

    def resolve(self, reference: _Reference) -> Layer | None:
        """The layer a value comes from, through models inside models; None for an input."""
        for _ in range(_MOST_STEPS):
            scope, name = reference.scope, reference.name
            entry = scope.layers.get(name)
            if entry is None:
                raise UncorkError(
                    f"{scope.path}: a layer refers to {name[:80]!r}, which is missing"
                )
            kind, config = str(entry.get("class_name")), entry.get("config")
            if kind in _MODELS:
                inner = scope._child(name, reference.node, kind, config)
                ends = inner.outputs()
                if not ends:
                    return None
                reference = ends[min(reference.tensor, len(ends) - 1)]
            elif kind == "InputLayer":
                outside = scope._outside()
                place = scope.inputs.index(name) if name in scope.inputs else 0
                if place >= len(outside):
                    return None
                reference = outside[place]
            else:
                return _layer(kind, name, config, scope, reference.node)
        raise UncorkError(f"{self.path}: its layers refer to each other in circles")

    def _child(self, name: str, node: int, kind: str, config: Any) -> Scope:
        if (name, node) not in self.children:
            if len(self.trail) >= _DEEPEST:
                raise UncorkError(f"{self.path}: models are nested more than {_DEEPEST} deep")
            child = _scope(self.path, kind, config)
            child.trail, child.parent, child.used_as = (*self.trail, name), self, node
            self.children[name, node] = child
        return self.children[name, node]

    def given(self, layer: Layer) -> list[Layer | None]:
        """The layers whose values a layer is given."""
        return [self.resolve(reference) for reference in self.before(layer.name, layer.node)]


def read_graph(path: Path, config: Any) -> Scope:
    """The model that a configuration describes."""
    kind = config.get("class_name") if isinstance(config, dict) else None
    if kind not in _MODELS:
        raise UncorkError(
            f"{path}: the model is a {str(kind)[:80]!r}, whose layers only its own code connects: "
            "name the kernel with --weight"
        )
    return _scope(path, str(kind), config.get("config"))


def _scope(path: Path, kind: str, config: Any) -> Scope:
    config = {"layers": config} if isinstance(config, list) else config  # as Keras 1 had it
    entries = config.get("layers") if isinstance(config, dict) else None
    if not isinstance(entries, list) or len(entries) > _MOST_LAYERS:
        raise UncorkError(f"{path}: the configuration has no readable list of layers")
    layers: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, str] = {}
    counts: dict[str, int] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise UncorkError(f"{path}: the configuration's list of layers is damaged")
        settings = entry.get("config")
        name = entry.get("name") or (settings.get("name") if isinstance(settings, dict) else None)
        name = name if isinstance(name, str) else f"layer {len(layers)}"
        group = _snake_case(str(entry.get("class_name")))
        counts[group] = counts.get(group, -1) + 1
        groups[name] = group if counts[group] == 0 else f"{group}_{counts[group]}"
        layers[name] = entry
    if kind == "Sequential":
        inside = [name for name, e in layers.items() if e.get("class_name") != "InputLayer"]
        ends = [(inside[-1], 0, 0)] if inside else []
        layers = {name: layers[name] for name in inside}
        return Scope(path, True, layers, groups, (), ends)
    inputs = [name for name, _, _ in _references(config.get("input_layers"))]
    return Scope(path, False, layers, groups, inputs, _references(config.get("output_layers")))


def _layer(kind: str, name: str, config: Any, scope: Scope, node: int) -> Layer:
    settings = config if isinstance(config, dict) else {}
    inner = settings.get("layer")
    if kind == "TimeDistributed" and isinstance(inner, dict):
        wrapped = inner.get("config")
        settings = wrapped if isinstance(wrapped, dict) else {}
        return Layer(str(inner.get("class_name")), name, settings, scope, node, wrapped=True)
    return Layer(kind, name, settings, scope, node)


def _references(node: Any) -> list[tuple[str, int, int]]:
    """Every [layer, node, tensor] in a node of the configuration, as Keras 2 or 3 writes it."""
    found: list[tuple[str, int, int]] = []
    todo = [node]
    for _ in range(_MOST_STEPS):
        if not todo:
            return found
        item = todo.pop(0)
        if isinstance(item, dict):
            history = item.get("config")
            if item.get("class_name") == "__keras_tensor__" and isinstance(history, dict):
                todo.insert(0, history.get("keras_history"))
            elif "args" in item:
                todo.insert(0, item["args"])
            else:
                todo = [*item.values(), *todo]
        elif isinstance(item, list):
            if (
                len(item) >= 3
                and isinstance(item[0], str)
                and all(type(n) is int for n in item[1:3])
            ):
                found.append((item[0], max(0, item[1]), max(0, item[2])))
            else:
                todo = [*item, *todo]
    return found


def _snake_case(name: str) -> str:
    """As Keras turns the name of a class into that of its group."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
