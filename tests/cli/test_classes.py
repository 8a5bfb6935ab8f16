"""`--classes` picks classes by number, script, kind and pattern, and says what there is if none."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import regex

from uncork import Head, UncorkError
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.contents import Vocabulary
from uncork.loading.vocabulary.scripts import script_of, wanted_scripts

LABELS = [
    "<s>", "▁hello", "##ing", "wor</w>", "ab@@", "▁мир", "мир7!", "东", "東京タワー", "ひらがな",
    "42", "…", "a мир", "한국", "[unused3]", "<row 15>", " café", "<0xD0>", "ﬁ", "ि",
]  # fmt: skip
VOCABULARY = Vocabulary(tuple(LABELS), "here", special=(0,), unused=(14,), padding=(15,))
HEAD = Head(np.arange(2.0 * len(LABELS)).reshape(-1, 2), labels=LABELS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("0-2,5", [0, 1, 2, 5]),
        ("script:CYRILLIC", [5, 6]),
        ("script:cyrillic", [5, 6]),
        ("script:LATIN", [1, 2, 3, 4, 16, 18]),
        ("script:HAN", [7]),
        ("script:CJK", [7]),
        ("script:JAPANESE", [7, 8, 9]),
        ("script:KANA", [9]),
        ("script:hangul", [13]),
        ("script:DEVANAGARI", [19]),
        ("script:MIXED", [8, 12]),
        ("script:NONE", [10, 11, 17]),
        ("special", [0]),
        ("unused", [14]),
        ("padding", [15]),
        ("special, padding ,7", [0, 7, 15]),
        ("script:CYRILLIC,script:HAN,0", [0, 5, 6, 7]),
        ("label:^▁", [1, 5]),
        ("0,label:^[a-z]{2,}", [0, 3, 4]),
        ("ordinary", [k for k in range(20) if k not in (0, 14, 15)]),
    ],
)
def test_the_classes_named_are_chosen(text: str, expected: list[int]) -> None:
    assert chosen_classes(text, HEAD, VOCABULARY).tolist() == expected


def test_kinds_are_told_by_name_where_there_is_no_vocabulary() -> None:
    assert chosen_classes("special", HEAD).tolist() == [0]
    assert chosen_classes("unused", HEAD).tolist() == [14]
    assert 0 not in chosen_classes("script:LATIN", HEAD)


def test_a_file_may_name_them(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("0-1\n5\nscript:HAN\n", "utf-8")
    assert chosen_classes(f"@{tmp_path / 'ids'},9", HEAD).tolist() == [0, 1, 5, 7, 9]
    (tmp_path / "again").write_text("@again", "utf-8")
    with pytest.raises(UncorkError, match="cannot name a file"):
        chosen_classes(f"@{tmp_path / 'again'}", HEAD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("script:THAI", r"scripts there are: LATIN \(6\), "),
        ("script:\x1b[31m", r"written in '\\\\x1b"),
        ("words", "'words' is not a class number"),
        ("label:(", "not a regular expression"),
        ("label:zzz", "no label matches"),
        (" , ", "no class number"),
        ("20", "classes 0 to 19"),
        ("@\x00", "--classes file"),
    ],
)
def test_what_cannot_be_chosen_is_explained(text: str, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        chosen_classes(text, HEAD, VOCABULARY)


def test_a_kind_that_is_not_there_and_a_head_without_labels_are_explained() -> None:
    with pytest.raises(UncorkError, match="padding: there are none; 1 rows are special"):
        chosen_classes("padding", HEAD)
    for text in ("script:LATIN", "special", "label:a"):
        with pytest.raises(UncorkError, match="needs labels"):
            chosen_classes(text, Head(np.eye(2)))


SCRIPTS = [
    "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Tamil", "Thai",
    "Han", "Hiragana", "Katakana", "Hangul", "Georgian", "Armenian", "Ethiopic", "Khmer",
    "Tibetan", "Old_Italic", "Tai_Le", "Canadian_Aboriginal", "Cherokee",
]  # fmt: skip


def test_scripts_by_name_are_unicodes_own() -> None:
    """Of the letters that stand for themselves, 99 % and more have the Script property's script."""
    letters = [
        c
        for c in map(chr, range(0x20000))
        if unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lo")
        and unicodedata.normalize("NFKC", c) == c
    ]
    named = [script_of(c) for c in letters]
    everything = "".join(letters)
    for script in SCRIPTS:
        ours = {c for c, name in zip(letters, named, strict=True) if name in wanted_scripts(script)}
        theirs = set(regex.findall(rf"\p{{Script={script}}}", everything))
        assert len(theirs) > 20
        assert len(ours & theirs) >= 0.99 * len(ours | theirs), script
