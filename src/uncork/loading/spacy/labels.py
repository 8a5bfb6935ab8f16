"""What the classes of a spaCy component are called: from its cfg, or its moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import opened
from uncork.loading.bounded.msgpack import decode_whole
from uncork.loading.contents import Vocabulary

_MOST_BYTES = 64 << 20
_NO_LABEL = "<no label>"
_NER = ("M", "B", "I", "L", "U", "O")
_ARCS = ("S", "D", "L", "R", "B")
_OUT, _MISSING = 5, 0  # of the moves of an entity recogniser


def labels_of(folder: Path, factory: str, classes: int) -> Vocabulary:
    """The labels that lie beside a component's model, one for each class."""
    moves = folder / "moves"
    if moves.is_file():
        named, source = _moves(moves, factory), f"the moves of {printable(folder.name)}"
    else:
        named, source = _of_cfg(folder / "cfg", factory)
    if named is None:
        return Vocabulary(None, source)
    if len(named) != classes:
        return Vocabulary(None, f"{source} names {len(named)} for {classes} classes: not used")
    return Vocabulary(tuple(named), source)


def _of_cfg(path: Path, factory: str) -> tuple[list[str] | None, str]:
    where = f"the cfg of {printable(path.parent.name)}"
    if factory == "senter":
        return ["I", "S"], "the sentence recogniser's two classes: inside, start"
    if not path.is_file():
        return None, f"no cfg beside {printable(path.parent.name)}'s model"
    settings = table(path)
    morphs = settings.get("labels_morph")
    if isinstance(morphs, dict):
        return list(morphs), where
    found = settings.get("labels")
    if not isinstance(found, list) or not found:
        return None, f"{where} names no labels"
    if "lemmatizer" in factory or all(isinstance(one, int) for one in found):
        return [f"edit tree {one}" for one in found], where
    named = [str(one) for one in found]
    if settings.get("add_negative_label") is True or factory == "spancat_singlelabel":
        named.append(_NO_LABEL)
    return named, where


def _moves(path: Path, factory: str) -> list[str] | None:
    """The moves of a transition system in the order in which spaCy numbers them.

    By kind of move, and by how often a label was seen, the rarest last; labels that were added
    without being seen have negative counts and come at the end, whatever their move.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(f"{path} is too large for a list of moves")
    with opened(path) as cursor:
        found = decode_whole(cursor)
    text = found.get("moves") if isinstance(found, dict) else None
    kinds = _parsed(path, text) if isinstance(text, str) else None
    if not isinstance(kinds, dict):
        raise UncorkError(f"{path} is damaged: it holds no moves")
    numbered: dict[str, dict[str, int]] = {}
    for kind, counts in kinds.items():
        if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
            raise UncorkError(f"{path} is damaged: a move has no counts of labels")
        numbered[str(kind)] = counts
    if not set(numbered) <= set("012345"):
        return None
    name = _namer(factory, numbered)
    if name is None:
        return None
    ordered: dict[tuple[int, str], None] = {}
    added: list[tuple[int, str]] = []
    with_added: dict[str, list[int]] = {}
    for kind, counts in sorted(numbered.items()):
        for count, label in sorted(((n, one) for one, n in counts.items()), reverse=True):
            if count < 0:
                added.append((count, label))
                with_added.setdefault(label, []).append(int(kind))
            else:
                ordered[int(kind), label] = None
    for _, label in sorted(added, reverse=True):
        for number in with_added[label]:
            ordered[number, label] = None
    named = [name(number, label) for number, label in ordered]
    return [one for one in named if one is not None]


def _namer(
    factory: str, kinds: Mapping[str, Mapping[str, int]]
) -> Callable[[int, str], str | None] | None:
    """How the moves are named: those of an entity recogniser, or of a dependency parser."""
    entities = factory in ("ner", "beam_ner") or (not factory and "5" in kinds)
    parser = factory in ("parser", "beam_parser") or (not factory and "5" not in kinds)
    if entities:
        return _entity_move
    return _arc_move if parser and "5" not in kinds else None


def _entity_move(kind: int, label: str) -> str | None:
    if kind == _MISSING or (kind == _OUT and label):
        return None  # spaCy makes no class of these
    return "O" if kind == _OUT else f"{_NER[kind]}-{label}"


def _arc_move(kind: int, label: str) -> str | None:
    return f"{_ARCS[kind]}-{label}" if label else _ARCS[kind]


def table(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(f"{path} is too large for a configuration")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UncorkError(f"{path} cannot be read: {error}") from error
    found = _parsed(path, text)
    if not isinstance(found, dict):
        raise UncorkError(f"{path} is damaged: expected a JSON table")
    return found


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UncorkError(f"{path} is damaged: {error}") from error
