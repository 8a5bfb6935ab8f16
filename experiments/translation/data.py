"""Sentence pairs from a corpus on disk to padded arrays of subword units.

Tatoeba repeats itself: an English sentence has several translations, and so has a German one. Two
pairs that share either sentence, directly or through others, fall into the same part of the split,
so nothing in the test part was seen in training, on either side.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ("<pad>", "<s>", "</s>")
LONGEST = 120  # units of a sentence, with EOS
PARTS = ("train", "validation", "test")
MULTI30K = {"train": "train", "validation": "val", "test": "test_2016_flickr"}

Pair = tuple[str, str]  # German, English


@dataclass(frozen=True)
class Corpus:
    """The three parts; in validation and test each source stands once, with all its references."""

    train: list[Pair]
    validation: dict[str, list[str]]
    test: dict[str, list[str]]


def read_corpus(path: Path, held_out: int = 3000, seed: int = 0) -> Corpus:
    """A folder of Multi30k's files, or a file of Tatoeba's (English, tab, German), gzipped or not.

    `held_out`: sources in each of validation and test, where the corpus comes as one file.
    """
    if path.is_dir():
        tables = sorted(path.glob("*.tsv*"))
        if tables:
            return _split_table(tables[0], held_out, seed)
        return _read_multi30k(path)
    if path.is_file():
        return _split_table(path, held_out, seed)
    raise UncorkError(f"{path}: no such file or folder; give Tatoeba's table or Multi30k's folder")


def _lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def _read_multi30k(folder: Path) -> Corpus:
    parts: dict[str, list[Pair]] = {}
    for part, stem in MULTI30K.items():
        sides = []
        for language in ("de", "en"):
            found = sorted(folder.glob(f"{stem}.{language}*"))
            if not found:
                raise UncorkError(f"{folder}: {stem}.{language}.gz is not there")
            sides.append(_lines(found[0]))
        parts[part] = list(zip(*sides, strict=True))
    return Corpus(parts["train"], _references(parts["validation"]), _references(parts["test"]))


def _split_table(path: Path, held_out: int, seed: int) -> Corpus:
    pairs = []
    for number, line in enumerate(_lines(path), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise UncorkError(f"{path}, line {number}: expected English, a tab, German")
        pairs.append((fields[1], fields[0]))
    groups = connected_groups(pairs)
    order = np.random.default_rng(seed).permutation(len(groups))
    parts: dict[str, list[Pair]] = {"validation": [], "test": [], "train": []}
    sources = {"validation": 0, "test": 0}
    for index in order:
        part = next((p for p in sources if sources[p] < held_out), "train")
        members = [pairs[i] for i in groups[index]]
        parts[part] += members
        if part in sources:
            sources[part] += len({german for german, _ in members})
    if not parts["train"]:
        raise UncorkError(f"{path}: {len(pairs)} pairs leave nothing to train on; lower --held-out")
    return Corpus(parts["train"], _references(parts["validation"]), _references(parts["test"]))


def connected_groups(pairs: Sequence[Pair]) -> list[list[int]]:
    """Indices of pairs, grouped so that no sentence of either side is in two groups."""
    parent = list(range(len(pairs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[int, str], int] = {}
    for index, pair in enumerate(pairs):
        for side, sentence in enumerate(pair):
            other = first.setdefault((side, sentence), index)
            parent[root(index)] = root(other)
    groups = defaultdict(list)
    for index in range(len(pairs)):
        groups[root(index)].append(index)
    return list(groups.values())


def _references(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for german, english in pairs:
        references = found.setdefault(german, [])
        if english not in references:
            references.append(english)
    return found


def train_units(sentences: Iterator[str], units: int) -> Any:
    """Byte-level pair encoding: every text has an encoding, and decoding gives the text back."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise UncorkError("preparing a corpus needs `pip install tokenizers`") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=units,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


@dataclass(frozen=True)
class Prepared:
    """Arrays of units, padded on the right: sources end with EOS, targets begin with BOS."""

    arrays: dict[str, np.ndarray]  # "train.source" (N, S) int16 and so on
    source_units: int
    target_units: int

    def part(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.arrays[f"{name}.source"], self.arrays[f"{name}.target"]


def prepare(
    corpus: Corpus,
    folder: Path,
    *,
    source_units: int = 10_000,
    target_units: int = 10_000,
    joint: bool = False,
    longest: int = 62,
) -> Prepared:
    """Learn the units from the training part, encode all parts, write everything to `folder`."""
    if not 300 <= min(source_units, target_units) <= max(source_units, target_units) < 2**15:
        raise UncorkError(
            f"{source_units} and {target_units} units: there must be 300 (256 bytes are units) to "
            "32,767 (arrays are 16 bits wide)"
        )
    german, english = zip(*corpus.train, strict=True)
    if joint:
        source = target = train_units(iter([*german, *english]), target_units)
    else:
        source = train_units(iter(german), source_units)
        target = train_units(iter(english), target_units)
    pairs = {
        "train": corpus.train,
        # One reference is enough for the loss and the token accuracy; BLEU has them all.
        "validation": [(s, r[0]) for s, r in corpus.validation.items()],
        "test": [(s, r[0]) for s, r in corpus.test.items()],
    }
    arrays: dict[str, np.ndarray] = {}
    for part, both in pairs.items():
        left = [[*e.ids, EOS] for e in source.encode_batch([s for s, _ in both])]
        right = [[BOS, *e.ids, EOS] for e in target.encode_batch([t for _, t in both])]
        if part == "train":
            kept = [i for i in range(len(both)) if max(len(left[i]), len(right[i])) <= longest]
            left, right = [left[i] for i in kept], [right[i] for i in kept]
        else:  # what is tested is not chosen by its length, only cut to what a model can take
            left, right = _cut(left), _cut(right)
        arrays[f"{part}.source"], arrays[f"{part}.target"] = _padded(left), _padded(right)
    folder.mkdir(parents=True, exist_ok=True)
    source.save(str(folder / "source.json"))
    target.save(str(folder / "target.json"))
    sizes = {"source": source.get_vocab_size(), "target": target.get_vocab_size()}
    (folder / "units.json").write_text(json.dumps(sizes))
    for part in ("validation", "test"):
        references = list(getattr(corpus, part).values())
        (folder / f"{part}.references.json").write_text(json.dumps(references), "utf-8")
    np.savez_compressed(folder / "arrays.npz", **arrays)  # type: ignore[arg-type]
    return Prepared(arrays, sizes["source"], sizes["target"])


def load_prepared(folder: Path) -> Prepared:
    """What `prepare` wrote, without the tokenizers."""
    if not (folder / "arrays.npz").is_file():
        raise UncorkError(f"{folder}: nothing prepared there; run the prepare stage first")
    sizes = json.loads((folder / "units.json").read_text())
    with np.load(folder / "arrays.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return Prepared(arrays, sizes["source"], sizes["target"])


def _cut(rows: list[list[int]]) -> list[list[int]]:
    return [row if len(row) <= LONGEST else [*row[: LONGEST - 1], EOS] for row in rows]


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), PAD, np.int16)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


@dataclass(frozen=True)
class Batch:
    """Rows of a part, and how many columns of them are not all padding."""

    rows: slice  # into the order below
    source_length: int
    target_length: int


def lengths(side: np.ndarray) -> np.ndarray:
    return (side != PAD).sum(1)


def _round_up(values: np.ndarray, step: int) -> np.ndarray:
    return -(-values // step) * step


def batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens: int,
    rng: np.random.Generator | None = None,
) -> tuple[np.ndarray, list[Batch]]:
    """(order, batches): rows of similar length together, at most `tokens` target positions each.

    With `rng` ties and the sequence of batches are random: one epoch. Without, it is sorted.
    """
    count = len(source_lengths)
    # Few different shapes: a GPU's allocator and libraries prepare each one when it first comes.
    source_lengths, target_lengths = _round_up(source_lengths, 4), _round_up(target_lengths, 2)
    ties = np.arange(count) if rng is None else rng.permutation(count)
    order = np.lexsort((ties, source_lengths, target_lengths))
    source_lengths, target_lengths = source_lengths[order], target_lengths[order]
    found, start = [], 0
    while start < count:
        length = int(target_lengths[start])
        group_end = int(np.searchsorted(target_lengths, length, "right"))
        stop = min(start + max(tokens // length, 1), group_end)
        found.append(Batch(slice(start, stop), int(source_lengths[start:stop].max()), length))
        start = stop
    if rng is not None:
        rng.shuffle(found)
    return order, found
