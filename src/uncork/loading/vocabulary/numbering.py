"""Which row a token is: a file's own tokens, and those that the library puts beside them.

Tokens are added in the library's own order: those that the files list as added, the special tokens
that the tokenizer's class or settings name, further special tokens. One that the vocabulary has
already keeps its number. Of the others, classes in Python take the number that the files say; the
rest give the next free one, whatever the files say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.vocabulary import sentencepiece_file as pieces
from uncork.loading.vocabulary import tokenizer_files as files
from uncork.loading.vocabulary.tokenizer_classes import (
    NAMED,
    TokenizerClass,
    before_and_after,
    content_of,
    is_disputed,
    languages,
    stated_class,
    unlisted,
)
from uncork.loading.vocabulary.tokenizer_files import Entries

_TIMESTAMPS = 1501  # Whisper's: every fiftieth of a second up to half a minute
_MOST_FILLED = 1 << 16
_LIST_FIELDS = ("extra_special_tokens", "additional_special_tokens")
_FAIRSEQ = ("Bartpho", "Bertweet", "Phobert")  # classes whose vocabulary is its dictionary
BYTES_ALONE = ("ByT5", "Perceiver")  # classes without a file: special tokens, then the bytes


@dataclass(frozen=True)
class Beside:
    """What lies beside a tokenizer's own file and says which row a token is."""

    kind: TokenizerClass = field(default_factory=TokenizerClass)
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[tuple[int, str, bool], ...] = ()  # (number, token, whether special), as stated


def read_beside(folder: Path, refused: list[str]) -> Beside:
    """The settings of a folder; what is damaged is said in `refused` and left out."""
    config = read_settings(folder / "config.json", refused)
    settings = dict(read_settings(folder / "tokenizer_config.json", refused))
    decoder = settings.get("added_tokens_decoder")
    added: list[tuple[int, str, bool]] = []
    if isinstance(decoder, dict):
        for key, token in decoder.items():
            text = content_of(token)
            if text is not None and key.isascii() and key.isdigit() and len(key) < 13:
                special = isinstance(token, dict) and token.get("special") is True
                added.append((int(key), text, special))
    else:  # files of before there was such a table
        settings |= read_settings(folder / "special_tokens_map.json", refused)
        for text, number in read_settings(folder / "added_tokens.json", refused).items():
            if type(number) is int and text:
                added.append((number, text, False))
    kind = stated_class(settings, config)
    return Beside(kind, settings, config, tuple(sorted(added)))


def read_settings(path: Path, refused: list[str]) -> Mapping[str, Any]:
    """A JSON object beside the weights; empty where there is none or it is damaged."""
    if not path.is_file():
        return {}
    try:
        data = files.read_json(path)
    except UncorkError as error:
        refused.append(str(error))
        return {}
    return data if isinstance(data, dict) else {}


def sentencepiece(data: bytes, beside: Beside) -> Entries:
    """A SentencePiece model's pieces, by the ids that its tokenizer class gives them."""
    found = pieces.pieces_of(data)
    kind = beside.kind
    if is_disputed(kind):
        raise UncorkError(
            f"releases of transformers number the pieces of {kind.name}Tokenizer differently: give "
            "a tokenizer.json with --labels"
        )
    before, skipped, after = before_and_after(kind, beside.settings)
    entries = Entries(from_pieces=True)
    for number, text in enumerate(before):
        entries.put(number, text)
    # Pieces go by place, not by name: some models have a piece twice.
    for place, (text, piece) in enumerate(found[skipped:], len(before)):
        entries.put(place, text)
        if piece in (pieces.CONTROL, pieces.UNKNOWN):
            entries.special.add(place)
        elif piece == pieces.UNUSED:
            entries.unused.add(place)
    for number, text in enumerate(after, len(before) + len(found) - skipped):
        entries.add(number, text, not text.startswith("<extra_id_"))
    return entries


def bytes_alone(beside: Beside) -> Entries:
    """The vocabulary of a class that has no file: a few special tokens, then the 256 bytes."""
    own = beside.kind.tokens(beside.settings)
    first = ("pad", "eos", "unk") if beside.kind.name == "ByT5" else (
        "pad", "bos", "eos", "mask", "cls", "sep")  # fmt: skip
    entries = Entries(bytes_as_characters=True)
    for name in first:
        entries.literal.add(len(entries.tokens))
        entries.put(len(entries.tokens), own.get(name, f"<{name}>"))
    for byte in range(256):
        entries.put(len(first) + byte, chr(byte))
    return entries


def complete(entries: Entries, beside: Beside, fast_file: bool) -> None:
    """Add what the library adds to a file's own tokens. `fast_file`: it is a tokenizer.json."""
    kind = beside.kind
    if kind.name == "CpmAnt":  # its file has names for what cannot stand on a line of its own
        _rename(entries, {"</n>": "\n", "</_>": " "})
    if kind.name in _FAIRSEQ:
        _name_fairseq(entries, kind.tokens(beside.settings), kind.name == "Bartpho")
    size = len(entries.tokens)
    named = special_tokens(beside, entries.from_pieces)
    library = fast_file or kind.known  # else a stranger's code, which may do anything
    renumbers = fast_file or (kind.known and not kind.keeps_numbers and not entries.ranked)
    add = _next_free(entries) if renumbers else _as_stated(entries)
    for number, text, special in (*entries.stated, *beside.added):
        add(text, special, number)
    if entries.ranked and library:
        _fill(entries)
    for text in named if library else ():
        add(text, True, None)
    if kind.name == "Whisper":
        _add_timestamps(entries)
    if kind.name == "M2M100":
        for number, text in enumerate(languages(kind, beside.settings), size):
            if number not in entries.tokens:
                entries.add(number, text, True)
    marked = {text for text in named if not text.startswith("<extra_id_")}
    entries.special |= {k for k, token in entries.tokens.items() if token in marked}


def special_tokens(beside: Beside, from_pieces: bool) -> list[str]:
    """The special tokens in the order in which the library adds those that are missing."""
    settings, own = beside.settings, beside.kind.tokens(beside.settings)
    named = [own.get(n) or content_of(settings.get(f"{n}_token")) for n in NAMED]
    named += [text for name, text in own.items() if name not in NAMED]
    for key, value in settings.items():  # image_token, boi_token, …
        if key.endswith("_token") and key.removesuffix("_token") not in (*NAMED, *own):
            named.append(value if isinstance(value, str) else None)
    listed: list[str | None] = []
    for key in _LIST_FIELDS:
        value = settings.get(key)
        if isinstance(value, dict):
            value = list(value.values())
        listed += [content_of(item) for item in value] if isinstance(value, list) else []
    named += listed or unlisted(beside.kind, settings, from_pieces)
    return list(dict.fromkeys(text for text in named if text))


def _name_fairseq(entries: Entries, own: Mapping[str, str], masked: bool) -> None:
    """The four tokens before fairseq's dictionary, as this tokenizer calls them, and its mask."""
    for number, name in enumerate(("bos", "pad", "eos", "unk")):
        if name in own and number in entries.tokens:
            entries.tokens[number] = own[name]
    if masked and "mask" in own:
        entries.add(len(entries.tokens), own["mask"], True)


def _rename(entries: Entries, names: Mapping[str, str]) -> None:
    for number, token in entries.tokens.items():
        entries.tokens[number] = names.get(token, token)


_Adding = Callable[[str, bool, int | None], None]  # token, whether special, its stated number


def _next_free(entries: Entries) -> _Adding:
    """Adds a token as the tokenizers library does: known ones keep their number, others get the
    next after the vocabulary's count or the last added one."""
    numbers = {token: number for number, token in reversed(entries.tokens.items())}
    size, last = len(entries.tokens), -1

    def add(text: str, special: bool, stated: int | None) -> None:
        nonlocal last
        number = numbers.get(text)
        if number is None:
            number = last + 1 if last >= size else size
            numbers[text] = number
        last = max(last, number)
        if stated is not None and stated != number:
            entries.renumbered.add(number)
        entries.add(number, text, special)

    return add


def _as_stated(entries: Entries) -> _Adding:
    """Adds a token as transformers' classes in Python do: at the number stated, and one without
    after as many as there are."""
    present: set[str] | None = None

    def add(text: str, special: bool, stated: int | None) -> None:
        nonlocal present
        if stated is not None:
            entries.add(stated, text, special)
            return
        if present is None:  # those without a number come last
            present = set(entries.tokens.values())
        if text not in present:
            entries.add(len(present), text, special)
            present.add(text)

    return add


def _fill(entries: Entries) -> None:
    """The library gives numbers that are free between added tokens of tiktoken's a name."""
    own = max((k for k in entries.tokens if k not in entries.added), default=-1)
    end = max(entries.tokens, default=-1)
    if end - own < _MOST_FILLED:
        for number in range(own + 1, end):
            if number not in entries.tokens:
                entries.add(number, f"<|reserved_token_{number}|>", False)


def _add_timestamps(entries: Entries) -> None:
    """Whisper's rows after its last token are times, which its files need not list."""
    last = max(entries.tokens, default=-1)
    if entries.tokens.get(last) == "<|notimestamps|>":
        for k in range(_TIMESTAMPS):
            entries.add(last + 1 + k, f"<|{k * 0.02:.2f}|>", True)
