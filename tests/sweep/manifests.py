"""Small sweeps, and what a store holds after one, without what differs from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from uncork.store import Store

TIMES = {"seconds", "created", "id", "run", "source"}


def write_manifest(folder: Path, models: int = 4) -> Path:
    """Random heads, two files behind a glob, and one file that is not there."""
    generator = np.random.default_rng(0)
    (folder / "heads").mkdir()
    for name in ("a", "b"):
        np.savez(folder / "heads" / f"{name}.npz", W=generator.normal(size=(30, 2)))
    lines = ['[defaults]\ndomain = "box:10"']
    for seed in range(models):
        lines.append(
            f'[[model]]\nsource = "random:normal,{50 + seed}x3,seed={seed}"\ngroup = "Random"\n'
            f"iterations = {str(seed == 0).lower()}\npatience = 200"
        )
    lines.append('[[model]]\nsource = "heads/*.npz"\ndomain = "unbounded"')
    lines.append('[[model]]\nsource = "missing.npz"\nname = "not there"')
    path = folder / "models.toml"
    path.write_text("\n".join(lines))
    return path


def content(url: str) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]], list[str]]:
    """Audits, their classes, and failures, in an order of their own."""
    with Store(url, create=False) as store:
        audits = sorted(store.audits(), key=lambda audit: (audit.fingerprint, audit.name))
        facts = [
            {key: value for key, value in vars(audit).items() if key not in TIMES}
            for audit in audits
        ]
        classes = [store.classes(audit.id) for audit in audits]
        failures = [
            f"{failure['name']}: {failure['error'].replace(failure['source'], '')}"
            for failure in store.failures()
        ]
    return facts, classes, failures
