"""Searching and certifying on torch tensors: the same code as on NumPy, the same verdicts."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from models import PP_OCR_V4
from uncork import Audit, Ball, Box, Domain, Head, Unbounded, load, verify
from uncork import audit as run_audit
from uncork.auditing import backend as backends
from uncork.auditing import run
from uncork.auditing.backend import TorchBackend

pytest.importorskip("torch")


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--device cuda` runs, with the tensors on the CPU."""
    monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))


def random_head(seed: int, domain: Domain, bias: bool) -> Head:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((300, 6)).astype(np.float32)
    weight[7] = weight[3]
    weight[11] = weight[20:40].mean(axis=0)
    return Head(weight, rng.standard_normal(300) if bias else None, domain=domain)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    "domain", [Box(100), Box(0, np.inf), Box(-0.5, 2), Ball(3), Unbounded()], ids=str
)
def test_torch_and_numpy_reach_the_same_verdicts(
    domain: Domain, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = random_head(0, domain, bias)
    plain = run_audit(head, device="cpu", jobs=1)
    monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))
    found = run_audit(head)
    assert (found.verdicts == plain.verdicts).all()
    assert not len(found.undecided)
    assert verify(found, head, device="cpu", jobs=1).ok


@pytest.mark.usefixtures("on_torch")
def test_wide_heads_fall_to_tilted_mixtures_on_torch_too() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((3000, 300)).astype(np.float32)
    inside = np.array([5, 17, 600])
    weight[inside] = weight.mean(axis=0) + 0.01 * rng.standard_normal((3, 300))
    found = run_audit(Head(weight, domain=Unbounded()))
    assert found.unargmaxable.tolist() == inside.tolist()
    assert not len(found.undecided)
    assert verify(found, Head(weight, domain=Unbounded()), device="cpu", jobs=1).ok


@pytest.mark.usefixtures("on_torch")
def test_pp_ocr_v4_loses_its_202_classes_on_torch_too(tmp_path) -> None:
    head = load(str(PP_OCR_V4))
    found = run_audit(head)
    assert found.counts == {"argmaxable": 6423, "unargmaxable": 202, "tied": 0, "undecided": 0}
    found.save(tmp_path / "c.npz")
    assert verify(Audit.load(tmp_path / "c.npz", head), head, device="cpu", jobs=2).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "uint16"])
def test_a_weight_mapped_from_a_file_is_brought_over_exactly(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_UPLOAD_BYTES", 64)  # a few rows at a time
    values = np.random.default_rng(0).integers(0, 100, (23, 7))
    stored = values.astype(getattr(ml_dtypes, dtype, None) or dtype)
    stored.tofile(tmp_path / "w")
    mapped = np.memmap(tmp_path / "w", dtype=stored.dtype, mode="r", shape=stored.shape)
    head, backend = Head(mapped), TorchBackend("cpu")
    some = np.array([22, 0, 5])
    assert backend.get(backend.take(head, some)).tolist() == values[some].tolist()
    assert backend.columns(head, np.array([6, 1])).tolist() == values[:, [6, 1]].tolist()
    assert backend.largest_weight(head) == head.largest_weight == values.max()
