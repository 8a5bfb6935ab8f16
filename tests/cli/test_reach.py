"""`uncork reach`: bounds, their file, and the check of that file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run


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
    ran = run("reach", model, "--check", proofs)
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
        ran = run("reach", model, "--check", changed, "--json", "-")
        assert ran.status == 1, name
        assert len(ran.json()["failed"]) == 3


def test_proofs_about_other_weights_prove_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    proofs, other = tmp_path / "bounds.npz", tmp_path / "other.npz"
    assert run("reach", model, "--certificates", proofs, "--no-rank", "--quiet").status == 0
    np.savez(other, weight=np.random.default_rng(0).standard_normal((15, 2)), bias=np.zeros(15))
    assert "other weights" in run("reach", other, "--check", proofs).error


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
        (["--check", "nowhere.npz"], "no such file"),
        (["--classes", "99"], "99"),
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
    assert "damaged" in run("reach", model, "--check", damaged).error
    assert "damaged" in run("reach", model, "--check", model).error
