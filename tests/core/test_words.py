"""Words: an index is spoken of as items and queries, everything else as classes and inputs."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from uncork.core.reading import Reading, reading_from, words_of
from uncork.core.words import CLASSES, ITEMS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3 of the 9 classes can never be the argmax, whatever the input.",
         "3 of the 9 items can never be retrieved first, whatever the query."),
        ("Never the argmax", "Never retrieved first"),
        ("A class has an input", "An item has a query"),
        ("unargmaxable", "never retrieved"),
        ("behind an unargmaxable class", "behind an item that is never retrieved"),
        ("subclass, classify, first-class, inputs", "subclass, classify, first-class, queries"),
    ],
)  # fmt: skip
def test_a_text_about_classes_is_said_of_items(text: str, said: str) -> None:
    assert ITEMS.say(text) == said
    assert CLASSES.say(text) == text


def test_markup_keeps_its_attributes_and_markers() -> None:
    markup = (
        '<p class="classes" id="class" aria-label="A class">{{classes}} a class <b>input</b></p>'
    )
    assert ITEMS.say_in_markup(markup) == (
        '<p class="classes" id="class" aria-label="An item">{{classes}} an item <b>query</b></p>'
    )


def test_nothing_of_the_report_speaks_of_classes_where_there_are_items() -> None:
    template = files("uncork.report").joinpath("page.html").read_text("utf-8")
    text = re.sub(r"<[^>]*>|\{\{\w+\}\}", " ", ITEMS.say_in_markup(template))
    assert not re.findall(r"\b(class|classes|inputs?|argmaxable|unargmaxable)\b", text)
    assert not re.findall(r"\b(a item|an query)\b", text, re.IGNORECASE)


def test_longer_phrases_stand_before_the_words_in_them() -> None:
    phrases = [phrase for phrase, _ in ITEMS.instead]
    for k, phrase in enumerate(phrases):
        assert phrase == phrase.lower()
        assert not any(
            phrase != later and phrase in later.split("'")[0].split() for later in phrases[k:]
        )


def test_a_reading_says_which_words_and_one_from_before_says_classes() -> None:
    reading = Reading("W", words=ITEMS.name)
    assert words_of(reading_from(reading.as_dict())) is ITEMS
    old = {k: v for k, v in reading.as_dict().items() if k != "words"}
    assert words_of(reading_from(old)) is CLASSES
    assert words_of(reading_from({**old, "words": "something else"})) is CLASSES
    assert words_of(None) is CLASSES
    assert ("labels from", "none; items are numbered") in reading.rows()
