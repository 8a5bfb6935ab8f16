"""Which tests are slow: those in slow.txt, which is made from measured times.

    make test ONLY="--junitxml results.xml" && python tests/slow.py results.xml > slow.txt
    mv slow.txt tests/slow.txt

A line of slow.txt is a folder (`web/`) or a file (`test_adapter.py`), where what every test needs
takes long, or a test (`test_store.py::test_two_writers_at_once_lose_nothing`). `@pytest.mark.slow`
on a test or a class says the same, and is what a new test should have.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

SLOW = Path(__file__).with_suffix(".txt")
SECONDS = 0.3  # of a test, all its parameters together
# A browser, worker processes, a server, trained models or large libraries for nearly every test.
WHOLE = (
    "docs/", "experiments/", "playground/", "sweep/", "web/",
    "test_adapter.py", "test_every_model.py", "test_every_tokenizer.py", "test_fuzz_domains.py",
    "test_fuzz_files.py", "test_fuzz_live_domains.py", "test_real_heads.py", "test_real_models.py",
)  # fmt: skip


def slow_tests() -> frozenset[str]:
    lines = SLOW.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def is_slow(file: Path, name: str | None, slow: frozenset[str]) -> bool:
    """Whether a test (its name without parameters) is listed; without a name, its whole file."""
    listed = {f"{file.parent.name}/", f"{file.name}/", file.name, f"{file.name}::{name}"}
    return not listed.isdisjoint(slow)


def measured(results: list[str]) -> dict[str, float]:
    """Seconds by test, from JUnit files."""
    seconds: dict[str, float] = defaultdict(float)
    for result in results:
        for case in ElementTree.parse(result).getroot().iter("testcase"):
            parts = case.get("classname", "").split(".")
            file = next((part for part in reversed(parts) if part.startswith("test_")), parts[-1])
            name = case.get("name", "").partition("[")[0]
            seconds[f"{file}.py::{name}"] += float(case.get("time", 0))
    return seconds


def main() -> None:
    files = {path.name: path for path in SLOW.parent.rglob("test_*.py")}
    whole = frozenset(WHOLE)
    listed = [
        test
        for test, seconds in sorted(measured(sys.argv[1:]).items())
        if seconds >= SECONDS and not is_slow(files[test.partition("::")[0]], None, whole)
    ]
    print("# What `make quick` leaves out. Made by tests/slow.py, which says how.")
    print("\n".join([*WHOLE, *listed]))


if __name__ == "__main__":
    main()
