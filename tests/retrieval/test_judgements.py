"""Relevance judgements: TREC's and BEIR's forms, and files that are neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.retrieval import Judgements, read_judgements
from uncork.retrieval.judgements import matched_queries, read_ids

ITEMS = Items(np.eye(4), labels=("d1", "d2", "d3", "7"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "qrels"


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d1 1\nq1 0 d3 2\nq1 0 d2 0\nq2 0 7 1\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td3\t2\nq1\td2\t0\nq2\t7\t1\n",
        "q1\t0\td1\t1\r\nq1\t0\td3\t2\r\n\r\nq2\t0\t7\t1\r\n",
        "\ufeffq1\td1\t1\nq1\td3\t2\nq2\t7\t1",
        '{"query-id": "q1", "corpus-id": "d1", "score": 1}\n{"query-id": "q1", "corpus-id": "d3"}\n'
        '{"query-id": "q2", "corpus-id": 7, "score": 1}\n',
        "q1 0 d1 1\nq1 0 d1 1\nq1 0 d3 1\nq2 0 7 1\nq3 0 d1 -1\n",
    ],
)
def test_trec_beir_and_json_lines_say_the_same(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    found = read_judgements(file, ITEMS)
    assert found.queries == ("q1", "q2")
    assert [ids.tolist() for ids in found.relevant] == [[0, 2], [3]]


def test_grades_below_the_least_do_not_count(file: Path) -> None:
    file.write_text("q1 0 d1 1\nq1 0 d3 2\nq2 0 d1 1\n")
    found = read_judgements(file, ITEMS, 2)
    assert found.queries == ("q1",)
    assert found.relevant[0].tolist() == [2]


def test_items_without_labels_go_by_number(file: Path) -> None:
    file.write_text("q 0 2 1\n")
    assert read_judgements(file, Items(np.eye(4))).relevant[0].tolist() == [2]


def test_items_that_are_not_there_are_counted(file: Path) -> None:
    file.write_text("q 0 d1 1\nq 0 nowhere 1\n")
    found = read_judgements(file, ITEMS)
    assert found.relevant[0].tolist() == [0]
    (note,) = found.notes
    assert note.startswith("1 judgements name items that are not in the index")
    assert note.endswith("nowhere")


def test_queries_of_which_nothing_is_there_are_named(file: Path) -> None:
    file.write_text("q 0 d1 1\nlost 0 nowhere 1\nnot-asked 0 nowhere 0\n")
    found = read_judgements(file, ITEMS)
    assert found.queries == ("q",)
    assert found.notes[1] == ("1 queries have no relevant item in the index and are left out: lost")


def test_judgements_that_contradict_each_other_are_counted(file: Path) -> None:
    file.write_text("q 0 d1 1\nq 0 d1 0\nq 0 d2 0\nq 0 d2 0\n")
    found = read_judgements(file, ITEMS)
    assert found.relevant[0].tolist() == [0]
    assert found.notes[0].startswith("1 judgements contradict an earlier one")


def test_an_id_of_several_items_is_refused_only_where_it_is_judged(file: Path) -> None:
    items = Items(np.eye(4), labels=("d1", "d2", "d1", "d3"))
    file.write_text("q 0 d2 1\n")
    assert read_judgements(file, items).relevant[0].tolist() == [1]
    file.write_text("q 0 d1 1\n")
    with pytest.raises(UncorkError, match=r"the id of several items \(0 and 2"):
        read_judgements(file, items)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no judgement is in it"),
        (b"\xef\xbb\xbf\r\n \r\n", "no judgement is in it"),
        (b"query-id\tcorpus-id\tscore\r\n", "no judgement is in it"),
        (b"query-id,corpus-id,score\nq,d1,1\n", "line 1 has 1 fields"),
        (b"corpus-id\tquery-id\tscore\nd1\tq\t1\n", "the first of them names q"),
        (b"q 0 d1 1_0\n", "is not a number"),
        (b"q 0 d\x00 1\n", r"names d\\x00"),
        (b" " * 9000, "line 1 has more than 4,096 characters"),
        (b'{"q": {"d1": 1}}', "line 1 is not a judgement"),
        (b"q 0 d1 0\n", "no judgement of 1 is 1 or more"),
        (b"q 0 nowhere 1\n", "no judgement names an item of the index"),
        (b"q d1\n", "line 1 has 2 fields"),
        (b"q 0 d1 1 5 6\n", "line 1 has 6 fields"),
        (b"q 0 d1 1\nq 0 d2 many\n", "line 2: the relevance 'many' is not a number"),
        (b"q 0 d1 nan\n", "is not a number"),
        (b"q 0 d1 1e999\n", "is not a number"),
        (b"\xff\xfe\x00q", "not text in UTF-8"),
        (b"\x80\x04\x95pickle", "not text in UTF-8"),
        (b"q" * 9000, "not a judgement"),
        (b'{"query-id": "q"}\n', "line 1 is not a judgement"),
        (b"{" * 3000, "line 1 is not a judgement"),
    ],
)
def test_hostile_files_are_refused_in_one_line(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    with pytest.raises(UncorkError, match=words) as refused:
        read_judgements(file, ITEMS)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read in (lambda path: read_judgements(path, ITEMS), read_ids):
        with pytest.raises(UncorkError, match="no such file"):
            read(tmp_path / "none")


def test_ids_are_lines_lists_or_beir_s_json(file: Path) -> None:
    for text in ("a\nb\n", '["a", "b"]', '{"_id": "a", "text": "…"}\n{"_id": "b"}\n'):
        file.write_text(text, encoding="utf-8")
        assert read_ids(file) == ("a", "b")
    for text in ("[1, [2]]", '{"text": "no id"}', "[1", '{"_id": '):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UncorkError):
            read_ids(file)


def test_queries_are_matched_by_name_or_by_number() -> None:
    judged = Judgements(("1", "0"), (np.array([0]), np.array([1])))
    vectors = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert matched_queries(judged, vectors, None).tolist() == [[0, 1], [1, 0]]
    assert matched_queries(judged, vectors, ("1", "0")).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(UncorkError, match="has no vector: it is not among the query ids"):
        matched_queries(judged, vectors, ("x", "0"))
    with pytest.raises(UncorkError, match="3 query ids for 2 query vectors"):
        matched_queries(judged, vectors, ("x", "0", "1"))
    with pytest.raises(UncorkError, match="query 1 has 2 vectors"):
        matched_queries(judged, np.eye(3, 2), ("1", "0", "1"))
    named = Judgements(("what",), (np.array([0]),))
    with pytest.raises(UncorkError, match="give --query-ids"):
        matched_queries(named, vectors, None)


def test_every_set_of_a_size_is_listed_once() -> None:
    found = Judgements.every(46, 2)
    assert len(found) == 1035
    assert len(set(found.queries)) == 1035
    with pytest.raises(UncorkError, match="more than 1,000,000"):
        Judgements.every(1000, 5)
    for size in (0, 46):
        with pytest.raises(UncorkError, match="expected 1 to 45"):
            Judgements.every(46, size)
