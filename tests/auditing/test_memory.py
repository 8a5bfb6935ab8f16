"""Heads larger than half of memory: weights mapped from the file, points on disk, same verdicts."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from uncork import Head, Unbounded, load, verify
from uncork import audit as run_audit
from uncork.auditing import backend
from uncork.auditing.search.space import Space


@contextmanager
def bounded(more: int) -> Iterator[None]:
    """No more than so many bytes of memory beside what is in use."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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


@pytest.mark.parametrize("bias", [False, True])
def test_few_classes_of_many_features_need_no_square_of_these(bias: bool) -> None:
    """A linear classifier of text: one matrix of features × features would have 7.2 GB."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-4, 5, size=(12, 30_000)) * 2.0
    weight[1] = weight[2:4].mean(axis=0)  # exactly between two others
    offsets = rng.integers(-9, 9, size=12).astype(float) if bias else None
    if offsets is not None:
        offsets[1] = offsets[2:4].mean() - 1
    head = Head(weight, offsets)
    with bounded(2 << 30):
        found = run_audit(head, device="cpu", jobs=1)
        assert verify(found, head, jobs=1).ok
    assert found.unargmaxable.tolist() == [1]
    assert len(found.argmaxable) == 11


def test_exact_arithmetic_is_not_begun_where_it_would_fill_memory() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 30_000))
    weight[1] = weight[2:6].mean(axis=0)  # off that point by rounding alone
    with bounded(2 << 30):
        found = run_audit(Head(weight), device="cpu", jobs=1)
    assert found.undecided.tolist() == [1]
    assert "exact arithmetic is not for 30,000 features" in found.proofs.reasons[1]
