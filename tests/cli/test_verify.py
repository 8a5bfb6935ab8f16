"""`uncork verify`: 0 where every proof holds, 1 where one fails, 2 where nothing can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.auditing import Audit


@pytest.fixture
def proofs(run: Run, square: Path, tmp_path: Path) -> Path:
    path = tmp_path / "proofs.npz"
    assert run("audit", square, "--certificates", path).status == 0
    return path


def test_honest_proofs_hold(run: Run, square: Path, proofs: Path) -> None:
    ran = run("verify", proofs, square)
    assert ran.status == 0
    assert "3 argmaxable: the proof holds" in ran.out
    assert "every proof holds" in ran.out
    found = run("verify", proofs, square, "--json", "-").json()
    assert found["ok"] is True
    assert found["held"] == {"argmaxable": 3, "unargmaxable": 1, "tied": 2}
    assert found["failed"] == []


def test_a_proof_that_fails_is_named(run: Run, square: Path, proofs: Path) -> None:
    audit = Audit.load(proofs)
    audit.proofs.verdicts[3] = 1  # the middle of the square, said to be argmaxable
    audit.proofs.scales[3] = audit.proofs.scales.max() or 1
    audit.save(proofs)
    ran = run("verify", proofs, square)
    assert ran.status == 1
    assert "class 3" in ran.out
    assert "NOT VERIFIED" in ran.out
    failed = run("verify", proofs, square, "--json", "-").json()["failed"]
    assert [item["class"] for item in failed] == [3]


@pytest.mark.parametrize("change", ["weight", "bias", "shape", "no bias"])
def test_proofs_for_one_head_say_nothing_about_another(
    run: Run, square: Path, proofs: Path, tmp_path: Path, change: str
) -> None:
    with np.load(square) as stored:
        weight, bias = stored["weight"].copy(), stored["bias"].copy()
    if change == "weight":
        weight[0, 0] = np.nextafter(weight[0, 0], np.float32(2))
    elif change == "bias":
        bias[1] = 1e-45
    elif change == "shape":
        weight, bias = weight[:5], bias[:5]
    arrays = {"weight": weight} if change == "no bias" else {"weight": weight, "bias": bias}
    np.savez(tmp_path / "other.npz", **arrays)
    ran = run("verify", proofs, tmp_path / "other.npz")
    assert ran.status == 1
    assert ran.out.startswith("these certificates prove nothing about")
    assert ran.err == ""
    assert run("verify", proofs, tmp_path / "other.npz", "--json", "-").json()["ok"] is False


def test_a_dropped_bias_is_dropped_here_too(run: Run, square: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    run("audit", square, "--drop-bias", "--certificates", path)
    assert run("verify", path, square, "--drop-bias").status == 0
    ran = run("verify", path, square)
    assert ran.status == 1
    assert "--drop-bias?" in ran.out


def test_a_truncated_file_cannot_be_read(run: Run, square: Path, proofs: Path) -> None:
    proofs.write_bytes(proofs.read_bytes()[:-200])
    assert "proofs.npz" in run("verify", proofs, square).error


def test_undecided_classes_claim_nothing(run: Run, square: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    run("audit", square, "--approximate", "--patience", "9", "--certificates", path)
    ran = run("verify", path, square)
    assert ran.status == 0
    assert "1 undecided: nothing is claimed" in ran.out
