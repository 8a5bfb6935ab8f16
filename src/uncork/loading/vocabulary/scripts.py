"""The script a label is written in, by the Unicode names of its letters."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from uncork.loading.vocabulary.token_text import bare

NONE, MIXED = "NONE", "MIXED"  # no letter at all; letters of several scripts

# Unicode names begin with the script: "CYRILLIC SMALL LETTER A". These begin with something else.
_NO_SCRIPT = {
    "COMBINING", "MODIFIER", "VARIATION", "VEDIC", "MATHEMATICAL", "MUSICAL", "ZNAMENNY", "DOUBLE",
    "VERTICAL", "SCRIPT", "BLACK", "UNNAMED", "CARON", "TURNED", "SUPERSCRIPT", "INFORMATION",
}  # fmt: skip
_SAME = {"HENTAIGANA": "HIRAGANA", "IDEOGRAPHIC": "CJK", "CJK": "CJK"}
_TWO_WORDS = {"OLD", "NEW", "OL", "TAI", "LINEAR"}  # OLD ITALIC and OLD PERSIAN are two scripts
_OTHER_NAMES = {
    "HAN": {"CJK"},
    "CHINESE": {"CJK"},
    "KANJI": {"CJK"},
    "HANZI": {"CJK"},
    "KOREAN": {"HANGUL"},
    "KANA": {"HIRAGANA", "KATAKANA"},
    "JAPANESE": {"HIRAGANA", "KATAKANA", "CJK"},
    "CANADIAN ABORIGINAL": {"CANADIAN"},
}


def script_of(label: str) -> str | None:
    """The script of a label's letters (LATIN, CYRILLIC, CJK, …); None where it has not just one.

    Digits, punctuation, symbols and spaces belong to every script and are dropped, and so are the
    marks of subword tokenizers (▁, ##, @@, </w>, <0x0A>). Compatibility forms count as the letters
    they stand for, and a vowel sign or accent counts if its name tells the script.
    """
    found = scripts_of(label)
    return next(iter(found)) if len(found) == 1 else None


def scripts_of(label: str) -> frozenset[str]:
    """Every script that a label has letters of."""
    text = bare(label)
    if text.isascii():
        return _LATIN if any(c.isalpha() for c in text) else frozenset()
    return frozenset(
        script for c in unicodedata.normalize("NFKC", text) if (script := _script(c)) is not None
    )


_LATIN = frozenset({"LATIN"})


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str | None:
    if unicodedata.category(character)[0] not in "LM":
        return None
    words = unicodedata.name(character, "UNNAMED").replace("-", " ").split()
    first = words[0]
    if first in _NO_SCRIPT or "PROLONGED" in words:  # ー goes with either kana
        return None
    if first in _TWO_WORDS and len(words) > 1:
        return f"{first} {words[1]}"
    return _SAME.get(first, first)


def wanted_scripts(name: str) -> frozenset[str]:
    """The scripts a user means by a name: CYRILLIC, Han, Old_Italic, JAPANESE (three at once)."""
    wanted = " ".join(name.upper().replace("_", " ").replace("-", " ").split())
    if wanted in _OTHER_NAMES:
        return frozenset(_OTHER_NAMES[wanted])
    words = wanted.split() or [""]
    return frozenset({" ".join(words[: 2 if words[0] in _TWO_WORDS else 1])})
