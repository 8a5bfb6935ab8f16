"""Words: what a head's classes and inputs are called where it is a vector index.

Text for people is written once, about classes and inputs. An index is the same mathematics under
other names, and this table is the only place that knows them: `say` puts them into a text, and the
pages' scripts are given the same table (`assets/text.js`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Words:
    """What to say instead: (phrase, its other name), longer phrases before the words in them."""

    name: str
    instead: tuple[tuple[str, str], ...] = ()

    def say(self, text: str) -> str:
        """The text in these words; a capital letter at the beginning of a phrase stays one."""
        if not self.instead:
            return text
        return self._pattern.sub(lambda found: self._other(found[0]), text)

    def say_in_markup(self, markup: str) -> str:
        """The same for the text of HTML, and for the attributes that are read out or shown."""
        if not self.instead:
            return markup
        return _PARTS.sub(lambda part: self._said(part[0]), markup)

    def _said(self, part: str) -> str:
        if part.startswith("{{"):  # a marker of the template
            return part
        if not part.startswith("<"):
            return self.say(part)
        return _SHOWN.sub(lambda found: f'{found[1]}="{self.say(found[2])}"', part)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        phrases = "|".join(re.escape(phrase) for phrase, _ in self.instead)
        return re.compile(rf"(?<![\w-])(?:{phrases})(?![\w-])", re.IGNORECASE)

    def _other(self, found: str) -> str:
        other = dict(self.instead)[found.lower()]
        return other[0].upper() + other[1:] if found[0].isupper() else other


_PARTS = re.compile(
    r"<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>|\{\{\w+\}\}|[^<{]+", re.DOTALL
)
_SHOWN = re.compile(r'\b(aria-label|placeholder|title)="([^"]*)"')

CLASSES = Words("classes")
ITEMS = Words(
    "items",
    (
        ("what it can never say", "what it can never find"),
        ("the prediction is the argmax of", "what comes first is the argmax of"),
        ("can never be the argmax", "can never be retrieved first"),
        ("if the model can only ever produce", "if the encoder can only ever produce"),
        ("an unargmaxable class", "an item that is never retrieved"),
        ("the whole head", "the whole index"),
        ("in the vocabulary", "in the index"),
        ("the argmax", "retrieved first"),
        ("nobody asks for a padding row", "nobody asks for padding"),
        ("length of the class's row", "length of the item's vector"),
        ("length of the row", "length of the vector"),
        ("length of its row", "length of its vector"),
        ("length of its own row", "length of its own vector"),
        ("lengths of rows", "lengths of vectors"),
        ("row length", "vector length"),
        ("nearest rows", "nearest vectors"),
        ("odd rows", "odd vectors"),
        ("such rows", "such vectors"),
        ("a row counts", "a vector counts"),
        ("a class", "an item"),
        ("an input", "a query"),
        ("class's", "item's"),
        ("classes", "items"),
        ("class", "item"),
        ("inputs", "queries"),
        ("input", "query"),
        ("unargmaxable", "never retrieved"),
        ("argmaxable", "retrievable"),
    ),
)
BY_NAME = {words.name: words for words in (CLASSES, ITEMS)}
