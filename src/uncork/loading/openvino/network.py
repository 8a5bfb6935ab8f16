"""The network of an OpenVINO .xml: its layers, which ports feed which, and labels it carries.

Parsed by expat's events, so that nothing of a file is expanded or fetched: a document type, which
is where entities are declared, is refused. Only the layers of the network itself are kept; bodies
of loops and branches inside a layer are stepped over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from uncork.core.errors import UncorkError
from uncork.core.text import printable

_MOST_BYTES = 512 << 20
_MOST_DEPTH = 64
_VERSIONS = ("10", "11")
_PORT = ["net", "layers", "layer", "output", "port"]


@dataclass
class Port:
    """A result of a layer: its names, type and shape as the file says them; −1 is open."""

    names: tuple[str, ...]
    precision: str = ""
    dims: list[int] = field(default_factory=list)


@dataclass
class Layer:
    """One operation with its settings; ports by their numbers."""

    id: str
    name: str
    type: str
    version: str
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, Port] = field(default_factory=dict)


@dataclass
class Network:
    path: Path
    layers: list[Layer]
    feeds: dict[tuple[str, str], tuple[str, str]]  # (layer, input) to (layer, output)
    labels: str = ""


class _Parser:
    def __init__(self, path: Path) -> None:
        self.network = Network(path, [], {})
        self.path, self.at = path, list[str]()
        self.text: list[str] = []

    def parse(self, data: bytes) -> Network:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.text.append
        parser.StartDoctypeDeclHandler = self.refuse
        parser.buffer_text = True
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise UncorkError(f"{self.path} is not XML, or truncated: {error}") from error
        if not self.network.layers:
            raise UncorkError(f"{self.path} is not the network of an OpenVINO model: no layers")
        return self.network

    def refuse(self, *about: object) -> None:
        raise UncorkError(f"{self.path} declares a document type, which no network needs: refused")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if len(self.at) >= _MOST_DEPTH:
            raise UncorkError(f"{self.path} is nested more than {_MOST_DEPTH} deep: damaged")
        self.at.append(tag)
        self.text.clear()
        at, layers = self.at, self.network.layers
        if at == ["net"]:
            version = attributes.get("version", "")
            if version not in _VERSIONS:
                raise UncorkError(
                    f"{self.path} is version {printable(version)[:20]!r} of OpenVINO's format, and "
                    "10 and 11 are read: convert the model again"
                )
        elif at == ["net", "layers", "layer"]:
            number, name, kind, version = (
                attributes.get(key, "") for key in ("id", "name", "type", "version")
            )
            layers.append(Layer(number, name, kind, version))
        elif at[:3] == ["net", "layers", "layer"] and layers:
            if at[3:] == ["data"]:
                layers[-1].data = dict(attributes)
            elif at[3:] == ["input", "port"]:
                layers[-1].inputs.append(attributes.get("id", ""))
            elif at == _PORT:
                names = tuple(one for one in attributes.get("names", "").split(",") if one)
                layers[-1].outputs[attributes.get("id", "")] = Port(
                    names, attributes.get("precision", "")
                )
        elif at == ["net", "edges", "edge"]:
            ends = [attributes.get(f"{end}-{part}", "")
                    for end in ("to", "from") for part in ("layer", "port")]  # fmt: skip
            self.network.feeds[ends[0], ends[1]] = ends[2], ends[3]
        elif at[:2] == ["net", "rt_info"] and at[-1] == "labels":
            self.network.labels = attributes.get("value", "")

    def end(self, tag: str) -> None:
        if self.at == [*_PORT, "dim"] and self.network.layers:
            ports = self.network.layers[-1].outputs
            text = "".join(self.text).strip()
            if ports:
                next(reversed(ports.values())).dims.append(int(text) if _whole(text) else -1)
        self.text.clear()
        self.at.pop()


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def read_network(path: Path) -> Network:
    """The network of an .xml file."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: too many for a network")
    return _Parser(path).parse(path.read_bytes())
