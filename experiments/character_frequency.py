"""How common a character is in a language, from the word list inside the package wordfreq.

wordfreq 3.1.1 (Speer 2022; its data are CC BY-SA 4.0) lists words with their frequency in text of
several kinds. A character's frequency here is the sum over the words it stands in. Its Chinese list
is written in simplified characters only: traditional forms are absent from it, not rare.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from shipped_catalogue import unpack

from uncork import UncorkError

PACKAGE = "wordfreq==3.1.1"
LANGUAGES = ("zh", "ja")


def word_list(language: str, folder: Path) -> Path:
    """The word list's file, from the folder or else out of the package."""
    members = [f"wordfreq/data/large_{one}.msgpack.gz" for one in {*LANGUAGES, language}]
    own = folder / PACKAGE.replace("==", "-")
    if not all((own / member).is_file() for member in members):
        unpack(PACKAGE, members, own)
    return own / f"wordfreq/data/large_{language}.msgpack.gz"


def character_frequency(path: Path) -> dict[str, float]:
    """Occurrences of each character in a million."""
    try:
        import msgpack
    except ImportError:
        raise UncorkError("word lists are read with msgpack: pip install msgpack") from None
    with gzip.open(path) as file:
        header, *steps = msgpack.load(file, raw=False)
    if header != {"format": "cB", "version": 1}:
        raise UncorkError(f"{path} is not a word list of the kind this reads: {header}")
    found: dict[str, float] = {}
    for centibels, words in enumerate(steps):  # words as rare as 10^(−centibels / 100)
        for word in words:
            for character in word:
                found[character] = found.get(character, 0.0) + 10 ** (-centibels / 100)
    total = sum(found.values())
    return {character: 1e6 * value / total for character, value in found.items()}
