"""A report's numbers and labels as JSON: whatever they are, they arrive as they are."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uncork.report.data import cut, embedded, packed

CHARACTERS = st.characters(exclude_categories=())  # lone surrogates and controls among them


class Text(HTMLParser):
    """The text of the one script on a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found = ""
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.found += data


@given(st.lists(st.text(CHARACTERS, max_size=20), max_size=5))
def test_text_comes_back_from_inside_a_page_as_it_was(labels: list[str]) -> None:
    text = embedded({"labels": labels})
    assert not {"<", ">", "&", "\u2028", "\u202e"} & set(text)
    text.encode("utf-8")  # no lone surrogate is left as it was
    page = Text(f'<script type="application/json">{text}</script>')
    assert json.loads(page.found) == {"labels": labels}


@pytest.mark.parametrize("kind", ["u1", "<i4", "<f4", "<f8"])
def test_arrays_come_back_from_base64(kind: str) -> None:
    array = np.arange(12).reshape(3, 4)[:, ::2]  # not in one piece
    back = np.frombuffer(base64.b64decode(packed(array, kind)), dtype=kind)
    assert back.tolist() == array.ravel().tolist()


def test_a_number_too_large_for_its_type_is_infinite_and_no_warning() -> None:
    back = np.frombuffer(base64.b64decode(packed(np.array([1e300]), "<f4")), dtype="<f4")
    assert np.isinf(back[0])


def test_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert cut("x" * 256) == "x" * 256
    assert cut("x" * 1257) == "x" * 256 + "… (1,257 characters)"
    assert cut("abc", 2) == "ab… (3 characters)"
