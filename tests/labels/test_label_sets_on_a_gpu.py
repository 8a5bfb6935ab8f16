"""Label sets on torch tensors: the same code as on NumPy, the same verdicts, proofs that hold."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Ball, Box, Head, Unbounded
from uncork.auditing.backend import Backend, TorchBackend
from uncork.auditing.gpu import gpu_available
from uncork.domain import Domain, LayerNorm
from uncork.labels import LabelAudit, LabelSets, decide_sets
from uncork.labels import decide as deciding
from uncork.labels.certify import LabelCertifier
from uncork.labels.verify import verify_sets

pytest.importorskip("torch")

needs_gpu = pytest.mark.skipif(not gpu_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
DOMAINS = [
    (Box(100), None), (Box(1), -2.0), (Ball(2), -2.0), (Box(0, np.inf), -1.0), (Unbounded(), -1.0),
    (Unbounded(), None), (LayerNorm(np.ones(6), np.full(6, 0.5)), -1.0),
]  # fmt: skip


@pytest.fixture(params=DEVICES)
def torch_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TorchBackend:
    """What `--device cuda` runs, with the tensors on the CPU and on a GPU where there is one."""
    backend = TorchBackend(request.param)
    monkeypatch.setattr(deciding, "choose_backend", lambda device, jobs: backend)
    return backend


def random_head(domain: Domain, bias: float | None, dtype: str = "float32") -> Head:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(30, 6)).astype(dtype)
    offsets = None if bias is None else (bias + rng.normal(size=30)).astype(dtype)
    return Head(weight, offsets, domain=domain)


def numpy_verdicts(head: Head, sets: LabelSets, monkeypatch: pytest.MonkeyPatch) -> LabelAudit:
    with monkeypatch.context() as patched:
        patched.setattr(deciding, "choose_backend", lambda device, jobs: Backend(1))
        return decide_sets(head, sets)


@pytest.mark.parametrize(("domain", "bias"), DOMAINS, ids=lambda value: str(value)[:12])
def test_torch_and_numpy_decide_the_same(
    domain: Domain, bias: float | None, torch_backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = random_head(domain, bias)
    sets = LabelSets.of_size(30, 1).joined(LabelSets.sample(30, 3, 40))
    sets = sets.joined(LabelSets.question(30, [0, 1], [2]))
    plain = numpy_verdicts(head, sets, monkeypatch)
    found = decide_sets(head, sets)
    assert found.device == torch_backend.name
    assert found.verdicts.tolist() == plain.verdicts.tolist()
    assert not len(found.undecided)
    assert verify_sets(found, head).ok  # by NumPy
    assert verify_sets(plain, head, device=torch_backend).ok  # and the other way round


def test_half_precision_weights_and_thresholds_are_taken_exactly(
    torch_backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = random_head(Box(0, np.inf), -1.0, "float16")
    sets, thresholds = LabelSets.of_size(30, 2), np.linspace(-0.3, 0.7, 30)
    with monkeypatch.context() as patched:
        patched.setattr(deciding, "choose_backend", lambda device, jobs: Backend(1))
        plain = decide_sets(head, sets, thresholds=thresholds)
    found = decide_sets(head, sets, thresholds=thresholds)
    assert found.verdicts.tolist() == plain.verdicts.tolist()
    assert verify_sets(found, head).ok


def test_sets_beyond_one_chunk_are_all_decided(
    torch_backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "chunk_bytes", 8 * 30 * 50)  # fifty sets at a time
    head = random_head(Box(1), -2.0)
    found = decide_sets(head, LabelSets.of_size(30, 2))
    assert not len(found.undecided)
    assert len(found.feasible)
    assert len(found.infeasible)
    assert verify_sets(found, head).ok


def test_bounds_made_by_torch_are_those_of_numpy(torch_backend: TorchBackend) -> None:
    """The certifier's two halves by themselves: margins at inputs, leads of mixtures."""
    rng = np.random.default_rng(1)
    head = random_head(Box(1), -0.5)
    signs = np.where(rng.random((50, 30)) < 0.3, 1, -1).astype(np.int8)
    inputs, targets = rng.uniform(-1, 1, size=(50, 6)), np.full(50, 0.5)
    here, there = (
        LabelCertifier(head, np.zeros(30), device=device) for device in (None, torch_backend)
    )
    np.testing.assert_allclose(
        there.witnesses(signs, inputs), here.witnesses(signs, inputs), rtol=1e-12
    )
    np.testing.assert_allclose(
        there.tilted(signs, inputs, targets), here.tilted(signs, inputs, targets), rtol=1e-12
    )
