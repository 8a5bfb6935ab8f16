"""`--domain @FILE`: a norm's parameters from a file, through audit, report, verify and resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork import Audit, Box, Head, LayerNorm, Verdict, audit
from uncork.domain.file import write_domain


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((200, 6)).astype(np.float32)
    weight[5] = weight.mean(axis=0)
    np.savez(tmp_path / "model.npz", weight=weight, bias=rng.standard_normal(200))
    return tmp_path / "model.npz"


@pytest.fixture
def norm(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    domain = LayerNorm(rng.standard_normal(6), rng.standard_normal(6))
    write_domain(tmp_path / "norm.npz", domain, {"assumption": "guessed & tried"})
    return tmp_path / "norm.npz"


def test_an_audit_behind_a_layernorm_is_reported_and_verified(
    run: Run, model: Path, norm: Path, tmp_path: Path
) -> None:
    proofs, page, found = tmp_path / "proofs.npz", tmp_path / "page.html", tmp_path / "found.json"
    ran = run("audit", model, "--domain", f"@{norm}", "--certificates", proofs, "--report", page,
              "--json", found)  # fmt: skip
    assert ran.status == 0
    result = json.loads(found.read_text())
    assert result["domain"].startswith("layernorm(gain, offset) of 6 features, sha256:")
    assert result["proven"] is True
    assert result["counts"]["undecided"] == 0
    assert "leave a LayerNorm over 6 features" in page.read_text()
    assert f"Where that comes from: {norm}, guessed &amp; tried." in page.read_text()
    assert f"--domain @{norm} --certificates" in page.read_text()
    checked = run("verify", proofs, model, "--json", "-")
    assert checked.status == 0
    assert checked.json()["domain"] == result["domain"]
    assert checked.json()["held"]["unargmaxable"] == result["counts"]["unargmaxable"] > 0


def test_a_proof_behind_a_layernorm_that_does_not_hold_is_found(
    run: Run, model: Path, norm: Path, tmp_path: Path
) -> None:
    proofs = tmp_path / "proofs.npz"
    assert run("audit", model, "--domain", f"@{norm}", "--certificates", proofs).status == 0
    changed = Audit.load(proofs)
    t = int(changed.unargmaxable[0])
    changed.proofs.verdicts[t] = Verdict.ARGMAXABLE
    changed.proofs.inputs[t] = np.zeros(6)
    changed.save(proofs)
    ran = run("verify", proofs, model)
    assert ran.status == 1
    assert f"class {t}" in ran.out


def test_an_unfinished_audit_is_resumed_on_the_same_norm_only(
    run: Run, model: Path, norm: Path, tmp_path: Path, cache: Path
) -> None:
    ran = run("audit", model, "--domain", f"@{norm}", "--time-limit", "1e-9")
    assert ran.status == 0
    assert len(list(cache.rglob("*.npz"))) == 1
    write_domain(tmp_path / "other.npz", LayerNorm(features=6))
    other = run("audit", model, "--domain", f"@{tmp_path / 'other.npz'}", "--resume")
    assert "there is no unfinished audit" in other.err
    ran = run("audit", model, "--domain", f"@{norm}", "--resume", "--json", "-")
    assert ran.json()["counts"]["undecided"] == 0
    assert not list(cache.rglob("*.npz"))


def test_a_norm_of_another_width_is_refused_in_one_line(
    run: Run, model: Path, tmp_path: Path
) -> None:
    write_domain(tmp_path / "wide.npz", LayerNorm(features=7))
    error = run("audit", model, "--domain", f"@{tmp_path / 'wide.npz'}").error
    assert "7 features but the head has 6" in error
    assert "no such file" in run("audit", model, "--domain", "@nothing.npz").error


def test_the_ranges_of_a_file_bound_each_feature(run: Run, model: Path, tmp_path: Path) -> None:
    ranges = Box(np.full(6, -1.0), np.arange(1.0, 7.0))
    write_domain(tmp_path / "ranges.npz", ranges)
    ran = run("audit", model, "--domain", f"@{tmp_path / 'ranges.npz'}", "--json", "-")
    with np.load(model) as arrays:
        head = Head(arrays["weight"], arrays["bias"], domain=ranges)
    assert ran.json()["counts"] == audit(head, jobs=1).counts
