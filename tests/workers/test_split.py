"""One audit split by classes over workers: the verdicts of one machine, whatever is lost."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sweep.test_sweep import InThisProcess
from tests.workers.lossy import Dying

import uncork
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.run import Options
from uncork.core.errors import UncorkError
from uncork.workers import split
from uncork.workers.engines import open_engine
from uncork.workers.finished_ranges import Kept
from uncork.workers.join import join
from uncork.workers.ranges import Decided, packed, unpacked
from uncork.workers.split import Rows, Settings, kept_ranges, range_size, split_audit


def rows(classes: int = 300, features: int = 6) -> np.ndarray:
    """Rows of which some are lost, some equal to others of far-away ranges, and some both."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(classes, features)).astype(np.float32)
    weight[7] = weight[20:60].mean(axis=0)
    weight[250], weight[251] = weight[7], weight[7]
    far = np.argmax(np.linalg.norm(weight, axis=1))
    weight[(far + 150) % classes] = weight[far]
    return weight


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, rows())
    return path


@pytest.fixture(scope="module")
def head(source: Path) -> uncork.Head:
    return uncork.load(source)


@pytest.fixture(scope="module")
def alone(head: uncork.Head) -> uncork.Audit:
    return uncork.audit(head, device="cpu", jobs=1)


def check_equal(found: uncork.Audit, alone: uncork.Audit, head: uncork.Head) -> None:
    """The same verdicts, each with a proof that holds."""
    assert found.verdicts.tolist() == alone.verdicts.tolist()
    assert [g.tolist() for g in found.proofs.groups] == [g.tolist() for g in alone.proofs.groups]
    assert found.proven
    assert uncork.verify(found, head).ok


@pytest.mark.parametrize("size", [64, 299, 1000])
def test_ranges_together_are_the_audit_of_one_machine(
    source: Path, head: uncork.Head, alone: uncork.Audit, tmp_path: Path, size: int
) -> None:
    assert len(alone.unargmaxable) > 3
    assert len(alone.tied) == 2
    engine = InThisProcess()
    found = split_audit(head, engine, Rows(str(source)), work=tmp_path / "w", size=size)
    assert len(engine.calls) == -(-300 // size)
    check_equal(found, alone, head)
    assert list(tmp_path.iterdir()) == []  # neither ranges nor the lock
    found.save(tmp_path / "c.npz")
    assert uncork.verify(uncork.Audit.load(tmp_path / "c.npz", head), head).ok


@pytest.mark.parametrize(
    "domain", [uncork.Unbounded(), uncork.Ball(3.0), uncork.LayerNorm(np.ones(6), np.ones(6))]
)
def test_with_a_bias_and_on_other_domains(domain: uncork.Domain, tmp_path: Path) -> None:
    bias = np.random.default_rng(1).normal(size=300).astype(np.float32)
    head = uncork.Head(rows(), bias, domain=domain)
    found = split_audit(head, InThisProcess(), None, work=tmp_path / "w", size=100)
    check_equal(found, uncork.audit(head, device="cpu", jobs=1), head)


def test_a_domain_that_the_source_does_not_show_goes_with_the_work(
    source: Path, head: uncork.Head, tmp_path: Path
) -> None:
    bounded = head.replace(domain=uncork.Box(0, 2))
    found = split_audit(bounded, InThisProcess(), Rows(str(source)), work=tmp_path / "w", size=100)
    alone = uncork.audit(bounded, device="cpu", jobs=1)
    assert found.domain == bounded.domain
    check_equal(found, alone, bounded)


def test_some_classes_only(source: Path, head: uncork.Head, tmp_path: Path) -> None:
    asked = np.array([251, 7, 3, 299, 250])
    found = split_audit(
        head, InThisProcess(), Rows(str(source)), work=tmp_path / "w", size=2, classes=asked
    )
    expected = uncork.audit(head, classes=asked, device="cpu", jobs=1)
    assert found.asked is not None
    assert found.asked.tolist() == [3, 7, 250, 251, 299]
    assert found.counts == expected.counts
    assert uncork.verify(found, head).ok


def test_witnesses_by_the_formula_of_another_machine_become_inputs(head: uncork.Head) -> None:
    alone = uncork.audit(head, device="cpu", jobs=1)
    halves = np.array_split(np.arange(300), 2)
    first, second = (unpacked(packed(alone, half), head) for half in halves)
    assert first.formula is not None
    assert second.formula is not None
    assert (second.scales > 0).sum() > 20
    other = replace(
        second,
        formula=Formula(second.formula.transform * np.float32(2), second.formula.centre),
        scales=second.scales / np.float32(2),
    )
    found = join([first, other], 300, None, lambda: head)
    check_equal(found, alone, head)
    assert set(second.classes[second.scales > 0].tolist()) <= set(found.proofs.inputs)


class Stops(InThisProcess):
    """An engine during whose fourth job somebody presses Ctrl-C."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self.calls) == 3:
            raise KeyboardInterrupt
        return super().submit(fn, *args, **kwargs)


def test_ctrl_c_loses_no_finished_range_and_resume_completes_it(
    source: Path, head: uncork.Head, alone: uncork.Audit, tmp_path: Path
) -> None:
    work, read = tmp_path / "w", Rows(str(source))
    with pytest.raises(uncork.Interrupted) as raised:
        split_audit(head, Stops(), read, work=work, size=50)
    so_far = raised.value.audit
    assert 150 <= (so_far.proofs.verdicts > 0).sum() < 160  # and equals of those
    assert set(so_far.proofs.reasons.values()) == {"interrupted"}
    # What lies on disk after a power cut is the same.
    kept = kept_ranges(work, head, None)
    assert kept is not None
    assert kept.verdicts.tolist() == so_far.verdicts.tolist()
    assert not kept.proven
    with pytest.raises(uncork.Interrupted) as raised:
        split_audit(head, Stops(), read, work=work, size=50, resume=kept)
    assert raised.value.audit.verdicts.tolist() == so_far.verdicts.tolist()  # they are checked
    check_equal(
        split_audit(head, InThisProcess(), read, work=work, size=50, resume=kept), alone, head
    )


def test_a_forged_range_is_not_believed_and_a_damaged_one_not_read(
    source: Path, head: uncork.Head, alone: uncork.Audit, tmp_path: Path
) -> None:
    work, read = tmp_path / "w", Rows(str(source))
    with pytest.raises(uncork.Interrupted):
        split_audit(head, Stops(), read, work=work, size=50)
    kept = Kept(work)
    forged = uncork.audit(head, device="cpu", jobs=1)
    lost = int(forged.unargmaxable[0])
    assert lost < 50
    forged.proofs.mixtures[lost] = replace(
        forged.proofs.mixtures[lost], classes=np.array([299], dtype=np.int32),
        weights=np.ones(1, dtype=np.float32), bulk=0.0, tilt=None, integers=None,
    )  # fmt: skip
    kept.put("ranges", 0, Decided(packed(forged, np.arange(50))))
    file = work / "ranges" / "50.npz"
    file.write_bytes(file.read_bytes()[:-300])
    earlier = kept_ranges(work, head, None)
    assert earlier is not None
    assert not uncork.verify(earlier, head).ok
    found = split_audit(head, InThisProcess(), read, work=work, size=50, resume=earlier)
    check_equal(found, alone, head)


def test_what_the_time_does_not_suffice_for_is_undecided(
    source: Path, head: uncork.Head, tmp_path: Path
) -> None:
    settings = Settings(Options(time_limit=1.0), until=0.0)
    found = split_audit(
        head, InThisProcess(), Rows(str(source)), work=tmp_path / "w", settings=settings
    )
    assert len(found.undecided) == 300
    assert found.proofs.reasons[5].startswith("the time limit was reached")


def test_a_worker_that_reads_something_else_says_so(
    head: uncork.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_last", None)  # as in a worker that has read nothing yet
    with pytest.raises(UncorkError, match=r"a worker cannot read it: .*--send-rows"):
        split_audit(head, InThisProcess(), Rows(str(tmp_path / "no.npy")), work=tmp_path / "w")
    np.save(tmp_path / "other.npy", rows() + 1)
    with pytest.raises(UncorkError, match="a worker reads other weights"):
        split_audit(head, InThisProcess(), Rows(str(tmp_path / "other.npy")), work=tmp_path / "w")


def test_a_range_is_as_long_for_any_number_of_workers_and_no_shorter_than_pays() -> None:
    assert range_size(300, 6) == 1024
    assert range_size(400_000, 50) == 12_500
    assert range_size(50_257, 768) == 3072
    assert range_size(10**9, 128) == 65_536


@pytest.mark.filterwarnings("ignore")  # the clusters' own
@pytest.mark.parametrize(("kind", "sent"), [("dask", True), ("ray", False)])
def test_a_real_cluster_that_loses_a_worker_gives_the_verdicts_of_one_machine(
    kind: str, sent: bool, source: Path, head: uncork.Head, alone: uncork.Audit, tmp_path: Path
) -> None:
    pytest.importorskip("distributed" if kind == "dask" else "ray")
    read = None if sent else Rows(str(source))
    with open_engine(kind, None, 2) as engine:
        lossy = Dying(engine, tmp_path / "lost")
        found = split_audit(head, lossy, read, work=tmp_path / "w", size=100)
    assert (tmp_path / "lost").exists()
    check_equal(found, alone, head)


def test_what_a_worker_read_last_is_not_read_again(
    source: Path, head: uncork.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    find = split.find
    monkeypatch.setattr(split, "find", lambda *a, **k: opened.append(a) or find(*a, **k))
    monkeypatch.setattr(split, "_last", None)
    split_audit(head, InThisProcess(), Rows(str(source)), work=tmp_path / "w", size=30)
    assert len(opened) == 1
