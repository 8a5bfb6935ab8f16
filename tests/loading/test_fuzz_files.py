"""A thousand damaged files of all formats, always the same; `make fuzz-files` tries more."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from fuzz_files import Fuzzer, damaged, stop

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer(tmp_path_factory.mktemp("fuzz"), seed=1)


def test_damaged_files_end_soon_and_in_one_line(fuzzer: Fuzzer) -> None:
    before = signal.signal(signal.SIGPROF, stop)
    try:
        wrong = {k: found for k in range(1000) if (found := fuzzer.run(k)) is not None}
    finally:
        signal.signal(signal.SIGPROF, before)
    assert wrong == {}
    # Some are still read, most are not: neither the damage nor the checks are for nothing.
    assert fuzzer.counts["read"] > 100
    assert fuzzer.counts["refused"] > 500


def test_damage_is_the_same_on_every_machine(fuzzer: Fuzzer) -> None:
    import random

    whole = fuzzer.whole["domain.npz"]
    some = [damaged(whole, whole, random.Random(f"1-{k}")) for k in range(20)]
    assert some == [damaged(whole, whole, random.Random(f"1-{k}")) for k in range(20)]
    assert len(set(some)) > 15


def test_a_file_that_violates_is_told_and_kept(fuzzer: Fuzzer, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise KeyError(path.name)

    name = "domain.npz"
    path, check = fuzzer.formats[name]
    try:
        fuzzer.formats = {name: (path, fail)}
        told = fuzzer.run(7)
    finally:
        fuzzer.formats = {name: (path, check)}
    assert told is not None
    assert "KeyError" in told
    assert (fuzzer.folder / f"violation-7-{name}").is_file()
