"""The layers of a Keras model as its configuration lists them, and which hands on to which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError

_MODELS = ("Functional", "Model", "Sequential")
_LIBRARIES = ("keras", "tf_keras")
_FOREIGN = "(not Keras's own)"
_MOST_LAYERS = 100_000
_MOST_STEPS = 10_000
_DEEPEST = 20


@dataclass(frozen=True)
class Layer:
    """A layer that is not a model itself; `scope` is the model it stands in."""

    kind: str
    name: str
    config: Mapping[str, Any]
    scope: Scope
    node: int = 0  # which of its uses, where a layer is shared
    wrapped: bool = False  # inside a TimeDistributed
    tensor: int = 0  # which of its results is meant, where it gives several

    def setting(self, key: str) -> Any:
        return self.config.get(key)

    @property
    def activation(self) -> str:
        """The name of its activation among Keras's own, "linear" where it has none.

        Anything else has a name that no function of Keras has.
        """
        return activation_name(self.config.get("activation", "linear"))

    @property
    def float_type(self) -> str:
        """The type it computes in."""
        policy = self.config.get("dtype")
        if isinstance(policy, dict):
            inner = policy.get("config")
            policy = inner.get("name") if isinstance(inner, dict) else "?"
        return "float32" if policy is None else str(policy).removeprefix("mixed_")

    @property
    def training(self) -> bool:
        """Whether it is called in training mode, by its own call or that of a model around it."""
        scope: Scope | None = self.scope
        said = self.scope.call_settings(self.name, self.node).get("training")
        while said is None and scope is not None and scope.parent is not None:
            said = scope.parent.call_settings(scope.trail[-1], scope.used_as).get("training")
            scope = scope.parent
        return said is not None and said is not False

    @property
    def shape(self) -> list[int | None] | None:
        """The shape of the value it is given, where the configuration says so."""
        shape = _first_shape(self.scope.node_of(self.name, self.node))
        if shape is None:
            built = self.scope.layers[self.name].get("build_config")
            shape = built.get("input_shape") if isinstance(built, dict) else None
        if isinstance(shape, list) and all(n is None or type(n) is int for n in shape):
            return shape
        return None


def activation_name(value: Any) -> str:
    """The name of one of Keras's own functions; other things get a name that none of them has."""
    if isinstance(value, str):
        return value.lower()
    if value is None:
        return "linear"
    inner = value.get("config") if isinstance(value, dict) else None
    name = inner if isinstance(inner, str) else None
    if name is None and isinstance(value, dict):
        name = value.get("class_name")
    return f"{str(name or 'a function')[:80]} {_FOREIGN}"


def kind_of(entry: Mapping[str, Any]) -> str:
    """The class of a layer, if it is Keras's own; else a name that no class of Keras has.

    Legacy files name no module: there a class registered by its author is "package>Name".
    """
    name = str(entry.get("class_name"))
    registered = entry.get("registered_name")
    home = entry.get("module", "keras")
    own = isinstance(home, str) and home.partition(".")[0] in _LIBRARIES
    if own and registered in (None, name) and ">" not in name:
        return name
    return f"{name[:80]} {_FOREIGN}"


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
        return [_Reference(self, *ref) for ref in _references(self.node_of(name, node))]

    def node_of(self, name: str, node: int) -> Any:
        """One call of a layer as the configuration has it; an empty one where it is not there."""
        nodes = self.layers[name].get("inbound_nodes")
        if self.sequential or not isinstance(nodes, list) or not nodes:
            return []
        if node >= len(nodes) > 1:
            raise UncorkError(f"{self.path}: {name[:80]!r} is called {len(nodes)} times, not more")
        return nodes[min(node, len(nodes) - 1)]

    def call_settings(self, name: str, node: int) -> Mapping[str, Any]:
        """What a layer is called with beside its inputs."""
        call = self.node_of(name, node)
        if isinstance(call, dict):
            settings = call.get("kwargs")
            return settings if isinstance(settings, dict) else {}
        found: dict[str, Any] = {}
        for reference in call if isinstance(call, list) else []:  # as Keras 2 has it
            if (
                isinstance(reference, list)
                and len(reference) > 3
                and isinstance(reference[3], dict)
            ):
                found |= reference[3]
        return found

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
            kind, config = kind_of(entry), entry.get("config")
            if kind in _MODELS:
                inner = scope._child(name, reference.node, kind, config)
                ends = inner.outputs()
                if reference.tensor >= len(ends):
                    return None
                reference = ends[reference.tensor]
            elif kind == "InputLayer":
                outside = scope._outside()
                place = scope.inputs.index(name) if name in scope.inputs else 0
                if place >= len(outside):
                    return None
                reference = outside[place]
            else:
                return _layer(kind, name, config, scope, reference.node, reference.tensor)
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
    kind = kind_of(config) if isinstance(config, dict) else None
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
        if name in layers:
            raise UncorkError(f"{path}: two layers of one model are called {name[:80]!r}")
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


def _layer(kind: str, name: str, config: Any, scope: Scope, node: int, tensor: int) -> Layer:
    settings = config if isinstance(config, dict) else {}
    inner = settings.get("layer")
    if kind == "TimeDistributed" and isinstance(inner, dict):
        wrapped = inner.get("config")
        settings = wrapped if isinstance(wrapped, dict) else {}
        return Layer(kind_of(inner), name, settings, scope, node, wrapped=True, tensor=tensor)
    return Layer(kind, name, settings, scope, node, tensor=tensor)


def _first_shape(call: Any) -> Any:
    """The shape of the first value a layer is called with, as Keras 3 writes it."""
    given = call.get("args") if isinstance(call, dict) else None
    first = given[0] if isinstance(given, list) and given else None
    history = first.get("config") if isinstance(first, dict) else None
    return history.get("shape") if isinstance(history, dict) else None


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
