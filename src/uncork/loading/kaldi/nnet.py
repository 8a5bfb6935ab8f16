"""The network of a Kaldi model: its nodes as they are wired, and its components."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import opened
from uncork.loading.kaldi.stream import Array, Number, Stream

_MOST_NODES = 100_000
_MOST_PDFS = 1 << 24
# Components of which more than their kind is wanted.
_READ = ("AffineComponent", "NaturalGradientAffineComponent", "FixedAffineComponent",
         "LinearComponent", "TdnnComponent", "BatchNormComponent", "FixedScaleComponent",
         "FixedBiasComponent", "NormalizeComponent")  # fmt: skip
_LISTS = ("<TimeOffsets>",)
# Descriptors that hand on what one node gives, at another time.
_SHIFTED = re.compile(r"(?:Offset|Round|ReplaceIndex|IfDefined)\(\s*(.*)\)", re.DOTALL)
_SHIFT = re.compile(r"(.*?)(?:, ?[tx])?, ?-?\d+", re.DOTALL)
_KEY = re.compile(r"([\w-]+)=(.*)", re.DOTALL)
_LONGEST = 1000  # of a descriptor that may name one node
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True)
class Component:
    kind: str
    fields: Mapping[str, Any]

    def array(self, name: str, dimensions: int) -> Array | None:
        """A parameter, if it is there and has that many dimensions."""
        found = self.fields.get(name)
        return found if isinstance(found, Array) and len(found.shape) == dimensions else None

    def integer(self, name: str, default: int) -> int:
        found = self.fields.get(name)
        return found.integer() if isinstance(found, Number) else default

    def real(self, name: str, default: float) -> float:
        found = self.fields.get(name)
        return found.real() if isinstance(found, Number) else default


@dataclass(frozen=True)
class Node:
    name: str
    kind: str  # "component-node", "output-node", "input-node", "dim-range-node"
    input: str  # a descriptor
    component: str


@dataclass(frozen=True)
class Network:
    """A model: the network, the priors that decoders divide by, and what its classes stand for."""

    path: Path
    nodes: Mapping[str, Node]
    components: Mapping[str, Component]
    priors: Array | None
    states: tuple[tuple[int, int, int, int], ...]  # phone, state, pdf, pdf of its loop
    written_out: bool

    def outputs(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == "output-node"]

    def component(self, node: Node) -> Component | None:
        return self.components.get(node.component) if node.kind == "component-node" else None

    def before(self, node: Node) -> Node | None:
        """The node that another takes all it is given from, at this or another time."""
        name = single(node.input)
        return None if name is None else self.nodes.get(name)


def single(descriptor: str) -> str | None:
    """The one node that a descriptor names; None where it puts several together."""
    if len(descriptor) > _LONGEST:
        return None
    for _ in range(16):
        descriptor = descriptor.strip()
        if _NAME.fullmatch(descriptor):
            return descriptor
        found = _SHIFTED.fullmatch(descriptor)
        if found is None:
            return None
        inner = found.group(1)
        if descriptor.startswith("IfDefined"):
            descriptor = inner
            continue
        # Shifts end in ", number" or ", t, number".
        first = _SHIFT.fullmatch(inner)
        if first is None:
            return None
        descriptor = first.group(1)
    return None


def read_network(path: Path) -> Network:
    """A file that holds a network of nnet3, with its transition model before it or without."""
    with opened(path) as cursor:
        stream = Stream(path, cursor.data)
        token = stream.token()
        states: tuple[tuple[int, int, int, int], ...] = ()
        if token == "<TransitionModel>":
            states = _states(stream)
            token = stream.token()
        if token != "<Nnet3>":
            raise UncorkError(
                f"{path} holds {printable(token)[:40]}, and networks of Kaldi's nnet3 are read "
                "(<Nnet3>): Gaussian mixtures have no head, and models of nnet1 and nnet2 are "
                "converted with Kaldi's own tools"
            )
        nodes = _nodes(stream)
        components = _components(stream)
        stream.expect("</Nnet3>")
        priors = _priors(stream)
        written_out = not stream.binary
    return Network(path, nodes, components, priors, states, written_out)


def _states(stream: Stream) -> tuple[tuple[int, int, int, int], ...]:
    """The states of the phones' models: which pdf each has, and its loop."""
    stream.past("</Topology>")
    token = stream.token()
    if token not in ("<Tuples>", "<Triples>"):
        raise UncorkError(f"{stream.path} is damaged: {printable(token)[:40]} follows the topology")
    width = 4 if token == "<Tuples>" else 3
    count = stream.integer("the number of states")
    if not 0 <= count <= min(_MOST_PDFS, stream.cursor.left // (2 * width)):
        raise UncorkError(f"{stream.path} is damaged: it announces {count} states")
    found = []
    for _ in range(count):
        one = [stream.integer("a state") for _ in range(width)]
        found.append((one[0], one[1], one[2], one[-1]))
    stream.past("</TransitionModel>")
    return tuple(found)


def _nodes(stream: Stream) -> dict[str, Node]:
    """The lines that wire the network, up to an empty one."""
    stream.line()
    nodes: dict[str, Node] = {}
    while text := stream.line().strip():
        kind, *words = text.split()
        said: dict[str, str] = {}
        key = ""
        for word in words:  # descriptors have spaces in them
            begins = _KEY.fullmatch(word)
            if begins is not None:
                key = begins.group(1)
            said[key] = begins.group(2) if begins is not None else f"{said.get(key, '')} {word}"
        name = said.get("name", "")
        if not name or name in nodes or len(nodes) >= _MOST_NODES:
            raise UncorkError(
                f"{stream.path} is damaged: a node is called {printable(name)[:40]!r}"
            )
        given = said.get("input", said.get("input-node", ""))
        nodes[name] = Node(name, kind, given, said.get("component", ""))
    return nodes


def _components(stream: Stream) -> dict[str, Component]:
    stream.expect("<NumComponents>")
    count = stream.integer("the number of components")
    if not 0 <= count <= min(_MOST_NODES, stream.cursor.left // 16):
        raise UncorkError(f"{stream.path} is damaged: it announces {count} components")
    found = {}
    for _ in range(count):
        stream.expect("<ComponentName>")
        name, kind = stream.token(), stream.token()
        if not (kind.startswith("<") and kind.endswith(">")):
            raise UncorkError(f"{stream.path} is damaged: {printable(name)[:40]!r} has no kind")
        found[name] = _component(stream, kind[1:-1])
    return found


def _component(stream: Stream, kind: str) -> Component:
    """A component's fields, or only its kind where nothing of it is wanted."""
    if kind not in _READ:
        stream.past(f"</{kind}>")
        return Component(kind, {})
    fields: dict[str, Any] = {}
    while (token := stream.token()) != f"</{kind}>":
        if not token.startswith("<") or token.startswith("</"):
            raise UncorkError(f"{stream.path} is damaged: {printable(token)[:40]!r} in a {kind}")
        if token in _LISTS:
            fields[token] = stream.integers(token)
            continue
        while not stream.at_token():  # some have two numbers, of which none is wanted
            fields[token] = stream.value(f"{token} of a {kind}")
    return Component(kind, fields)


def _priors(stream: Stream) -> Array | None:
    """The classes' prior probabilities, behind the network of a whole model."""
    if stream.cursor.left < 2 or not stream.at_token():
        return None
    for token in ("<LeftContext>", "<RightContext>"):
        stream.expect(token)
        stream.integer(token)
    stream.expect("<Priors>")
    found = stream.value("the priors")
    return found if isinstance(found, Array) and found.shape != (0,) and found.shape else None
