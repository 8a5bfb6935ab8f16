"""How an audit runs: limits, interruption, resuming, parts of a head, options."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle import false_verdicts
from uncork import (
    Audit,
    Ball,
    Box,
    Head,
    Interrupted,
    Unbounded,
    UncorkError,
    Verdict,
    audit,
    verify,
)
from uncork.auditing import run, search
from uncork.auditing.search import centre, exact, rows, screen
from uncork.auditing.search.proposer import Proposer
from uncork.auditing.search.reference import decide_reference
from uncork.core.progress import Progress
from uncork.theory.random_heads import random_head


@pytest.fixture
def head() -> Head:
    return random_head(80, 3, bias=True, seed=1)


@pytest.fixture
def whole(head: Head) -> Audit:
    return audit(head, device="cpu", jobs=1)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: int) -> None:
    """Ctrl-C at a later call of a function."""
    honest, made = getattr(module, name), [0]

    def interrupted(*arguments: Any, **options: Any) -> Any:
        made[0] += 1
        if made[0] > calls:
            raise KeyboardInterrupt
        return honest(*arguments, **options)

    monkeypatch.setattr(module, name, interrupted)


# Limits


def test_a_time_limit_leaves_the_rest_undecided_with_the_reason() -> None:
    head = random_head(3000, 40, seed=0)
    found = audit(head, device="cpu", jobs=1, time_limit=1e-6)
    assert len(found.undecided)
    for t in found.undecided.tolist():
        assert "time limit" in found.proofs.reasons[t]
    assert verify(found, head, jobs=1).ok


def test_a_time_limit_that_is_not_reached_changes_nothing(head: Head, whole: Audit) -> None:
    found = audit(head, device="cpu", jobs=1, time_limit=1000)
    assert list(found.verdicts) == list(whole.verdicts)
    assert found.proofs.reasons == {}


def test_exact_arithmetics_own_limit_is_not_taken_for_the_audits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first class gives up at its own limit, by then the audit's is reached too."""
    head = random_head(80, 3, bias=True, seed=1)
    clock = run.time.perf_counter

    def give_up(*_: Any) -> None:
        monkeypatch.setattr(run.time, "perf_counter", lambda: clock() + 200.0)
        raise exact.Limit

    monkeypatch.setattr(centre, "decide_batch", lambda *_: ())
    monkeypatch.setattr(rows, "decide_by_rows", lambda *_: (None, None, np.empty(0, int)))
    monkeypatch.setattr(exact, "decide_exactly", give_up)
    found = audit(head, device="cpu", jobs=1, time_limit=170)
    reasons = [found.proofs.reasons[t] for t in found.undecided.tolist()]
    assert reasons[0] == "exact arithmetic took more than 60 s"
    assert len(reasons) > 1
    assert set(reasons[1:]) == {"the time limit of 170 s was reached"}


def test_a_limit_reached_when_everything_was_tried_is_not_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = run.time.perf_counter
    flush = run.Recorder.flush

    def slowly(self: Any) -> None:
        flush(self)
        if tried:
            monkeypatch.setattr(run.time, "perf_counter", lambda: clock() + 200.0)

    def last(space: Any, classes: np.ndarray, search: Any) -> Any:
        tried.append(classes)
        return iter(())

    tried: list[np.ndarray] = []
    monkeypatch.setattr(search, "FAST", (Proposer("last", "decide", last),))
    monkeypatch.setattr(run.Recorder, "flush", slowly)
    found = audit(random_head(30, 3, seed=1), device="cpu", jobs=1, time_limit=170)
    assert set(found.proofs.reasons.values()) == {"no proposal was accepted by the certifier"}


def test_what_a_time_limit_left_can_be_finished_by_resuming() -> None:
    head = random_head(300, 6, seed=0)
    found = audit(head, device="cpu", jobs=1, time_limit=1e-6)
    rest = audit(head, device="cpu", jobs=1, resume=found)
    assert list(rest.verdicts) == list(audit(head, device="cpu", jobs=1).verdicts)
    assert rest.proofs.reasons == {}


# Interruption


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_ctrl_c_while_screening_keeps_what_was_proven(
    head: Head, whole: Audit, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, screen, "winners", calls)
    with pytest.raises(Interrupted) as caught:
        audit(head, device="cpu", jobs=1)
    monkeypatch.undo()
    partial = caught.value.audit
    assert len(partial.undecided)
    assert all(partial.proofs.reasons[t] == "interrupted" for t in partial.undecided.tolist())
    assert false_verdicts(partial, head) == {}
    assert verify(partial, head, jobs=1).ok
    resumed = audit(head, device="cpu", jobs=1, resume=partial)
    assert list(resumed.verdicts) == list(whole.verdicts)
    assert verify(resumed, head, jobs=1).ok


def test_ctrl_c_while_deciding_keeps_what_was_proven(
    head: Head, whole: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, centre, "decide_batch", 0)
    with pytest.raises(Interrupted) as caught:
        audit(head, device="cpu", jobs=1)
    monkeypatch.undo()
    partial = caught.value.audit
    assert len(partial.argmaxable)
    assert len(partial.undecided)
    resumed = audit(head, device="cpu", jobs=1, resume=partial)
    assert list(resumed.verdicts) == list(whole.verdicts)


def test_ctrl_c_before_anything_was_done_keeps_nothing(
    head: Head, whole: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, run, "equal_classes", 0)
    with pytest.raises(Interrupted) as caught:
        audit(head, device="cpu", jobs=1)
    monkeypatch.undo()
    assert len(caught.value.audit.undecided) == head.classes
    resumed = audit(head, device="cpu", jobs=1, resume=caught.value.audit)
    assert list(resumed.verdicts) == list(whole.verdicts)


def test_interrupted_is_a_keyboard_interrupt() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)


# Resuming


def test_resuming_from_a_file_continues(
    head: Head, whole: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, screen, "winners", 1)
    with pytest.raises(Interrupted) as caught:
        audit(head, device="cpu", jobs=1)
    monkeypatch.undo()
    caught.value.audit.save(tmp_path / "part.npz")
    resumed = audit(head, device="cpu", jobs=1, resume=Audit.load(tmp_path / "part.npz", head))
    assert list(resumed.verdicts) == list(whole.verdicts)


def test_resuming_a_finished_audit_searches_for_nothing(
    head: Head, whole: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is left to decide")

    monkeypatch.setattr(centre, "decide_batch", refuse)
    monkeypatch.setattr(rows, "decide_by_rows", refuse)
    again = audit(head, device="cpu", jobs=1, resume=whole)
    assert list(again.verdicts) == list(whole.verdicts)


def test_resuming_does_not_change_the_audit_it_starts_from(head: Head) -> None:
    part = audit(head, device="cpu", jobs=1, approximate=True, patience=0)
    before = part.proofs.verdicts.copy(), dict(part.proofs.reasons), dict(part.proofs.mixtures)
    audit(head, device="cpu", jobs=1, resume=part)
    assert np.array_equal(part.proofs.verdicts, before[0])
    assert part.proofs.reasons == before[1]
    assert part.proofs.mixtures == before[2]


def test_what_is_resumed_is_checked_again(head: Head, whole: Audit) -> None:
    lie = audit(head, device="cpu", jobs=1)
    lost, won = int(lie.unargmaxable[0]), int(lie.argmaxable[0])
    lie.proofs.verdicts[lost], lie.proofs.verdicts[won] = Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE
    lie.proofs.inputs[lost] = np.zeros(3)
    lie.proofs.mixtures[won] = lie.proofs.mixtures.pop(lost)
    resumed = audit(head, device="cpu", jobs=1, resume=lie)
    assert list(resumed.verdicts) == list(whole.verdicts)


def test_resuming_with_other_weights_is_refused(head: Head, whole: Audit) -> None:
    weight = np.array(head.weight)
    weight[0, 0] = np.nextafter(weight[0, 0], 1)
    with pytest.raises(UncorkError, match="other weights"):
        audit(head.replace(weight=weight), device="cpu", resume=whole)
    with pytest.raises(UncorkError, match="other weights"):
        audit(head.replace(bias=None), device="cpu", resume=whole)


@pytest.mark.parametrize("domain", [Box(99), Unbounded(), Ball(100.0)], ids=str)
def test_resuming_with_another_domain_is_refused(head: Head, whole: Audit, domain: Any) -> None:
    with pytest.raises(UncorkError, match="the audit to resume is for"):
        audit(head, domain=domain, device="cpu", resume=whole)


# Parts of a head, and how hard to look


def test_only_the_classes_asked_for_are_reported_undecided(head: Head, whole: Audit) -> None:
    asked = [3, 7, 11, 50]
    found = audit(head, classes=asked, device="cpu", jobs=1)
    assert [found.verdicts[t] for t in asked] == [whole.verdicts[t] for t in asked]
    assert len(found.undecided) == 0
    assert verify(found, head, jobs=1).ok
    assert false_verdicts(found, head) == {}


def test_asking_for_one_of_equal_classes_decides_it() -> None:
    head = Head([[1.0], [0.0], [1.0], [-1.0]])
    found = audit(head, classes=[2], device="cpu", jobs=1)
    assert found.verdicts[2] == Verdict.TIED


@pytest.mark.parametrize(
    ("classes", "message"),
    [([], "no classes"), ([80], "class 80 does not exist"), ([-1], "class -1 does not exist")],
)
def test_classes_that_are_not_there_are_named(head: Head, classes: list[int], message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        audit(head, classes=classes, device="cpu")


def test_approximate_proves_argmaxable_classes_only(head: Head, whole: Audit) -> None:
    found = audit(head, approximate=True, patience=50, device="cpu", jobs=1)
    assert found.approximate
    assert len(found.unargmaxable) == 0
    assert set(found.argmaxable.tolist()) <= set(whole.argmaxable.tolist())
    assert set(found.undecided.tolist()) >= set(whole.unargmaxable.tolist())
    for t in found.undecided.tolist():
        assert "potentially unargmaxable" in found.proofs.reasons[t]


def test_another_domain_can_be_given_to_the_audit(head: Head) -> None:
    found = audit(head, domain=Box(1e-3), device="cpu", jobs=1)
    assert found.domain == Box(1e-3)
    assert verify(found, head, jobs=1).ok
    narrow = audit(head.replace(domain=Box(1e-3)), device="cpu", jobs=1)
    assert list(found.verdicts) == list(narrow.verdicts)


def test_a_smaller_box_never_frees_a_class(head: Head) -> None:
    sizes = [1e-3, 0.1, 1.0, 100.0, np.inf]
    free = [
        set(audit(head, domain=Box(size), device="cpu", jobs=1).argmaxable.tolist())
        for size in sizes
    ]
    for smaller, larger in itertools.pairwise(free):
        assert smaller <= larger


@pytest.mark.parametrize("domain", [Box(100), Unbounded(), Box(0, np.inf)], ids=str)
def test_the_reference_algorithm_agrees(domain: Any) -> None:
    head = random_head(60, 4, bias=True, seed=9, domain=domain)
    fast = audit(head, device="cpu", jobs=1)
    reference = audit(head, algorithm="reference", patience=100, device="cpu", jobs=1)
    assert list(reference.verdicts) == list(fast.verdicts)
    assert reference.algorithm == "reference"
    assert verify(reference, head, jobs=1).ok


def test_the_reference_algorithm_agrees_on_a_sample_of_pp_ocr_v4(
    pp_ocr_v4: Head, pp_ocr_v4_audit: Audit
) -> None:
    rng = np.random.default_rng(0)
    lost = rng.choice(pp_ocr_v4_audit.unargmaxable, 2, replace=False).tolist()
    won = rng.choice(pp_ocr_v4_audit.argmaxable, 4, replace=False).tolist()
    found = {t: decide_reference(pp_ocr_v4, t, patience=100) for t in lost + won}
    assert found == {t: str(pp_ocr_v4_audit.verdicts[t]) for t in lost + won}


@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_threads_changes_no_verdict(seed: int) -> None:
    head = random_head(500, 8, bias=seed == 1, seed=seed)
    one, two = (audit(head, device="cpu", jobs=jobs) for jobs in (1, 2))
    assert list(one.verdicts) == list(two.verdicts)
    assert not len(one.undecided)


def test_two_runs_give_the_same_verdicts_and_margins(head: Head, whole: Audit) -> None:
    again = audit(head, device="cpu", jobs=1)
    assert np.array_equal(again.proofs.verdicts, whole.proofs.verdicts)
    assert np.array_equal(again.proofs.margins, whole.proofs.margins)


def test_stages_are_timed(whole: Audit) -> None:
    assert set(whole.seconds) == {"load", "prepare", "screen", "decide", "certify", "total"}
    assert all(seconds >= 0 for seconds in whole.seconds.values())
    assert whole.seconds["total"] > 0


def test_progress_is_told_of_every_stage(head: Head) -> None:
    class Notes(Progress):
        def __init__(self) -> None:
            self.stages: list[tuple[str, int | None]] = []
            self.steps: list[int] = []

        def stage(self, name: str, total: int | None) -> None:
            self.stages.append((name, total))
            self.steps.append(0)

        def advance(self, steps: int) -> None:
            assert steps >= 0
            self.steps[-1] += steps

    notes = Notes()
    found = audit(head, device="cpu", jobs=1, progress=notes)
    names = [name for name, _ in notes.stages]
    assert names == ["preparing", "first guesses", "reflecting", "deciding"]
    for (_, total), steps in zip(notes.stages, notes.steps, strict=True):
        assert total is None or 0 < steps <= total  # never beyond the end
    deciding = dict(notes.stages)["deciding"]
    assert deciding is not None
    assert len(found.unargmaxable) <= deciding < head.classes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "slow"}, "algorithm 'slow'"),
        ({"patience": -1}, "patience must not be negative"),
        ({"time_limit": 0}, "time limit must be positive"),
        ({"time_limit": -3.0}, "time limit must be positive"),
        ({"time_limit": float("nan")}, "time limit must be positive"),
        ({"device": "tpu"}, "device 'tpu' is not known"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"domain": Box(np.zeros(2), np.ones(2))}, "2 bounds but the head has 3 features"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(head: Head, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        audit(head, **{"device": "cpu", **options})


def test_the_reference_algorithm_knows_no_ball(head: Head) -> None:
    with pytest.raises(UncorkError, match="know boxes"):
        audit(head, domain=Ball(1.0), algorithm="reference", device="cpu")


def test_checking_earlier_proofs_takes_no_time_from_a_resumed_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a run would check what the last one proved, be late, and get no further."""
    head = random_head(600, 8, seed=0, bias=True)
    partial = audit(head, device="cpu", jobs=1, approximate=True)
    assert len(partial.undecided)
    take_over = run.Recorder.take_over

    def slowly(self: Any, earlier: Any) -> None:
        take_over(self, earlier)
        monkeypatch.setattr(run.time, "perf_counter", lambda: clock() + 1000.0)

    clock = run.time.perf_counter
    monkeypatch.setattr(run.Recorder, "take_over", slowly)
    resumed = audit(head, device="cpu", jobs=1, resume=partial, time_limit=100)
    assert not len(resumed.undecided)


def test_a_limit_too_short_for_anything_new_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    head = random_head(600, 8, seed=0, bias=True)
    partial = audit(head, device="cpu", jobs=1, approximate=True)
    resumed = audit(head, device="cpu", jobs=1, resume=partial, time_limit=1e-9)
    assert len(resumed.undecided) == len(partial.undecided)
    assert {resumed.proofs.reasons[t] for t in resumed.undecided.tolist()} == {
        "the time limit of 1e-09 s was reached before anything new was decided: "
        "it is too short for this head"
    }
