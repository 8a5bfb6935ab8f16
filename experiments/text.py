"""English text as numbers: sentences split once into three parts, and a word vocabulary.

    python experiments/text.py deu-eng.tsv.gz --out tokens.npz    (once; then pass tokens.npz)

A source is one of
- a table of tab-separated sentence pairs, English first (`.tsv`, `.tsv.gz`), such as Tatoeba's from
  manythings.org/anki;
- any other text file, a sentence a line (`.gz` too);
- a folder with `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`, which keep their own split;
- an `.npz` that this module wrote.

The same English sentence stands on many lines of Tatoeba, with a translation each. So each counts
once, and a sentence is in one part only; the order is shuffled, as such files go by length.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError

UNKNOWN, END = "<unk>", "<eos>"
PARTS = ("train", "valid", "test")
HELD_OUT = 0.05  # of the sentences, for validation and for test each
# Words with their apostrophes, numbers with their points, and every other sign on its own.
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+(?:[.,:]\d+)*|[^\w\s]|_")


@dataclass(frozen=True)
class Text:
    """Three streams of word numbers, every sentence followed by `<eos>`.

    Words are numbered by their frequency in `train`, most frequent first, after `<unk>` and
    `<eos>`; `counts` are those frequencies.
    """

    words: list[str]
    train: np.ndarray  # (tokens,) int32
    valid: np.ndarray
    test: np.ndarray
    counts: np.ndarray  # (words,) int64

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    def save(self, path: str | Path) -> None:
        joined = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        kind = np.uint16 if self.vocabulary <= 1 << 16 else np.int32
        parts = {name: getattr(self, name).astype(kind) for name in PARTS}
        np.savez_compressed(path, words=joined, **parts)


def read_text(
    source: str | Path, vocabulary: int = 10_000, seed: int = 0, columns: int = 1
) -> Text:
    """The text of a source, with at most so many words (`<unk>` and `<eos>` among them). Of a
    table, sentences of the first column; with two, those of the other language too."""
    if vocabulary < 3:
        raise UncorkError(f"a vocabulary of {vocabulary} leaves no room for words")
    path = Path(source)
    if not path.exists():
        raise UncorkError(f"there is no text {path}: name a file or a folder with ptb.*.txt")
    if path.suffix == ".npz":
        return _read_prepared(path, vocabulary)
    if path.is_dir():
        parts = [
            [line.split() for line in _lines(path / f"ptb.{name}.txt") if line] for name in PARTS
        ]
    else:
        parts = _split([_TOKEN.findall(one) for one in _sentences(path, columns)], path, seed)
    return _numbered(parts, vocabulary)


def _lines(path: Path) -> Iterator[str]:
    try:
        opening = gzip.open if path.suffix == ".gz" else open
        with opening(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield line.strip()
    except FileNotFoundError:
        raise UncorkError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UncorkError(f"{path} cannot be read as text: {error}") from None


def _sentences(path: Path, columns: int) -> list[str]:
    """Distinct sentences in the file's order; the first columns of a table."""
    if ".tsv" in path.suffixes:
        found = (one for line in _lines(path) for one in line.split("\t")[:columns])
        return [one for one in dict.fromkeys(each.strip() for each in found) if one]
    return [one for one in dict.fromkeys(_lines(path)) if one]


def _split(sentences: list[list[str]], path: Path, seed: int) -> list[list[list[str]]]:
    held = int(len(sentences) * HELD_OUT)
    if not held:
        raise UncorkError(
            f"{path} has {len(sentences)} distinct sentences: too few to hold any out"
        )
    order = np.random.default_rng(seed).permutation(len(sentences)).tolist()
    shuffled = [sentences[i] for i in order]
    return [shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]]


def _numbered(parts: list[list[list[str]]], vocabulary: int) -> Text:
    seen = Counter(word for sentence in parts[0] for word in sentence)
    for special in (UNKNOWN, END):  # the Penn Treebank has <unk> in its text
        seen.pop(special, None)
    # Equally frequent words in the alphabet's order, so that the numbers do not depend on the file.
    ranked = sorted(seen, key=lambda word: (-seen[word], word))[: vocabulary - 2]
    words = [UNKNOWN, END, *ranked]
    number = {word: i for i, word in enumerate(words)}
    streams = []
    for sentences in parts:
        flat: list[int] = []
        for sentence in sentences:
            flat.extend(number.get(word, 0) for word in sentence)
            flat.append(1)
        streams.append(np.array(flat, dtype=np.int32))
    return Text(words, *streams, counts=np.bincount(streams[0], minlength=len(words)))


def _read_prepared(path: Path, vocabulary: int) -> Text:
    try:
        with np.load(path, allow_pickle=False) as file:
            words = bytes(file["words"]).decode().split("\n")
            train, valid, test = (file[name].astype(np.int32) for name in PARTS)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise UncorkError(f"{path} is no text that this module wrote: {error}") from None
    if len(words) > vocabulary:
        raise UncorkError(
            f"{path} was prepared with {len(words):,} words, not {vocabulary:,}: prepare it again"
        )
    return Text(words, train, valid, test, np.bincount(train, minlength=len(words)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Number a text once and keep it as .npz.")
    parser.add_argument("source", help="a .tsv or .tsv.gz of pairs, a text file, or the PTB folder")
    parser.add_argument("--out", required=True, help="the .npz to write")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    asked = parser.parse_args(arguments)
    text = read_text(asked.source, asked.vocabulary, asked.seed)
    Path(asked.out).parent.mkdir(parents=True, exist_ok=True)
    text.save(asked.out)
    unknown = float((text.test == 0).mean())
    print(
        f"{text.vocabulary:,} words; tokens: train {len(text.train):,}, valid {len(text.valid):,}, "
        f"test {len(text.test):,} ({unknown:.1%} of it <unk>); the rarest word was seen "
        f"{text.counts[2:].min()} times"
    )


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"text: {error}")
