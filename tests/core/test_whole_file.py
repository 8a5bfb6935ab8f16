"""A result's file: whole or not at all, and nothing that was there before is harmed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uncork import Head, UncorkError, audit, verify
from uncork.auditing import Audit
from uncork.core.whole_file import whole_file


@pytest.fixture
def audited() -> Audit:
    return audit(Head(np.array([[1.0, 0], [0, 1], [-1, -1], [0, 0]])), device="cpu", jobs=1)


def test_two_that_write_the_same_and_a_file_of_a_like_name_do_not_meet(tmp_path: Path) -> None:
    path, mine = tmp_path / "r.txt", tmp_path / "r.txt.part"
    mine.write_text("mine")
    with whole_file(path) as first, whole_file(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # which ended last
    assert mine.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_what_fails_in_the_middle_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text("before")

    def written(error: BaseException) -> None:
        with whole_file(path) as target:
            target.write_text("half")
            raise error

    with pytest.raises(KeyboardInterrupt):
        written(KeyboardInterrupt())
    with pytest.raises(UncorkError, match=r"r\.txt cannot be written: No space left"):
        written(OSError(28, "No space left"))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "latest.txt"
    link.symlink_to(tmp_path / "there" / "r.txt")
    with whole_file(link) as target:
        target.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "r.txt").read_text() == "new"


def test_a_file_in_a_folder_that_takes_no_other_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.txt"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # for root there is no such folder
    with whole_file(path) as target:
        assert target == path


@pytest.mark.parametrize(
    "write", [lambda a, p: a.save(p), lambda a, p: a.report(p)], ids=["certificates", "report"]
)
def test_what_is_no_file_is_written_to_and_not_replaced(
    audited: Audit, tmp_path: Path, write: Callable[[Audit, Path], None]
) -> None:
    """A pipe here; /dev/null, for root, would have become a plain file."""
    pipe, got = tmp_path / "pipe", tmp_path / "got"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.write_bytes(pipe.read_bytes()), daemon=True)
    reader.start()
    write(audited, pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(10)
    assert got.stat().st_size > 1000
    if got.read_bytes().startswith(b"PK"):
        assert audited.head is not None
        assert verify(Audit.load(got, audited.head), audited.head, jobs=1).ok
