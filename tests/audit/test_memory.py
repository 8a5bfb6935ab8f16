"""Heads larger than half of memory: weights mapped from the file, points on disk, same verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from uncork import Unbounded, load
from uncork import audit as run_audit
from uncork.audit import backend
from uncork.audit.space import Space


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    save_file(
        {"lm_head.weight": rng.standard_normal((400, 5)).astype(np.float32)},
        tmp_path / "model.safetensors",
    )
    return str(tmp_path / "model.safetensors")


def test_weights_of_a_safetensors_file_are_mapped_not_read(model: str) -> None:
    weight = load(model).weight
    while weight.base is not None and not isinstance(weight, np.memmap):
        weight = weight.base
    assert isinstance(weight, np.memmap)


def test_points_go_to_disk_where_they_would_fill_half_of_memory(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = load(model).replace(domain=Unbounded())
    plain = run_audit(head, device="cpu", jobs=1)
    monkeypatch.setattr(backend, "physical_memory", lambda: 8_000)
    assert isinstance(Space(head, Unbounded(), backend.Backend(1)).points, np.memmap)
    streamed = run_audit(head, device="cpu", jobs=1)
    assert (streamed.verdicts == plain.verdicts).all()
    assert not len(streamed.undecided)
