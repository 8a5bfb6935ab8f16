"""`uncork labels`: which label sets, how they are printed, kept and checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.store import Store


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "m.npz"
    bias = (rng.normal(size=12) - 1).astype(np.float32)
    np.savez(path, weight=rng.normal(size=(12, 4)).astype(np.float32), bias=bias)
    return path


def test_every_pair_is_decided_proven_and_verified(run: Run, model: Path, tmp_path: Path) -> None:
    proofs, out = tmp_path / "p.npz", tmp_path / "o.json"
    ran = run("labels", model, "--active", 2, "--certificates", proofs, "--json", out)
    assert ran.status == 0
    assert "66 label sets" in ran.out
    found = json.loads(out.read_text("utf-8"))
    assert set(found["counts"]) == {"feasible", "infeasible", "undecided"}
    assert sum(found["counts"].values()) == len(found["sets"]) == 66
    assert found["counts"]["undecided"] == 0
    checked = run("verify", proofs, model, "--json", "-").json()
    assert checked["ok"]
    assert sum(checked["held"].values()) == 66


def test_certificates_of_other_weights_are_not_verified(
    run: Run, model: Path, tmp_path: Path
) -> None:
    proofs, other = tmp_path / "p.npz", tmp_path / "other.npz"
    run("labels", model, "--active", 1, "--certificates", proofs)
    np.savez(other, weight=np.random.default_rng(1).normal(size=(12, 4)), bias=np.zeros(12))
    ran = run("verify", proofs, other)
    assert ran.status == 1
    assert "NOT VERIFIED" in ran.out


def test_data_has_a_price(run: Run, model: Path, tmp_path: Path) -> None:
    sets = tmp_path / "y.npy"
    np.save(sets, (np.random.default_rng(0).random((40, 12)) < 0.3).astype(int))
    ran = run("labels", model, "--sets", sets, "--f1-at", 3, "--json", "-")
    cost = ran.json()["price"]
    assert cost["examples"] == 40
    assert cost["exact_match_at_most"] == pytest.approx(1 - cost["infeasible_examples"] / 40)
    assert 0 < cost["f1_at_k_at_most"] <= 1


def test_a_question_leaves_other_labels_free(run: Run, model: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"label {i}" for i in range(12)), "utf-8")
    ran = run("labels", model, "--labels", names, "--containing", "label 1", "--without", "label 5")
    assert "label 1 without label 5: possible" in ran.out


def test_too_many_sets_are_sampled_with_an_interval(run: Run, model: Path) -> None:
    found = run("labels", model, "--active", 3, "--sample", 20, "--json", "-").json()
    assert (found["sample"]["sets"], found["sample"]["of"]) == (20, 220)
    low, high = found["sample"]["interval_95"]
    assert low <= found["sample"]["infeasible_share"] <= high


def test_the_gate_fails_on_infeasible_sets(run: Run, model: Path) -> None:
    assert run("labels", model, "--active", 2, "--fail-if-infeasible").status == 1


def test_a_result_is_kept_in_the_store_and_on_a_page(run: Run, model: Path, tmp_path: Path) -> None:
    store, page = tmp_path / "s.db", tmp_path / "r.html"
    ran = run("labels", model, "--active", 1, "--store", store, "--report", page,
              "--probability", 1)  # fmt: skip
    assert "stored as label audit 1" in ran.out
    with Store(store) as opened:
        (row,) = opened.label_audits()
        assert row["sets"] == 12
        assert len(opened.label_sets(row["id"])) == 12
        assert len(opened.label_sets(row["id"], "infeasible")) == row["infeasible"]
    text = page.read_text("utf-8")
    assert "label sets can" in text
    assert "<script" not in text


def test_the_same_question_is_stored_once(run: Run, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    for _ in range(2):
        run("labels", model, "--active", 1, "--store", store)
    with Store(store) as opened:
        assert len(opened.label_audits()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which sets?"),
        (("--active", 1, "--containing", "1"), "which sets?"),
        (("--containing", "99"), "label 99 does not exist"),
        (("--containing", "nothing"), "no label is called 'nothing'"),
        (("--active", 13), "sets of 13 labels"),
        (("--active", 1, "--threshold", "2"), "probability between 0 and 1"),
        (("--sets", "none.txt"), "none.txt"),
        (("--active", 1, "--f1-at", 2), "--sets"),
        (("--containing", "1", "--without", "1"), "both on and off"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run, model: Path, arguments: tuple[object, ...], message: str
) -> None:
    assert message in run("labels", model, *arguments).error


def test_cover_is_counted(run: Run) -> None:
    assert "feasible label sets  22\n" in run("count", "-C", 6, "-d", 2, "--bias",
                                              "--label-sets").out  # fmt: skip
    assert run("count", "-C", 6, "-d", 2, "--label-sets", "--json", "-").json()["label_sets"] == 12
