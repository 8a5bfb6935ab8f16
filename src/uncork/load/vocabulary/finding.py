"""What the classes are called: the vocabulary in a folder's tokenizer files, or in one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError
from uncork.load.contents import Vocabulary
from uncork.load.vocabulary import tokenizer_files as files
from uncork.load.vocabulary.labels import read_labels
from uncork.load.vocabulary.token_text import (
    from_byte_level,
    is_byte_level,
    named_special,
    named_unused,
)
from uncork.load.vocabulary.tokenizer_files import Entries

_DEFAULT_LABEL = re.compile(r"LABEL_\d+")
_MOST_FILES = 10_000  # of a folder, looked at
_TARGET = re.compile(r"(?:^|[^a-z])(?:trg|tgt|target)(?:[^a-z]|$)", re.IGNORECASE)
# How many rows a file must name to be taken for the head's vocabulary: files that are surely a
# tokenizer's may leave rows over, plain lists that lie about must fit.
_LEAST_SHARE = {
    "tokenizer.json": 0.0, "vocab.json": 0.0, "tekken.json": 0.0, "target_vocab.json": 0.0,
    "vocab-tgt.json": 0.0, "tokens.txt": 1.0, "labels.txt": 1.0, "classes.txt": 1.0,
}  # fmt: skip
_OTHER_SHARE = 0.5
_SPECIAL_FIELDS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                   "mask_token", "additional_special_tokens")  # fmt: skip


def find_vocabulary(folder: Path, classes: int) -> Vocabulary:
    """The vocabulary of a model's folder, from the first of its files that fits so many classes.

    A damaged or unfitting file is no error: `source` says why it was not used. A tokenizer fits
    when the head has a row for each of its own entries; tokens added to it may lie beyond the
    head, and rows beyond them are `padding`.
    """
    refused: list[str] = []
    config = _settings(folder / "config.json", refused)
    named = _class_names(config, classes)
    if named is not None and not all(_DEFAULT_LABEL.fullmatch(label) for label in named):
        return Vocabulary(tuple(named), "config.json id2label")
    settings = _settings(folder / "tokenizer_config.json", refused)
    for path, read in _candidates(folder, settings, config):
        try:
            entries = read(path)
            _add_settings(folder, settings, entries)
            _check_fit(path.name, entries, classes, _LEAST_SHARE.get(path.name, _OTHER_SHARE))
            return _vocabulary(entries, classes, path.name)
        except UncorkError as error:
            text = str(error)
            refused.append(text if path.name in text else f"{path.name}: {text}")
        except Exception as error:  # whatever a damaged file makes its reader raise
            refused.append(
                f"{path.name} cannot be read: {str(error)[:100] or type(error).__name__}"
            )
    if named is not None:
        return Vocabulary(tuple(named), "config.json id2label (names by default: they say nothing)")
    return Vocabulary(None, "; ".join(refused[:3]))


def read_vocabulary(path: Path, classes: int) -> Vocabulary:
    """The vocabulary in one file: a tokenizer's, or plain labels. Raises `UncorkError`."""
    if path.is_file() and path.stat().st_size <= files.MOST_BYTES:
        try:
            entries = _by_content(path)
        except UncorkError as error:
            raise UncorkError(f"labels file {path}: {error}") from None
        if entries is not None:
            _check_fit(str(path), entries, classes)
            return _vocabulary(entries, classes, str(path))
    labels = read_labels(path, classes)
    return Vocabulary(labels, str(path), special=_named(labels, named_special),
                      unused=_named(labels, named_unused))  # fmt: skip


def vocabulary_of(
    tokens: Mapping[int, str] | Sequence[str],
    classes: int,
    source: str,
    *,
    special: Collection[int] = (),
    unused: Collection[int] = (),
    byte_level: bool | None = None,
) -> Vocabulary:
    """The vocabulary of tokens that a reader already holds, by id.

    `byte_level` says whether they are written in GPT-2's alphabet of bytes; None looks at them.
    """
    by_id = dict(tokens) if isinstance(tokens, Mapping) else dict(enumerate(tokens))
    if byte_level is None:
        byte_level = is_byte_level(by_id.values())
    entries = Entries(by_id, set(special), set(unused), byte_level=byte_level)
    try:
        _check_fit(source, entries, classes)
    except UncorkError as error:
        return Vocabulary(None, str(error))
    return _vocabulary(entries, classes, source)


def _check_fit(name: str, entries: Entries, classes: int, least: float = 0.0) -> None:
    """Raise unless there is a row for each of the tokenizer's own entries, and an entry for at
    least that share of the rows."""
    beyond = [number for number in entries.tokens if number >= classes]
    own = [number for number in beyond if number not in entries.added]
    if own:
        raise UncorkError(
            f"{name} has {len(entries.tokens):,} entries, up to number {max(own):,}, for "
            f"{classes:,} classes: not used"
        )
    named = sum(0 <= number < classes for number in entries.tokens)
    if named and named < least * classes:
        raise UncorkError(f"{name} has {named:,} entries for {classes:,} classes: not used")
    if not named:
        raise UncorkError(f"{name} has no entry for any of the {classes:,} classes: not used")


def _vocabulary(entries: Entries, classes: int, source: str) -> Vocabulary:
    tokens = {k: token for k, token in entries.tokens.items() if 0 <= k < classes}
    end = max(tokens) + 1
    raw = tuple(tokens.get(k, f"<row {k}>") for k in range(classes))
    labels = raw
    if entries.byte_level:
        labels = tuple(
            from_byte_level(token) if k in tokens and k not in entries.added else token
            for k, token in enumerate(raw)
        )
    gaps = [k for k in range(end) if k not in tokens]
    unused = {k for k in entries.unused if k in tokens} | set(_named(raw, named_unused)) | {*gaps}
    special = {k for k in entries.special if k in tokens} | set(_named(raw, named_special))
    notes = []
    if gaps:
        notes.append(f"{_count(len(gaps), 'row')} below the last token without one of their own")
    beyond = sum(number >= classes for number in entries.tokens)
    if beyond:
        notes.append(f"{_count(beyond, 'added token')} beyond the head's last row")
    negative = sum(number < 0 for number in entries.tokens)
    if negative:
        notes.append(f"{_count(negative, 'token')} with a negative number, left out")
    twice = len(raw) - len(set(raw))
    if twice:
        notes.append(f"{_count(twice, 'token')} spelled as an earlier one")
    return Vocabulary(
        labels,
        source,
        special=tuple(sorted(special - unused)),
        unused=tuple(sorted(unused)),
        padding=tuple(range(end, classes)),
        tokens=raw if entries.byte_level else None,
        notes=tuple(notes),
    )


def _named(tokens: Sequence[str], test: Callable[[str], bool]) -> tuple[int, ...]:
    return tuple(k for k, token in enumerate(tokens) if test(token))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _candidates(
    folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[tuple[Path, Callable[[Path], Entries]]]:
    """Files that may hold the vocabulary, the surest first."""
    try:
        names = sorted(
            path.name for _, path in zip(range(_MOST_FILES), folder.iterdir(), strict=False)
        )
    except OSError:
        return
    family = files.family_of(settings, config)
    extra = settings.get("extra_ids")
    extra_ids = extra if type(extra) is int and extra > 0 else 0
    language = settings.get("target_lang")

    def pieces(path: Path) -> Entries:
        data = files.read_bytes(path)
        ranks = files.tiktoken_lines(data.decode("ascii", "replace").split("\n")[:-1])
        return ranks or files.sentencepiece(data, family, extra_ids)

    def counted(path: Path) -> Entries:
        entries = files.counted_lines(files.read_lines(path))
        if entries is None:
            raise UncorkError(f"{path.name} is no fairseq dictionary")
        return entries

    def tabled(path: Path) -> Entries:
        return files.table(files.read_json(path), language)

    def listed(path: Path) -> Entries:
        lines = files.read_lines(path)
        return ("bpe.codes" in names and files.counted_lines(lines)) or files.lines_of(lines)

    for name in ("tokenizer.json",):
        if name in names:
            yield folder / name, lambda path: files.tokenizer_json(files.read_json(path))
    for name in ("target_vocab.json", "vocab-tgt.json", "vocab.json"):
        if name in names:
            yield folder / name, tabled
    if "tekken.json" in names:
        yield folder / "tekken.json", lambda path: files.tekken(files.read_json(path))
    if "vocab.txt" in names:
        yield folder / "vocab.txt", listed
    models = [n for n in names if n.endswith((".model", ".spm", ".tiktoken"))]
    for name in _target_first(models):
        yield folder / name, pieces
    yamls = [n for n in names if re.fullmatch(r".*vocab.*\.ya?ml", n)]
    for name in _target_first(yamls):
        yield folder / name, lambda path: files.yaml_table(files.read_lines(path))
    for name in _target_first([n for n in names if re.fullmatch(r"dict(\..*)?\.txt", n)]):
        yield folder / name, counted
    for name in ("tokens.txt", "labels.txt", "classes.txt"):
        if name in names:
            yield folder / name, listed


def _target_first(names: list[str]) -> list[str]:
    """The output's vocabulary before the input's, where names tell them apart."""
    return sorted(names, key=lambda name: (not _TARGET.search(name), name))


def _by_content(path: Path) -> Entries | None:
    """The entries of a file that shows by itself that it is a tokenizer's; None if it is not."""
    if path.suffix in (".model", ".spm", ".tiktoken"):
        data = files.read_bytes(path)
        ranks = files.tiktoken_lines(data.decode("ascii", "replace").split("\n")[:-1])
        return ranks or files.sentencepiece(data)
    if path.suffix in (".yml", ".yaml"):
        return files.yaml_table(files.read_lines(path))
    if path.suffix != ".json":
        return None
    try:
        data = files.read_json(path)
    except UncorkError:
        return None  # the reader of plain labels has the better message
    if isinstance(data, dict) and isinstance(data.get("model"), dict):
        return files.tokenizer_json(data)
    if path.name == "tekken.json":
        return files.tekken(data)
    if path.name in ("vocab.json", "target_vocab.json", "vocab-tgt.json"):
        return files.table(data)
    return None


def _settings(path: Path, refused: list[str]) -> Mapping[str, Any]:
    """A JSON object beside the weights; empty where there is none or it is damaged."""
    if not path.is_file():
        return {}
    try:
        data = files.read_json(path)
    except UncorkError as error:
        refused.append(str(error))
        return {}
    return data if isinstance(data, dict) else {}


def _class_names(config: Mapping[str, Any], classes: int) -> list[str] | None:
    """id2label, if it names each class and nothing else."""
    table = config.get("id2label")
    if not isinstance(table, dict) or len(table) != classes:
        return None
    try:
        names = {int(key): str(value) for key, value in table.items()}
    except ValueError:
        return None
    return [names[k] for k in range(classes)] if sorted(names) == list(range(classes)) else None


def _add_settings(folder: Path, settings: Mapping[str, Any], entries: Entries) -> None:
    """What lies beside a tokenizer's own file: tokens added to it, and which ones are special."""
    added = _settings(folder / "added_tokens.json", [])
    for token, number in added.items():
        entries.add(number, token, False)
    decoder = settings.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and key.isascii() and key.isdigit() and len(key) < 13:
            entries.add(int(key), token.get("content"), token.get("special") is True)
    marked: set[str] = set()
    for table in (settings, _settings(folder / "special_tokens_map.json", [])):
        for field in _SPECIAL_FIELDS:
            value = table.get(field)
            for item in value if isinstance(value, list) else [value]:
                text = item.get("content") if isinstance(item, dict) else item
                if isinstance(text, str):
                    marked.add(text)
    if marked:
        entries.special |= {k for k, token in entries.tokens.items() if token in marked}
