"""The public models of Grivas et al. (ACL 2022), swept over again, our counts beside the paper's.

    python experiments/grivas2022.py --store grivas2022.db

Reads `grivas2022.toml`, 43 models of the Hugging Face hub, of which only the heads are downloaded
(about 3 GB). A second call continues where the first stopped, or prints the table again; a model
that cannot be had is said to be missing, and the rest goes on. The models of Edinburgh and Bergamot
are not on the hub: docs/how-to/coming-from-stollen.md says how to sweep over files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from uncork import UncorkError, Verdict
from uncork.store import Store, StoredAudit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="example: python experiments/grivas2022.py --store grivas2022.db",
    )
    parser.add_argument("--store", required=True, help="file or postgresql:// URL for the results")
    parser.add_argument("--manifest", type=Path, help="other models (default: the paper's)",
                        default=Path(__file__).with_name("grivas2022.toml"))  # fmt: skip
    parser.add_argument("--workers", type=int, help="processes (default: one a core)")
    return parser.parse_args(arguments)


def run_sweep(asked: argparse.Namespace) -> None:
    """`uncork sweep`, which records a model that fails and goes on."""
    command = [sys.executable, "-m", "uncork", "sweep", str(asked.manifest),
               "--store", asked.store, "--resume"]  # fmt: skip
    if asked.workers:
        command += ["--workers", str(asked.workers)]
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status not in (0, 1):  # 1: some model failed, which the table says
        sys.exit(status)


def paper_counts(manifest: Path) -> dict[str, dict[str, Any]]:
    """What the manifest says that the paper found, by the model's name."""
    models = tomllib.loads(manifest.read_text("utf-8"))["model"]
    return {model["name"]: model.get("x-paper", {}) for model in models}


def lost_tokens(store: Store, audit: StoredAudit) -> list[str]:
    rows = store.classes(audit.id, verdict=Verdict.UNARGMAXABLE, limit=audit.unargmaxable)
    return [row["label"] or str(row["class"]) for row in rows]


def print_table(store: Store, paper: dict[str, dict[str, Any]]) -> None:
    ours = {audit.name: audit for audit in store.audits()}
    print(f"{'model':<22} {'asked':>7}  {'potentially: paper':>18} {'ours':>6}"
          f"  {'unargmaxable: paper':>19} {'ours':>6}  {'tied':>5} {'undecided':>9}")  # fmt: skip
    tokens: set[str] = set()
    for name, theirs in paper.items():
        found = ours.get(name)
        left, lost = (str(theirs.get(key, "–")) for key in ("potentially", "unargmaxable"))
        if found is None:
            print(f"{name:<22} {'':>7}  {left:>18} {'':>6}  {lost:>19} {'':>6}  not audited")
            continue
        potentially = "–" if found.potentially is None else f"{found.potentially:,}"
        print(
            f"{name:<22} {found.asked:>7,}  {left:>18} {potentially:>6}  {lost:>19}"
            f" {found.unargmaxable:>6,}  {found.tied:>5,} {found.undecided:>9,}"
        )
        tokens.update(lost_tokens(store, found))
    there = [name for name in paper if name in ours]
    print(
        f"{len(there)} of {len(paper)} models; "
        f"{sum(ours[name].unargmaxable > 0 for name in there)} have unargmaxable classes, "
        f"{len(tokens)} distinct tokens in all (paper: 13 of these models, 427 tokens)"
    )


def main(arguments: list[str] | None = None) -> None:
    asked = options(arguments)
    run_sweep(asked)
    with Store(asked.store, create=False) as store:
        print_table(store, paper_counts(asked.manifest))
        for failure in store.failures():
            print(f"failed: {failure['name']}: {failure['error']}")


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
