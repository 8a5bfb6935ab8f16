"""Tokenizer files, each read into the same thing: which id is which token, and of what kind."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.vocabulary.token_text import is_byte_level, split_lines

MOST_BYTES = 128 << 20  # the largest real ones have a quarter of that
_MOST_IDS = 1 << 40
_DEPTH = 6
_FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_COUNTED = re.compile(r"(.*\S) (-?\d+)(?: #fairseq:overwrite)?")
_YAML_LINE = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|.+?)\s*:\s*(\d{1,12})\s*""")


@dataclass
class Entries:
    """The tokens of a vocabulary by id.

    `added` are those a tokenizer has beside its own; `literal` are written as they are, in a
    vocabulary that writes its own in an alphabet of bytes; `stated` the added tokens that the file
    itself lists, and `renumbered` those that the library gives another number than stated.
    """

    tokens: dict[int, str] = field(default_factory=dict)
    special: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    added: set[int] = field(default_factory=set)
    literal: set[int] = field(default_factory=set)
    stated: list[tuple[int, str, bool]] = field(default_factory=list)
    renumbered: set[int] = field(default_factory=set)
    from_pieces: bool = False  # of a SentencePiece model, which other classes number otherwise
    ranked: bool = False  # tiktoken's, which keep what is added at the numbers that are stated
    byte_level: bool = False  # own tokens are written in GPT-2's alphabet
    bytes_as_characters: bool = False  # own tokens are one byte each, written as U+0000 to U+00FF

    def put(self, number: Any, token: Any) -> None:
        """One entry; what is not an id or no text is left out."""
        if type(number) is int and abs(number) < _MOST_IDS and isinstance(token, str):
            self.tokens[number] = token

    def add(self, number: Any, content: Any, special: bool) -> None:
        """An added token, which takes precedence over one of the model's own with its id."""
        if type(number) is int and isinstance(content, str) and abs(number) < _MOST_IDS:
            if self.tokens.get(number) != content:
                self.added.add(number)
            self.literal.add(number)
            self.tokens[number] = content
            if special:
                self.special.add(number)


def read_bytes(path: Path) -> bytes:
    """The whole of a file that is small enough to be a vocabulary."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise UncorkError(f"{path.name} is not a regular file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise UncorkError(f"{path.name} has {size} bytes: too many for a vocabulary")
        return path.read_bytes()
    except OSError as error:
        raise UncorkError(f"{path.name} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """A JSON file; a byte-order mark is allowed."""
    try:
        return json.loads(read_bytes(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UncorkError(f"{path.name} is not valid JSON: {str(error)[:100]}") from None


def read_lines(path: Path) -> list[str]:
    """A text file's lines."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UncorkError(f"{path.name} is not UTF-8 text (byte {error.start})") from None
    return split_lines(text)


def tokenizer_json(data: Any) -> Entries:
    """The tokenizers library's own file: the model's vocabulary and the tokens added to it."""
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise UncorkError("it has no model inside")
    entries = Entries()
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):  # BPE, WordPiece, WordLevel
        for token, number in vocabulary.items():
            entries.put(number, token)
    elif isinstance(vocabulary, list):  # Unigram: [piece, score] by id
        for number, pair in enumerate(vocabulary):
            entries.put(number, pair[0] if isinstance(pair, list) and pair else None)
    else:
        raise UncorkError("its model has no vocabulary")
    entries.byte_level = any(
        _mentions(data.get(part), "ByteLevel") for part in ("pre_tokenizer", "decoder")
    )
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        number, text = (
            (token.get("id"), token.get("content")) if isinstance(token, dict) else (0, 0)
        )
        if type(number) is int and abs(number) < _MOST_IDS and isinstance(text, str) and text:
            entries.stated.append((number, text, token.get("special") is True))
    return entries


def _mentions(part: Any, kind: str, depth: int = _DEPTH) -> bool:
    """Whether a pre-tokenizer or decoder is of that type, or a sequence with one of it."""
    if not depth:
        return False
    if isinstance(part, dict):
        return part.get("type") == kind or any(
            _mentions(part.get(name), kind, depth - 1) for name in ("pretokenizers", "decoders")
        )
    return isinstance(part, list) and any(_mentions(item, kind, depth - 1) for item in part)


def table(data: Any, language: str | None = None) -> Entries:
    """{"token": id} or {"id": "token"}; or one such table a language."""
    if isinstance(data, dict) and data and all(isinstance(v, dict) for v in data.values()):
        chosen = data.get(language) if language in data else None
        if chosen is None and len(data) == 1:
            chosen = next(iter(data.values()))
        if chosen is None:
            raise UncorkError(f"it holds {len(data)} vocabularies and none is said to be the one")
        data = chosen
    entries = Entries()
    if isinstance(data, list):
        for number, token in enumerate(data):
            entries.put(number, token)
    elif isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, str) and key.isascii() and key.isdigit() and len(key) < 13:
                entries.put(int(key), value)
            else:
                entries.put(value, key)
    if not entries.tokens:
        raise UncorkError("it holds no table of tokens and ids")
    entries.byte_level = is_byte_level(entries.tokens.values())
    return entries


def lines_of(lines: Iterable[str]) -> Entries:
    """A token a line, by line number."""
    return Entries(dict(enumerate(lines)))


def counted_lines(lines: list[str]) -> Entries | None:
    """fairseq's dictionary, `token count` a line after four of its own; None if it is none."""
    matches = [_COUNTED.fullmatch(line) for line in lines]
    if not lines or not all(matches):
        return None
    entries = lines_of([*_FAIRSEQ_SPECIALS, *(match[1] for match in matches if match)])
    entries.special = set(range(len(_FAIRSEQ_SPECIALS)))
    entries.byte_level = False
    return entries


def yaml_table(lines: list[str]) -> Entries:
    """Marian's vocabulary, `token: id` a line; quotes as JSON's or YAML's."""
    entries = Entries()
    for line in lines:
        match = _YAML_LINE.fullmatch(line)
        if match is None:
            if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
                continue
            raise UncorkError(f"{line[:40]!r} is not a line of a vocabulary: expected token: id")
        token = match[1]
        if token[0] == '"' and token[-1] == '"' and len(token) > 1:
            try:
                token = json.loads(token, strict=False)
            except ValueError:
                token = token[1:-1]
        elif token[0] == "'" and token[-1] == "'" and len(token) > 1:
            token = token[1:-1].replace("''", "'")
        entries.put(int(match[2]), token)
    if not entries.tokens:
        raise UncorkError("it holds no tokens")
    return entries


def tiktoken_lines(lines: list[str]) -> Entries | None:
    """tiktoken's ranks, `base64 rank` a line; None if it is none."""
    entries = Entries(ranked=True)
    for line in lines:
        token, _, rank = line.partition(" ")
        if not rank.isascii() or not rank.isdigit() or len(rank) > 12:
            return None
        try:
            data = base64.b64decode(token, validate=True)
        except (binascii.Error, ValueError):
            return None
        entries.put(int(rank), _spelled(data))
    return entries if entries.tokens else None


def _spelled(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    return "".join(
        c if not "\udc80" <= c <= "\udcff" else f"<0x{ord(c) - 0xDC00:02X}>" for c in text
    )


def tekken(data: Any) -> Entries:
    """Mistral's tekken.json: special tokens first, then the ranked byte sequences."""
    config = data.get("config") if isinstance(data, dict) else None
    if not isinstance(config, dict) or not isinstance(data.get("vocab"), list):
        raise UncorkError("it holds no ranked tokens")
    reserved, total = config.get("default_num_special_tokens"), config.get("default_vocab_size")
    if type(reserved) is not int or type(total) is not int or not 0 <= reserved <= total:
        raise UncorkError("it does not say how many special tokens come first")
    entries = Entries()
    for number in range(min(reserved, 100_000)):
        entries.put(number, f"<SPECIAL_{number}>")
    special = data.get("special_tokens")
    for token in special if isinstance(special, list) else ():
        if isinstance(token, dict):
            entries.put(token.get("rank"), token.get("token_str"))
            entries.special.add(token.get("rank", -1))
    for token in data["vocab"][: total - reserved]:
        rank, text = token["rank"], token["token_bytes"]
        if type(rank) is int:
            entries.put(rank + reserved, _spelled(base64.b64decode(text)))
    return entries
