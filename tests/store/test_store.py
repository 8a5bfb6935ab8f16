"""What a store promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.audits import AWKWARD, large_audit, small_audit
from tests.store.earlier import make_earlier_store

from uncork import Ball
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.store import Store


def test_an_audit_comes_back_as_it_was_stored(url: str) -> None:
    audit = small_audit()
    with Store(url) as store:
        number = store.save(audit, name="first", group="tests", certificates="proofs.npz")
    with Store(url, create=False) as store:
        stored = store.audit(number)
        rows = store.classes(number)
    assert (stored.name, stored.group, stored.certificates) == ("first", "tests", "proofs.npz")
    assert stored.fingerprint == audit.fingerprint
    assert (stored.classes, stored.features, stored.has_bias) == (40, 3, False)
    assert {name: getattr(stored, name) for name in audit.counts} == audit.counts
    assert [row["class"] for row in rows] == list(range(40))
    assert [row["verdict"] for row in rows] == [str(v) for v in audit.verdicts]
    assert [row["margin"] for row in rows] == pytest.approx(audit.proofs.margins.tolist(), rel=0)
    assert stored.created.tzinfo is not None


def test_any_label_survives(url: str) -> None:
    with Store(url) as store:
        number = store.save(small_audit())
        labels = [row["label"] for row in store.classes(number)]
    assert labels[: len(AWKWARD)] == list(AWKWARD)


def test_who_takes_the_place_of_a_lost_class_is_stored(url: str) -> None:
    audit = small_audit()
    with Store(url) as store:
        number = store.save(audit)
        rows = store.classes(number, verdict=Verdict.UNARGMAXABLE)
    assert [row["class"] for row in rows] == audit.unargmaxable.tolist()
    for row in rows:
        assert [i for i, _ in row["stolen_by"]] == [
            thief["class"] for thief in audit.stolen_by(row["class"])
        ]


def test_the_same_audit_is_not_stored_twice(url: str) -> None:
    with Store(url) as store:
        first, second = store.save(small_audit()), store.save(small_audit())
        assert first == second
        assert len(store.audits()) == 1
        assert store.count(first) == 40


def test_another_head_domain_or_choice_of_classes_is_another_audit(url: str) -> None:
    head = small_audit().head
    assert head is not None
    import uncork

    audits = [
        small_audit(),
        small_audit(seed=1),
        uncork.audit(head, domain=Ball(2.0), device="cpu"),
        uncork.audit(head, classes=[1, 2, 3], device="cpu"),
        uncork.audit(head, approximate=True, patience=0, device="cpu"),
    ]
    with Store(url) as store:
        assert len({store.save(audit) for audit in audits}) == len(audits)
        assert [audit.asked for audit in store.audits()] == [40, 40, 40, 3, 40]
        assert len({audit.fingerprint for audit in store.audits()}) == 2


def test_an_audit_that_knows_more_takes_the_place_of_the_earlier_one(url: str) -> None:
    audit = small_audit()
    less = replace(audit, proofs=audit.proofs.copy())
    less.proofs.verdicts[:5] = Verdict.UNDECIDED
    with Store(url) as store:
        first = store.save(less)
        assert store.audit(first).undecided == 5
        assert store.save(audit) == first
        assert store.audit(first).undecided == 0
        store.save(less)
        assert store.audit(first).undecided == 0
        assert store.count(first) == 40


def test_what_only_the_earlier_audit_knew_is_kept(url: str) -> None:
    audit, counts = small_audit(), np.arange(40)
    counts[:7] = -1
    less = replace(audit, proofs=audit.proofs.copy())
    less.proofs.verdicts[:5] = Verdict.UNDECIDED
    with Store(url) as store:
        number = store.save(audit)
        store.save(less, iterations=counts, patience=2500)  # counts are new, verdicts are not
        for _ in range(2):
            found = store.audit(number)
            assert (found.undecided, found.patience, found.potentially) == (0, 2500, 7)
            assert store.columns(number)["iterations"].tolist() == counts.tolist()
            assert (store.columns(number)["verdict"] == audit.proofs.verdicts).all()
            store.delete(number)
            number = store.save(less, iterations=counts, patience=2500)
            store.save(audit)  # verdicts are new, and nothing was counted


def test_a_file_is_stored_by_its_full_path(url: str, in_tmp_path: Path) -> None:
    for name in ("model.npz", "proofs.npz"):
        (in_tmp_path / name).touch()
    with Store(url) as store:
        store.record_failure("model.npz", "is truncated")
        number = store.save(replace(small_audit(), source="model.npz"), certificates="proofs.npz")
        found = store.audit(number)
        assert (found.name, found.source) == ("model.npz", str(in_tmp_path / "model.npz"))
        assert found.certificates == str(in_tmp_path / "proofs.npz")
        assert store.failures() == []
        assert store.audit(store.save(small_audit(1))).source == small_audit(1).source


def test_iterations_are_kept_and_counted(url: str) -> None:
    counts = np.arange(40)
    counts[:7] = -1
    with Store(url) as store:
        number = store.save(small_audit(), iterations=counts, patience=2500)
        stored = store.audit(number)
        assert (stored.patience, stored.potentially) == (2500, 7)
        assert store.columns(number)["iterations"].tolist() == counts.tolist()


def test_best_ranks_are_kept_and_only_come_closer(url: str) -> None:
    audit = small_audit()
    lost = audit.unargmaxable
    two, nine = np.full(len(lost), 2), np.full(len(lost), 9)
    with Store(url) as store:
        number = store.save(audit)
        assert [len(column) for column in store.best_ranks(number)] == [0, 0, 0]
        assert store.save(audit, ranks=(lost, two, nine)) == number
        further = nine + np.arange(len(lost)) - 1  # closer for the first, not for the others
        store.save(audit, ranks=(lost, np.where(lost == lost[-1], 4, 1), further))
        store.save(audit)
        classes, lower, upper = store.best_ranks(number)
        assert classes.tolist() == lost.tolist()
        assert lower.tolist() == [2] * (len(lost) - 1) + [4]
        assert upper.tolist() == [8] + [9] * (len(lost) - 1)
        store.delete(number)
        assert not len(store.best_ranks(number)[0])


def test_names_are_found_by_part_and_percent_means_itself(url: str) -> None:
    with Store(url) as store:
        store.save(small_audit(0), name="Bergamot en-de")
        store.save(small_audit(1), name="100%")
        assert [a.name for a in store.audits(name="bergamot")] == ["Bergamot en-de"]
        assert [a.name for a in store.audits(name="%")] == ["100%"]
        assert store.audits(name="\x00", group="\x00", fingerprint="\x00") == []
        (found,) = store.audits(fingerprint=small_audit(1).fingerprint)
        assert found.name == "100%"
        assert [row["label"] for row in store.classes(2, label="_x")] == ["_x" * 900]


def test_pages_of_classes_follow_one_another(url: str) -> None:
    with Store(url) as store:
        number = store.save(small_audit())
        pages, after = [], -1
        while page := store.classes(number, limit=7, after=after):
            pages += [row["class"] for row in page]
            after = page[-1]["class"]
    assert pages == list(range(40))


def test_a_failure_is_shown_once_and_goes_when_the_model_is_stored(url: str) -> None:
    audit = replace(small_audit(), source="model.npz")
    with Store(url) as store:
        store.record_failure("model.npz", "is truncated", name="model")
        store.record_failure("model.npz", "is still truncated", name="model")
        assert [(f["source"], f["error"]) for f in store.failures()] == [
            ("model.npz", "is still truncated")
        ]
        store.save(audit)
        assert store.failures() == []


def test_a_deleted_audit_is_gone(url: str) -> None:
    with Store(url) as store:
        number = store.save(small_audit())
        store.delete(number)
        assert store.audits() == []
        with pytest.raises(UncorkError, match=f"no audit {number}"):
            store.audit(number)


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _save_many(url: str, seeds: list[int], together: Any) -> None:
    together.wait(120)
    with Store(url) as store:  # which is not there yet: both make it
        for seed in seeds:
            store.save(small_audit(seed))


def test_two_writers_at_once_lose_nothing(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    # Both also save the audits of seeds 4 and 5: the very same ones, at the same time.
    writers = [
        context.Process(target=_save_many, args=(url, seeds, together))
        for seeds in ([0, 1, 4, 5, 2, 3], [4, 5, 6, 7, 8, 9])
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    with Store(url) as store:
        assert len(store.audits()) == 10
        assert all(store.count(audit.id) == 40 for audit in store.audits())


def test_a_save_that_is_killed_leaves_nothing(url: str) -> None:
    Store(url).close()
    program = """
import os, signal, sys
from tests.store.audits import large_audit
from uncork.store import Store, store as module
rows = module.class_rows
def dying(*args):
    for number, batch in enumerate(rows(*args)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
module.class_rows = dying
Store(sys.argv[1]).save(large_audit(60_000))
"""
    result = subprocess.run([sys.executable, "-c", program, url], timeout=120, check=False)
    assert result.returncode == -signal.SIGKILL
    with Store(url) as store:
        assert store.audits() == []
        number = store.save(large_audit(60_000))
        assert store.count(number) == 60_000
    assert os.getpid()


def test_filters_agree_with_the_verdicts(url: str) -> None:
    audit = large_audit(30_000)
    with Store(url) as store:
        number = store.save(audit)
        for verdict in (Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE, Verdict.TIED):
            expected = np.flatnonzero(audit.proofs.verdicts == verdict)
            assert store.count(number, verdict=verdict) == len(expected)
            page = store.classes(number, verdict=verdict, limit=5)
            assert [row["class"] for row in page] == expected[:5].tolist()


def reading() -> Reading:
    return Reading(
        "lm_head.weight", "lm_head.bias", "the only one", doubts=("which way round \x00 \ud800?",),
        notes=("capped", "no labels"), preceded_by="RMSNorm norm",
    )  # fmt: skip


def test_what_was_read_comes_back(url: str) -> None:
    with Store(url) as store:
        number = store.save(replace(small_audit(), reading=reading()))
        assert store.audit(number).reading == reading()
        other = store.save(small_audit(1))
        assert store.audit(other).reading is None
        row = next(iter(store.rows()))
    assert (row["weight"], row["doubts"]) == ("lm_head.weight", list(reading().doubts))


def test_the_latest_look_at_a_file_says_what_was_read_and_another_file_does_not(url: str) -> None:
    with Store(url) as store:
        number = store.save(small_audit())
        assert store.save(replace(small_audit(), reading=reading())) == number
        assert store.audit(number).reading == reading()
        elsewhere = replace(small_audit(), reading=Reading("other"), source="copy.npz")
        assert store.save(elsewhere) == number
        assert store.audit(number).reading == reading()
        assert store.save(small_audit()) == number
        assert store.audit(number).reading == reading()


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_a_store_of_an_earlier_schema_is_brought_up_to_date_with_all_it_holds(
    url: str, version: str
) -> None:
    audits = {"old": small_audit(), AWKWARD[5]: replace(small_audit(1), reading=reading())}
    make_earlier_store(url, version, audits)
    with Store(url, create=False) as store:
        found = store.audits()
        assert [(a.id, a.name, a.group, a.also) for a in found] == [
            (number, name, "old", ()) for number, name in enumerate(audits, 1)
        ]
        assert [a.reading for a in found] == [None, None if version == "0001" else reading()]
        for audit, kept in zip(audits.values(), found, strict=True):
            assert {name: getattr(kept, name) for name in audit.counts} == audit.counts
            verdicts = [row["verdict"] for row in store.classes(kept.id)]
            assert verdicts == [str(v) for v in audit.verdicts]
        assert [(f["name"], f["error"]) for f in store.failures()] == [("gone", "is truncated")]
        assert store.save(replace(audits["old"], reading=reading()), name="old", group="old") == 1
        assert store.audit(1).reading == reading()
        assert store.save(small_audit(2)) > 2
        store.save(replace(small_audit(), source="gone.npz"))
        assert store.failures() == []


def test_a_failure_is_kept_by_source_options_and_weights_with_its_history(url: str) -> None:
    first, second = "sha256:first", "sha256:second"  # the file was replaced
    with Store(url) as store:
        for weights, options in ((first, {}), (second, {}), (second, {"domain": "auto"})):
            store.record_failure("m.npz", "is odd", options=options, weights=weights)
        open_ones = [(f["weights"], f["options"]) for f in store.failures()]
        assert open_ones == [(first, {}), (second, {}), (second, {"domain": "auto"})]
        store.record_failure("m.npz", "is worse", options={"domain": "auto"}, weights=second)
        assert [f["error"] for f in store.failures()] == ["is odd", "is odd", "is worse"]
        store.save(replace(small_audit(), source="m.npz"))
        assert [f["error"] for f in store.failures()] == ["is worse"]
        store.save(replace(small_audit(), source="m.npz"), options={"domain": "auto"})
        assert store.failures() == []
        history = store.failures(history=True)
        assert [f["error"] for f in history] == ["is odd", "is odd", "is odd", "is worse"]
        assert all(f["resolved"] >= f["created"] for f in history)
        store.record_failure("m.npz", "is back", name="M", group="G")
        assert [f["error"] for f in store.failures(name="m", group="G")] == ["is back"]
        assert store.failures(group="other") == []


def test_equal_weights_under_two_names_share_the_audit_and_both_are_there(url: str) -> None:
    audit = small_audit()
    with Store(url) as store:
        number = store.save(replace(audit, reading=reading()), name="a", group="G")
        copy = replace(audit, source="copy.npz", reading=Reading("other"))
        assert store.save(copy, name="b", group="H", certificates="b.npz") == number
        assert store.save(replace(copy, reading=None), name="b", group="H") == number
        found = store.audits()
        assert [(a.id, a.name, a.group, a.also) for a in found] == [
            (number, "a", "G", ("b",)), (number, "b", "H", ("a",)),
        ]  # fmt: skip
        assert len({a.run for a in found}) == 2
        assert [a.certificates for a in found] == [None, "b.npz"]
        assert [a.reading for a in found] == [reading(), Reading("other")]
        assert [a.name for a in store.audits(name="b")] == ["b"]
        assert [a.name for a in store.audits(group="G")] == ["a"]
        assert (store.audit(number).name, store.audit(number).also) == ("a", ("b",))
        assert store.count(number) == 40  # the classes are there once
        assert {row["name"] for row in store.rows()} == {"a", "b"}
        store.delete(number)
        assert store.audits() == []


def test_labels_are_added_to_an_audit_that_had_none(url: str) -> None:
    audit = small_audit()
    with Store(url) as store:
        number = store.save(replace(audit, labels=None))
        assert store.classes(number, limit=1)[0]["label"] is None
        store.save(audit)
        assert [row["label"] for row in store.classes(number)] == list(audit.labels or ())


def test_whether_a_store_can_be_written_to_leaves_no_trace(url: str) -> None:
    with Store(url) as store:
        store.check_writable()
        store.check_writable()
        with store.database.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM models").scalar() == 0
