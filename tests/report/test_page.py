"""The report: one file, no requests, and labels that stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from uncork import Ball, Box, Head, Unbounded, audit
from uncork.core.errors import UncorkError
from uncork.reach.outlooks import Outlook
from uncork.report.page import report_page
from uncork.theory.random_heads import random_head

HOSTILE = ["<script>alert(1)</script>", "\x00", "\u202eevil", "\ud800", "</script><b>", "{{data}}"]


def page_of(weight: object, **options: object) -> str:
    return report_page(audit(Head(np.asarray(weight, dtype=float), **options)))  # type: ignore[arg-type]


@pytest.fixture
def page() -> str:
    corners = [[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0.1], [0.1, 0]]
    return page_of(corners, labels=HOSTILE, source="a\"<b>&'.npz")


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def embedded(page: str) -> dict:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(block)


def unpacked(text: str, kind: str) -> list:
    return np.frombuffer(base64.b64decode(text), dtype=kind).tolist()


def test_the_answer_is_a_sentence(page: str) -> None:
    assert "2 of the 6 classes can never be the argmax, whatever the input." in page
    everything = page_of(np.eye(3))
    assert "Every one of the 3 classes can be the argmax." in everything
    twice = page_of([[1.0], [1.0], [-1.0]])
    assert "2 are equal to another: first only in a tie." in twice


def test_nothing_is_asked_of_any_other_machine(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(|\bimport ", page)
    for tag, attributes in Elements(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "form")
        assert not {"src", "href", "style"} & set(attributes)
    assert "default-src 'none'" in page
    assert "unsafe" not in page


def test_labels_stay_text(page: str) -> None:
    assert [tag for tag, _ in Elements(page).tags].count("script") == 2
    assert "<b>&" not in page
    assert not {"\x00", "\u202e", "\ud800"} & set(page)
    (block,) = re.findall(r'id="data">(.*?)</script>', page, re.S)
    assert not {"<", ">", "&"} & set(block)
    assert embedded(page)["labels"] == HOSTILE


def test_the_page_carries_verdicts_margins_and_who_steals_a_place(page: str) -> None:
    data = embedded(page)
    assert unpacked(data["verdicts"], "u1") == [1, 1, 1, 1, 2, 2]
    margins = unpacked(data["margins"], "<f8")
    assert all(margin > 0 for margin in margins[:4])
    assert all(margin <= 0 for margin in margins[4:])
    assert unpacked(data["norms"], "<f4") == pytest.approx([2**0.5] * 4 + [0.1] * 2)
    mixtures = data["mixtures"]
    assert unpacked(mixtures["of"], "<i4") == [4, 5]
    shares = unpacked(mixtures["shares"], "<f4")
    assert set(unpacked(mixtures["classes"], "<i4")) <= {0, 1, 2, 3}
    assert len(shares) == sum(unpacked(mixtures["counts"], "u1"))


def test_neighbours_are_those_that_an_exhaustive_search_finds() -> None:
    head = random_head(60, 4, bias=True, seed=3)
    result = audit(head)
    data = embedded(report_page(result))
    near = np.array(unpacked(data["nearest"]["classes"], "<i4")).reshape(60, -1)
    apart = np.linalg.norm(head.weight[:, None] - head.weight[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (near == np.argsort(apart, axis=1)[:, : near.shape[1]]).all()
    won = np.array(unpacked(data["runners_up"]["of"], "<i4"))
    assert won.tolist() == result.argmaxable.tolist()
    others = np.array(unpacked(data["runners_up"]["classes"], "<i4")).reshape(len(won), -1)
    leads = np.array(unpacked(data["runners_up"]["values"], "<f4")).reshape(len(won), -1)
    for t, next_ones, lead in zip(won, others, leads, strict=True):
        z = head.weight @ result.witness(t) + head.bias
        order = np.argsort(-z)
        assert order[0] == t
        assert next_ones.tolist() == order[1 : 1 + len(next_ones)].tolist()
        assert lead == pytest.approx(z[t] - z[next_ones], rel=1e-5)
        assert lead[0] >= result.margin(t) * (1 - 1e-6)


def test_how_near_lost_classes_come_is_shown_where_it_is_known() -> None:
    head = random_head(30, 2, seed=1)
    result = audit(head)
    assert embedded(report_page(result))["outlook"] is None
    lost = result.unargmaxable
    ranks = np.arange(len(lost)) + 2
    known = Outlook(
        lost, np.full(len(lost), 0.2), np.full(len(lost), 0.25), ranks, ranks + 1,
        fingerprint=head.fingerprint,
    )  # fmt: skip
    data = embedded(report_page(result, outlook=known))["outlook"]
    assert unpacked(data["of"], "<i4") == lost.tolist()
    assert unpacked(data["probability_upper"], "<f8") == [0.25] * len(lost)
    assert unpacked(data["best_rank_lower"], "<f8") == ranks.tolist()
    with pytest.raises(UncorkError, match="other weights"):
        report_page(audit(random_head(30, 2, seed=2)), outlook=known)


def test_only_the_style_and_script_written_here_may_act(page: str) -> None:
    for tag in ("style", "script"):
        text = page.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page


def test_every_marker_is_filled(page: str) -> None:
    assert set(re.findall(r"\{\{\w+\}\}", page)) == {"{{data}}"}  # the label of a class


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (Box(100), "each feature between −100 and 100"),
        (Box(-0.25, np.inf), "each feature at least −0.25"),
        (Box([0.0, 1.0], [2.0, np.inf]), "each feature in its own range, all within 0 and ∞"),
        (Ball(25_000), "Euclidean length at most 25,000"),
        (Unbounded(), "every input there is"),
    ],
)
def test_the_assumption_is_in_words(domain: object, words: str) -> None:
    assert words in page_of(np.eye(2), domain=domain)


def test_undecided_and_asked_are_said() -> None:
    head = Head(np.array([[1.0], [-1.0], [0.0]]))
    assert "1 more may be unargmaxable" in report_page(audit(head, approximate=True, patience=9))
    assert "1 of the 1 classes asked about can never" in report_page(audit(head, classes=[2]))
