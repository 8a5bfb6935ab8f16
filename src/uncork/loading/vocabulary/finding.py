"""What the classes are called: the vocabulary in a folder's tokenizer files, or in one file."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.contents import LabelCountError, Vocabulary
from uncork.loading.vocabulary import tokenizer_files as files
from uncork.loading.vocabulary.labels import lines_of_text, read_labels
from uncork.loading.vocabulary.numbering import (
    BYTES_ALONE,
    Beside,
    bytes_alone,
    complete,
    read_beside,
    sentencepiece,
)
from uncork.loading.vocabulary.token_text import (
    from_byte_level,
    from_bytes_as_characters,
    is_byte_level,
    named_special,
    named_unused,
)
from uncork.loading.vocabulary.tokenizer_files import Entries

_DEFAULT_LABEL = re.compile(r"LABEL_\d+")
_CLASSIFIER = re.compile(
    r"For\w*(?:Classification|MultipleChoice|Detection|Segmentation|XVector|QuestionAnswering"
    r"|NextSentencePrediction)"
)
_MOST_FILES = 10_000  # of a folder, looked at
_TARGET = re.compile(r"(?:^|[^a-z])(?:trg|tgt|target)(?:vocab|[^a-z]|$)", re.IGNORECASE)
# How many rows a file must name to be taken for the head's vocabulary: files that are surely a
# tokenizer's may leave rows over, plain lists that lie about must fit.
_LISTS = ("labels.txt", "classes.txt", "tokens.txt", "synset_words.txt", "synset.txt")
_TABLES = ("target_vocab.json", "vocab-tgt.json", "vocab.json")
_LEAST_SHARE = {
    "tokenizer.json": 0.0, "tekken.json": 0.0, **dict.fromkeys(_TABLES, 0.0),
    **dict.fromkeys(_LISTS, 1.0),
}  # fmt: skip
_OTHER_SHARE = 0.5
_PIECES = (".model", ".spm", ".tiktoken")
# Classes whose rows are those of vocab.json, whatever SentencePiece models lie beside it.
_TABLE_CLASSES = ("Marian", "M2M100", "Speech2Text", "FSMT")


def find_vocabulary(folder: Path, classes: int) -> Vocabulary:
    """The vocabulary of a model's folder, from the first of its files that fits so many classes.

    A damaged or unfitting file is not an error: `source` says why it was not used, or a note where
    another one was. A tokenizer fits when the head has a row for each of its own entries; tokens
    added to it may lie beyond the head, and rows beyond them are `padding`. Input tokens are no
    names for the classes of a classifier.
    """
    refused: list[str] = []
    beside = read_beside(folder, refused)
    named = _class_names(beside.config, classes)
    if named is not None and not all(_DEFAULT_LABEL.fullmatch(label) for label in named):
        return Vocabulary(tuple(named), "config.json id2label")
    classifier = _is_classifier(beside.config, classes)
    unfit: list[tuple[str, Entries]] = []
    candidates = _candidates(folder, beside, lists_only=classifier)
    for name, read in candidates:
        entries = None
        try:
            entries = read()
            _check_fit(name, entries, classes, _LEAST_SHARE.get(name, _OTHER_SHARE))
        except UncorkError as error:
            text = str(error)
            refused.append(text if name in text else f"{name}: {text}")
            if entries is not None and name not in _LISTS:
                unfit.append((name, entries))
            continue
        except Exception as error:  # whatever a damaged file makes its reader raise
            refused.append(f"{name} cannot be read: {str(error)[:100] or type(error).__name__}")
            continue
        differing = _differing(unfit[0][1], entries) if unfit and name not in _LISTS else 0
        if differing:
            why = f"{refused[-1]}; {name} fits, but names {differing:,} of the rows otherwise"
            return Vocabulary(None, f"{why}: say which with --labels")
        found = _vocabulary(entries, classes, name)
        if entries.from_pieces and beside.kind.name and not beside.kind.known:
            refused.append(
                f"{beside.kind.name} is not a class of transformers: the pieces of {name} are "
                "taken in the file's order"
            )
        notes = (*found.notes, *refused[:3], *_others(name, entries, beside, classes, candidates))
        return replace(found, notes=notes)
    if named is not None:
        return Vocabulary(tuple(named), "config.json id2label (names by default: they say nothing)")
    if classifier:
        why = f"config.json is a classifier's and does not name its {classes:,} classes"
        return Vocabulary(None, "; ".join([why, *refused[:2]]))
    return Vocabulary(None, "; ".join(refused[:3]))


def _others(
    name: str,
    taken: Entries,
    beside: Beside,
    classes: int,
    candidates: Iterator[tuple[str, Callable[[], Entries]]],
) -> list[str]:
    """Files that the same tokenizer class could have been read from, and say something else."""
    if name != "tokenizer.json" or not beside.kind.name or not beside.kind.known:
        return []
    notes = []
    for other, read in candidates:
        if other in _LISTS:
            continue
        try:
            entries = read()
            _check_fit(other, entries, classes, _OTHER_SHARE)
        except Exception:
            continue  # it was not needed
        differing = _differing(entries, taken)
        if differing:
            count = _count(differing, "row")
            notes.append(f"{other} names {count} otherwise: tokenizer.json was taken")
    return notes


def _differing(one: Entries, other: Entries) -> int:
    """How many rows two files name differently, added tokens aside."""
    return sum(
        other.tokens[number] != token
        for number, token in one.tokens.items()
        if number in other.tokens and number not in one.added and number not in other.added
    )


def _is_classifier(config: Mapping[str, Any], classes: int) -> bool:
    """Whether a head of that size chooses among the labels of a classifier, not among tokens."""
    table = config.get("id2label")
    labels = len(table) if isinstance(table, dict) else config.get("num_labels")
    vocabulary = config.get("vocab_size")
    if vocabulary == classes and labels != classes:
        return False  # the embedding of a classifier, named by hand
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        return any(isinstance(name, str) and _CLASSIFIER.search(name) for name in architectures)
    return labels == classes != vocabulary


def read_vocabulary(path: Path, classes: int) -> Vocabulary:
    """The vocabulary in one file: a tokenizer's, or plain labels. Raises `UncorkError`."""
    if path.is_file() and path.stat().st_size <= files.MOST_BYTES:
        beside = read_beside(path.parent, [])
        try:
            entries = _by_content(path, beside)
        except UncorkError as error:
            raise UncorkError(f"labels file {path}: {error}") from None
        if entries is not None:
            _check_fit(str(path), entries, classes)
            found = _vocabulary(entries, classes, str(path))
            if entries.from_pieces and not beside.kind.known:
                doubt = (
                    "nothing beside it says which tokenizer numbers these pieces: they are taken "
                    "in the file's order, and XLM-RoBERTa, mBART, CamemBERT and Pegasus have others"
                )
                found = replace(found, notes=(doubt, *found.notes))
            return found
    plain = read_labels(path, classes)
    assert plain.labels is not None
    return replace(plain, special=_named(plain.labels, named_special),
                   unused=_named(plain.labels, named_unused))  # fmt: skip


def vocabulary_of(
    tokens: Mapping[int, str] | Sequence[str],
    classes: int,
    source: str,
    *,
    special: Collection[int] = (),
    unused: Collection[int] = (),
    literal: Collection[int] = (),
    byte_level: bool | None = None,
) -> Vocabulary:
    """The vocabulary of tokens that a reader already holds, by id.

    `byte_level` says whether they are written in GPT-2's alphabet of bytes; None looks at them.
    Those in `literal` are not, whatever the others are.
    """
    by_id = dict(tokens) if isinstance(tokens, Mapping) else dict(enumerate(tokens))
    if byte_level is None:
        byte_level = is_byte_level(by_id.values())
    entries = Entries(by_id, set(special), set(unused), literal=set(literal), byte_level=byte_level)
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
        raise LabelCountError(
            f"{name} has {len(entries.tokens):,} entries, up to number {max(own):,}, for "
            f"{classes:,} classes: not used"
        )
    named = sum(0 <= number < classes for number in entries.tokens)
    if named and named < least * classes:
        raise LabelCountError(f"{name} has {named:,} entries for {classes:,} classes: not used")
    if not named:
        raise LabelCountError(f"{name} has no entry for any of the {classes:,} classes: not used")


def _vocabulary(entries: Entries, classes: int, source: str) -> Vocabulary:
    tokens = {k: token for k, token in entries.tokens.items() if 0 <= k < classes}
    end = max(tokens) + 1
    raw = tuple(tokens.get(k, f"<row {k}>") for k in range(classes))
    labels = raw
    written = entries.byte_level or entries.bytes_as_characters
    if written:
        decoded = from_byte_level if entries.byte_level else from_bytes_as_characters
        labels = tuple(
            decoded(token) if k in tokens and k not in entries.literal else token
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
    if entries.renumbered:
        notes.append(
            f"{_count(len(entries.renumbered), 'added token')} that the library gives another "
            "number than its files say: the library's was taken"
        )
    twice = len(raw) - len(set(raw))
    if twice:
        notes.append(f"{_count(twice, 'token')} spelled as an earlier one")
    return Vocabulary(
        labels,
        source,
        special=tuple(sorted(special - unused)),
        unused=tuple(sorted(unused)),
        padding=tuple(range(end, classes)),
        tokens=raw if written else None,
        notes=tuple(notes),
    )


def _named(tokens: Sequence[str], test: Callable[[str], bool]) -> tuple[int, ...]:
    return tuple(k for k, token in enumerate(tokens) if test(token))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _candidates(
    folder: Path, beside: Beside, lists_only: bool
) -> Iterator[tuple[str, Callable[[], Entries]]]:
    """Files that may hold the vocabulary, the surest first, and how each is read."""
    try:
        names = sorted(
            path.name for _, path in zip(range(_MOST_FILES), folder.iterdir(), strict=False)
        )
    except OSError:
        return
    kind = beside.kind.name
    language = beside.settings.get("target_lang")

    def completed(read: Callable[[Path], Entries], name: str) -> Entries:
        entries = read(folder / name)
        complete(entries, beside, fast_file=name == "tokenizer.json")
        return entries

    def counted(path: Path) -> Entries:
        entries = files.counted_lines(files.read_lines(path))
        if entries is None:
            raise UncorkError(f"{path.name} is not a fairseq dictionary")
        return entries

    def tabled(path: Path) -> Entries:
        return files.table(files.read_json(path), language)

    def lines(path: Path) -> Entries:
        found = files.read_lines(path)
        return ("bpe.codes" in names and files.counted_lines(found)) or files.lines_of(found)

    def listed(path: Path) -> Entries:
        found = files.read_lines(path)
        text = "\n".join(found)
        labels, _ = lines_of_text(text, len(found), number_last=path.name == "tokens.txt")
        return files.lines_of(labels)

    readers: list[tuple[str, Callable[[Path], Entries]]] = []
    if not lists_only:
        readers += [("tokenizer.json", lambda p: files.tokenizer_json(files.read_json(p)))]
        readers += [(name, tabled) for name in _TABLES]
        readers += [("tekken.json", lambda p: files.tekken(files.read_json(p)))]
        readers += [("vocab.txt", lines), ("prophetnet.tokenizer", lines)]
        if kind == "Bartpho":
            readers += [("dict.txt", counted)]
        models = [n for n in names if n.endswith(_PIECES) and kind not in _TABLE_CLASSES]
        readers += [(n, functools.partial(_pieces, beside)) for n in _target_first(models)]
        yamls = [n for n in names if re.fullmatch(r".*vocab.*\.ya?ml", n)]
        readers += [
            (n, lambda p: files.yaml_table(files.read_lines(p))) for n in _target_first(yamls)
        ]
        dictionaries = [n for n in names if re.fullmatch(r"dict(\..*)?\.txt", n)]
        readers += [(name, counted) for name in _target_first(dictionaries)]
    readers += [(name, listed) for name in _LISTS]
    for name, read in readers:
        if name in names:
            if name in _LISTS:
                yield name, functools.partial(read, folder / name)
            else:
                yield name, functools.partial(completed, read, name)
    if kind in BYTES_ALONE and not lists_only:
        yield f"the bytes of {kind}Tokenizer", functools.partial(_bytes_alone, beside)


def _bytes_alone(beside: Beside) -> Entries:
    entries = bytes_alone(beside)
    complete(entries, beside, fast_file=False)
    return entries


def _pieces(beside: Beside, path: Path) -> Entries:
    """A SentencePiece model, or tiktoken's ranks under the same name."""
    data = files.read_bytes(path)
    ranks = files.tiktoken_lines(data.decode("ascii", "replace").split("\n")[:-1])
    return ranks or sentencepiece(data, beside)


def _target_first(names: list[str]) -> list[str]:
    """The output's vocabulary before the input's, where names tell them apart."""
    return sorted(names, key=lambda name: (not _TARGET.search(name), name))


def _by_content(path: Path, beside: Beside) -> Entries | None:
    """The entries of a file that shows by itself that it is a tokenizer's; None if it is not."""
    if path.suffix in _PIECES:
        entries = _pieces(beside, path)
    elif path.suffix in (".yml", ".yaml"):
        return files.yaml_table(files.read_lines(path))
    elif path.suffix != ".json":
        return None
    else:
        try:
            data = files.read_json(path)
        except UncorkError:
            return None  # the reader of plain labels has the better message
        if isinstance(data, dict) and isinstance(data.get("model"), dict):
            entries = files.tokenizer_json(data)
            # Settings that lie beside a tokenizer.json of another name are another's.
            own = beside if path.name == "tokenizer.json" else Beside()
            complete(entries, own, fast_file=True)
            return entries
        if path.name == "tekken.json":
            return files.tekken(data)
        if path.name not in _TABLES:
            return None
        entries = files.table(data)
    complete(entries, beside, fast_file=False)
    return entries


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
