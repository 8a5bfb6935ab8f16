"""`uncork reach`: bounds, their file, and the check of that file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.reach.outlooks import Outlook


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Twelve classes around a circle and three inside: never first, at best second or worse."""
    turn = np.arange(12) * np.pi / 6
    ring = np.column_stack([np.cos(turn), np.sin(turn)])
    weight = np.concatenate([ring, [[0.0, 0.0], [0.9, 0.0], [0.3, 0.4]]])
    path = tmp_path / "ring.npz"
    np.savez(path, weight=weight, bias=np.append(np.zeros(12), [-0.01, -0.02, 0.0]))
    return path


def test_it_asks_about_the_unargmaxable_classes_and_bounds_both(run: Run, model: Path) -> None:
    ran = run("reach", model, "--domain", "box:5", "--json", "-", "--quiet", "--jobs", "1")
    assert ran.status == 0
    rows = ran.json()["reach"]
    assert [row["class"] for row in rows] == [12, 13, 14]
    for row in rows:
        low, high = row["probability"]["lower"], row["probability"]["upper"]
        assert 0 < low <= high < 0.5
        assert high <= low * (1 + 1e-6)
        assert row["best_rank"]["lower"] == row["best_rank"]["upper"] > 1
    assert rows[0]["best_rank"]["lower"] == 7  # the middle: half of the ring is above, always


def test_its_file_of_proofs_is_checked_and_a_changed_bound_is_found(
    run: Run, model: Path, tmp_path: Path
) -> None:
    proofs = tmp_path / "bounds.npz"
    ran = run("reach", model, "--certificates", proofs, "--quiet", "--jobs", "1")
    assert ran.status == 0
    assert "every bound is proven" in ran.out
    ran = run("reach", model, "--verify", proofs)
    assert ran.status == 0
    assert "every bound holds" in ran.out
    with np.load(proofs) as archive:
        members = dict(archive)
    for name, change in (
        ("probability_upper", lambda a: a * 0.999),
        ("probability_lower", lambda a: a * 1.001),
        ("rank_lower", lambda a: a + 1),
        ("rank_upper", lambda a: a - 1),
    ):
        changed = tmp_path / f"{name}.npz"
        np.savez(changed, **{**members, name: change(members[name])})
        ran = run("reach", model, "--verify", changed, "--json", "-")
        assert ran.status == 1, name
        assert len(ran.json()["failed"]) == 3


def test_proofs_about_other_weights_prove_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    proofs, other = tmp_path / "bounds.npz", tmp_path / "other.npz"
    assert run("reach", model, "--certificates", proofs, "--no-rank", "--quiet").status == 0
    np.savez(other, weight=np.random.default_rng(0).standard_normal((15, 2)), bias=np.zeros(15))
    assert "other weights" in run("reach", other, "--verify", proofs).error


def test_top_k_is_answered(run: Run, model: Path) -> None:
    ran = run("reach", model, "--top", "3", "--no-probability", "--quiet", "--jobs", "1")
    assert ran.status == 0
    assert "never in the top 3" in ran.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top", "0"], "--top"),
        (["--no-rank", "--no-probability"], "nothing to do"),
        (["--temperature", "0"], "temperature"),
        (["--verify", "nowhere.npz"], "no such file"),
        (["--classes", "99"], "99"),
        (["--alpha", "1.5"], "--transform entmax"),
        (["--transform", "entmax", "--alpha", "1"], "alpha"),
        (["--above", "3"], "two classes"),
        (["--above", "a,b"], "class numbers"),
        (["--top-set", "3", "--prefix", "4"], "one question"),
        (["--prefix", "3,3"], "each once"),
        (["--top-set", "99"], "class 99"),
        (["--top-set", "3", "--top", "2"], "leave"),
        (["--outlook", "near.json", "--temperature", "2"], "--outlook"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run, model: Path, options: list[str], said: str
) -> None:
    assert said in run("reach", model, *options).error


def test_damaged_files_of_proofs_are_refused(run: Run, model: Path, tmp_path: Path) -> None:
    proofs = tmp_path / "bounds.npz"
    run("reach", model, "--certificates", proofs, "--quiet")
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(proofs.read_bytes()[:700])
    assert "damaged" in run("reach", model, "--verify", damaged).error
    assert "damaged" in run("reach", model, "--verify", model).error


@pytest.mark.parametrize(
    ("question", "possible"),
    [
        (["--above", "13,12"], True),
        (["--top-set", "13"], False),
        (["--top-set", "0,13"], True),
        (["--prefix", "0,13"], True),
        (["--prefix", "13,0"], False),
        (["--prefix", "0,6"], False),
    ],
)
def test_questions_about_the_order_are_answered_with_a_proof(
    run: Run, model: Path, question: list[str], possible: bool
) -> None:
    ran = run("reach", model, "--domain", "box:5", *question, "--json", "-")
    assert ran.status == 0
    found = ran.json()
    assert found["possible"] is possible
    assert set(found["proof"]) == ({"input"} if possible else {"pairs", "weights"})
    said = run("reach", model, "--domain", "box:5", *question).out
    assert (": possible" in said) is possible
    assert "proof" in said


def test_sparse_outputs_are_bounded_and_checked(run: Run, model: Path, tmp_path: Path) -> None:
    proofs = tmp_path / "sparse.npz"
    ran = run(
        "reach", model, "--domain", "box:5", "--classes", "0,12,13", "--transform", "sparsemax",
        "--no-rank", "--certificates", proofs, "--json", "-", "--quiet",
    )  # fmt: skip
    rows = ran.json()["reach"]
    assert [row["whole_support"] for row in rows] == [False, False, False]  # no lead of one in ±5
    assert all(row["in_support"] for row in rows)
    assert run("reach", model, "--verify", proofs).status == 0
    said = run("reach", model, "--classes", "0", "--transform", "entmax", "--alpha", "1.2").out
    assert "1.2-entmax: 0 of 1 never in the support, 1 can be all of it" in said


def test_an_outlook_is_written_and_an_audit_can_hold_one(
    run: Run, model: Path, tmp_path: Path
) -> None:
    near = tmp_path / "near.json"
    assert run("reach", model, "--domain", "box:5", "--outlook", near, "--quiet").status == 0
    found = Outlook.load(near)
    assert found.classes.tolist() == [12, 13, 14]
    ran = run("audit", model, "--domain", "box:5", "--reach", "--json", "-", "--quiet")
    rows = ran.json()["reach"]
    assert [row["class"] for row in rows] == [12, 13, 14]
    known = found.of(13)
    assert known is not None
    assert rows[1]["best_rank_upper"] == known["best_rank_upper"]
    assert "how near they come" in run("audit", model, "--domain", "box:5", "--reach").out


def test_a_masked_class_is_bounded_above_zero(run: Run, tmp_path: Path) -> None:
    source, proofs = tmp_path / "a.npz", tmp_path / "bounds.npz"
    weight = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    np.savez(source, weight=weight, bias=np.array([0, -1e9, 0, 1, 2, 3], np.float32))
    asked = ("reach", source, "--classes", "1,5", "--quiet", "--jobs", "1")
    ran = run(*asked, "--certificates", proofs)
    assert (ran.status, ran.err) == (0, "")
    assert "0 to 3.30755e-308" in ran.out
    assert "no lower bound above 0 for 1 of 2" in ran.out
    assert "nan" not in ran.out
    assert run("reach", source, "--verify", proofs).status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "1e-300"), "temperature 1e-300 is too small"),
        (("--transform", "entmax", "--alpha", "1e308"), "alpha 1e+308 is too large"),
    ],
)
def test_what_float64_cannot_square_is_answered_in_one_line(
    run: Run, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run("reach", model, "--classes", "0", "--quiet", *arguments).error


def test_a_vast_bias_is_answered_in_one_line(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    weight = np.random.default_rng(1).normal(size=(6, 2))
    np.savez(source, weight=weight, bias=np.array([0, -1e200, 0, 1, 2, 3]))
    error = run("reach", source, "--classes", "1", "--quiet").error
    assert "the bias's largest value is 1e+200" in error
