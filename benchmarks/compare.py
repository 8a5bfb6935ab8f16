"""Two versions of uncork on the same heads, one run: python -m benchmarks.compare OLD [--only NAME]

OLD is the `src` folder of another checkout (`git worktree add ../old COMMIT`). Each audit runs in a
process of its own, old and new taking turns, `--repeat` times; the least processor time and the
least wall time of each are printed, and their ratio. Processor time is what to look at on a machine
that does other things too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import uncork
from benchmarks.heads import MADE, REAL

NEW = Path(uncork.__file__).parents[1]
HERE = Path(__file__).parents[1]


def audited(name: str, source: Path) -> dict[str, Any]:
    """One audit by the code in `source`; heads and measuring are those of this checkout."""
    path = os.pathsep.join([str(source), str(HERE)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_audit", name],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the src folder of the other version")
    parser.add_argument("--only", action="append", help="a head's name; may be given again")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    columns = ("audit s", "cpu s", "verify s", "cpu s", "peak MB")
    print(f"{'head':26}" + "".join(f"{c:>9}" for c in columns) + "  counts")
    for name in options.only or [*REAL, *MADE]:
        best: dict[str, dict[str, Any]] = {}
        for _ in range(options.repeat):
            for which, source in (("old", options.old.resolve()), ("new", NEW)):
                row = audited(name, source)
                if which not in best or row["cpu seconds"] < best[which]["cpu seconds"]:
                    best[which] = row
        for which, row in best.items():
            print(
                f"{name:18}{which:8}{row['seconds']:9.2f}{row['cpu seconds']:9.2f}"
                f"{row['verify seconds']:9.2f}{row['verify cpu seconds']:9.2f}{row['peak MB']:9}"
                f"  {row['counts']} {'' if row['verified'] else 'NOT VERIFIED'}",
                flush=True,
            )
        same = best["old"]["unargmaxable"] == best["new"]["unargmaxable"]
        ratio = best["old"]["cpu seconds"] / best["new"]["cpu seconds"]
        print(f"{'':18}ratio of processor time {ratio:.2f}; same verdicts: {same}", flush=True)


if __name__ == "__main__":
    main()
