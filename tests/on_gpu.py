"""What needs a GPU or the oldest torch, from a copy of the tree: `make test-gpu`.

Nothing has to be installed but torch, Triton, pytest and what the tests themselves import; tests of
a package that is not there are skipped. Several files run at a time, each in its own process. The
last line says what ran where, and how it ended. `python tests/on_gpu.py FILE …` runs these alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = [*sorted(ROOT.glob("tests/nn/test_*.py")),
         ROOT / "tests/contributing/test_adding_a_loss.py",
         *sorted(ROOT.glob("tests/auditing/test_*gpu*.py")),
         *sorted(ROOT.glob("tests/labels/test_*gpu*.py")),
         ROOT / "tests/auditing/test_torch_backend.py"]  # fmt: skip
AT_A_TIME = max(1, min(12, 3 * (os.cpu_count() or 1) // 4))


def run(file: Path, results: Path) -> tuple[Path, str, Path, float]:
    """One file in a process of its own: (file, what it printed, its results, seconds)."""
    written = results / f"{file.stem}.xml"
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {
        "PYTHONPATH": path, "UNCORK_WITHOUT_MODELS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider",
         f"--junitxml={written}", str(file)],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    return file, done.stdout + done.stderr, written, time.perf_counter() - began


def counts(written: Path) -> dict[str, int]:
    """Passed, failed and skipped tests; a file that cannot be collected has failed."""
    try:
        suite = ElementTree.parse(written).getroot()[0]
    except (OSError, ElementTree.ParseError, IndexError):
        return {"passed": 0, "failed": 1, "skipped": 0}
    number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    passed = number["tests"] - failed - number["skipped"]
    return {"passed": passed, "failed": failed, "skipped": number["skipped"]}


def versions() -> str:
    import torch

    found = {"torch": torch.__version__}
    for package in ("triton", "transformers", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{device}, Python {platform.python_version()}, " + ", ".join(
        f"{name} {version}" for name, version in found.items()
    )


def commit() -> str:
    """The commit, where git knows it or COMMIT tells it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        named = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except OSError:
        named = ""
    return os.environ.get("COMMIT") or named or "unknown"


def main() -> int:
    began = time.perf_counter()
    # The longest first, so that no process is left alone at the end.
    given = [Path(name).resolve() for name in sys.argv[1:]]
    files = sorted(given or FILES, key=lambda file: -file.stat().st_size)
    total = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory() as results, ThreadPoolExecutor(AT_A_TIME) as pool:
        for file, printed, written, seconds in pool.map(
            lambda file: run(file, Path(results)), files
        ):
            found = counts(written)
            total = {name: total[name] + found[name] for name in total}
            print(f"{file.relative_to(ROOT)}: {found} in {seconds:.0f} s", flush=True)
            if found["failed"]:
                print(printed[-6000:], flush=True)
    said = ", ".join(f"{number} {name}" for name, number in total.items())
    seconds = time.perf_counter() - began
    print(f"test-gpu at {commit()} on {versions()}: {said} in {seconds:.0f} s")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
