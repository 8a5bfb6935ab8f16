"""Label sets: from lists, matrices and files, each counted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from uncork import Head, UncorkError
from uncork.labels import LabelSets
from uncork.labels.price import best_f1, price, wilson
from uncork.labels.result import LabelAudit
from uncork.labels.set_files import read_sets
from uncork.labels.thresholds import configured_thresholds, logit, read_thresholds

HEAD = Head(np.eye(4), labels=["a", "b", "c, d", "e"])
MATRIX = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]])


def as_lists(sets: LabelSets) -> dict[tuple[int, ...], int]:
    return {tuple(on.tolist()): int(n) for on, n in zip(sets.on, sets.counts, strict=True)}


def test_signs_say_which_labels_are_on_off_and_free() -> None:
    sets = LabelSets.of(3, [[0, 2]]).joined(LabelSets.question(3, [1], [0]))
    assert sets.signs().tolist() == [[1, -1, 1], [-1, 1, 0]]


def test_text_files_hold_names_numbers_and_the_empty_set(tmp_path: Path) -> None:
    path = tmp_path / "sets.txt"
    path.write_text("a,b\nc, d\n0 1\n-\n\n3\n", "utf-8")
    assert as_lists(read_sets(path, HEAD)) == {(0, 1): 2, (2,): 1, (): 1, (3,): 1}


@pytest.mark.parametrize("kind", ["npy", "npz", "sparse", "svmlight", "json"])
def test_every_kind_of_file_gives_the_same_sets(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"sets.{'npz' if kind == 'sparse' else kind}"
    if kind == "npy":
        np.save(path, MATRIX)
    elif kind == "npz":
        np.savez(path, y=MATRIX)
    elif kind == "sparse":
        sparse.save_npz(path, sparse.csr_matrix(MATRIX))
    elif kind == "svmlight":
        path.write_text("0,2 1:0.5 7:2\n 1:3\n0,2 2:1 # comment\n", "utf-8")
    else:
        path.write_text('[["a", 2], [], [0, "c, d"]]', "utf-8")
    assert as_lists(read_sets(path, HEAD)) == {(0, 2): 2, (): 1}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sets.txt", "a,x\n", "line 1: no label is called 'x'"),
        ("sets.txt", "9\n", "label 9 does not exist"),
        ("sets.txt", "", "no label set"),
        ("sets.json", "{}", "list of lists"),
        ("sets.json", "[", "damaged"),
        ("sets.npy", "hello", "damaged"),
        ("sets.svm", "x,1 2:3\n", "expected label numbers"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(UncorkError, match=message) as raised:
        read_sets(path, HEAD)
    assert "\n" not in str(raised.value)


def test_a_matrix_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="one column"):
        LabelSets.of_matrix(np.zeros((3, 5)), 4)
    with pytest.raises(UncorkError, match="other than 0 and 1"):
        LabelSets.of_matrix(np.full((3, 4), 2), 4)


def test_too_many_sets_of_one_size_ask_for_a_sample() -> None:
    with pytest.raises(UncorkError, match="sample"):
        LabelSets.of_size(10_000, 2)
    assert len(LabelSets.sample(10_000, 2, 7)) == 7


def test_f1_bounds_are_the_best_of_all_other_predictions() -> None:
    labels = 5
    for m in range(labels):
        for at in (None, 1, 2, 3):
            most = labels if at is None else at
            for infeasible in (False, True):
                best = 0.0
                for size in range(most + 1):
                    for right in range(min(size, m) + 1):
                        if size - right > labels - m or (infeasible and size == right == m):
                            continue
                        both = size + m
                        best = max(best, 1.0 if both == 0 else 2 * right / both)
                assert best_f1(m, infeasible, at) == pytest.approx(best)


def test_the_price_counts_examples() -> None:
    sets = LabelSets(3, tuple(np.array(s) for s in ([0], [1], [2])), counts=np.array([5, 3, 2]))
    audit = LabelAudit(
        sets, np.array([1, 2, 0], dtype=np.int8), np.zeros(3), "", np.zeros(3), HEAD.domain, 4
    )
    cost = price(audit, 1)
    assert (cost.examples, cost.infeasible_examples, cost.undecided_examples) == (10, 3, 2)
    assert cost.exact_match == pytest.approx(0.7)
    assert cost.f1 == pytest.approx(0.7 + 0.3 * 2 / 3)
    assert cost.f1_at == pytest.approx(0.7)


def test_wilsons_interval_holds_the_share() -> None:
    low, high = wilson(3, 100)
    assert low < 0.03 < high
    assert wilson(0, 100)[0] == 0.0
    assert wilson(100, 100)[1] == 1.0


def test_thresholds_are_probabilities_unless_logits_are_given(tmp_path: Path) -> None:
    assert read_thresholds("0.5", HEAD).tolist() == [0.0] * 4
    assert read_thresholds("0.2", HEAD, logits=True).tolist() == [0.2] * 4
    path = tmp_path / "t.txt"
    path.write_text("0.5\n0.5\n0.9\n0.1\n", "utf-8")
    assert read_thresholds(f"@{path}", HEAD)[2] == logit(0.9)
    for wrong in ("x", "1.5", "@nothing"):
        with pytest.raises(UncorkError):
            read_thresholds(wrong, HEAD)


def test_a_models_configuration_gives_thresholds(tmp_path: Path) -> None:
    assert configured_thresholds(str(tmp_path), HEAD) is None
    text = '{"thresholds": {"a": 0.5, "b": 0.25, "c, d": 0.5, "e": 0.5}}'
    (tmp_path / "config.json").write_text(text, "utf-8")
    found = configured_thresholds(str(tmp_path), HEAD)
    assert found is not None
    assert found[0].tolist() == [0.0, logit(0.25), 0.0, 0.0]
