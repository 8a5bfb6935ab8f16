"""The trained heads, audited: can every unit be the first choice for some input?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from translation.runs import Folder, write_json
from translation.tables import table
from uncork.core.errors import UncorkError


def audit_heads(results: Path, prepared: Path, jobs: int | None = None) -> str:
    """Each head twice: inputs within ±100, and inputs that its own layer norm can give."""
    from uncork import Box, Head, LayerNorm, audit

    folder = Folder(results)
    paths = sorted((folder.path / "heads").glob("*.npz"))
    if not paths:
        raise UncorkError(f"{folder.path / 'heads'}: no heads; run the train stage first")
    labels = _labels(prepared / "target.json")
    path = results / "audit.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for head_path in paths:
        name = head_path.stem
        if name in found:
            continue
        with np.load(head_path, allow_pickle=False) as arrays:
            weight, bias = arrays["weight"], arrays["bias"]
            norm = LayerNorm(arrays["gain"], arrays["shift"])
        head = Head(weight, bias, labels, source=name)
        row: dict[str, Any] = {"classes": head.classes, "features": head.features}
        for domain_name, domain in (("within ±100", Box(100)), ("its layer norm", norm)):
            result = audit(head, domain=domain, device="cpu", jobs=jobs)
            row[domain_name] = {
                "counts": {k: int(v) for k, v in result.counts.items()},
                "seconds": result.seconds,
                "unargmaxable": [labels[i] for i in result.unargmaxable],
            }
            print(f"{name}, inputs {domain_name}: {row[domain_name]['counts']}", flush=True)
        found[name] = row
        write_json(path, found)
    rows = []
    for name, row in found.items():
        for domain_name in ("within ±100", "its layer norm"):
            counts = row[domain_name]["counts"]
            rows.append(
                [
                    name,
                    f"{row['classes']:,} × {row['features']}",
                    domain_name,
                    *(str(counts.get(k, 0)) for k in ("argmaxable", "unargmaxable", "undecided")),
                ]
            )
    return table(
        ["head", "classes × features", "inputs", "argmaxable", "unargmaxable", "undecided"], rows
    )


def _labels(path: Path) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
