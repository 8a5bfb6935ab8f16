"""Tables of the documentation say what was measured."""

import json
from pathlib import Path

from benchmarks import nn_gpu_table

ROOT = Path(__file__).parents[2]


def test_the_tables_of_linear_losses_are_those_that_were_measured():
    results = json.loads(nn_gpu_table.RESULTS.read_text(encoding="utf-8"))
    of_errors = json.loads(nn_gpu_table.ERRORS.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "performance.md").read_text(encoding="utf-8")
    assert nn_gpu_table.table(results) in page
    assert nn_gpu_table.small(results) in page
    assert nn_gpu_table.errors(of_errors) in page
    peers = json.loads(nn_gpu_table.RESULTS.with_name("nn_gpu_peers.json").read_text("utf-8"))
    assert nn_gpu_table.table(peers) in page
    assert nn_gpu_table.of_transforms(peers) in page
    assert all(f"- {name}: {what}" in page for name, what in peers["peers"].items())


def test_the_table_of_heads_is_the_one_that_was_measured():
    figures = json.loads((ROOT / "benchmarks/results/nn_heads.json").read_text())["figures"]
    page = (ROOT / "docs" / "how-to" / "heads.md").read_text(encoding="utf-8")
    rows = {}
    for line in page.split("## What it costs")[1].split("\n## ")[0].splitlines():
        if line.startswith(("| `", "| MoS", "| torch's")):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name] = [float(cell.split()[0].rstrip("×")) for cell in cells if cell]
    shown = {"torch": "torch's cross_entropy(linear)", "mos in full": "MoS written in full"}
    for head in {figure["head"] for figure in figures}:
        own = [figure for figure in figures if figure["head"] == head]
        name = shown.get(head) or next(row for row in rows if row.startswith(f"`{head}`"))
        keys = (
            ("milliseconds", "GiB") if head == "torch" else ("time / softmax", "memory / softmax")
        )
        measured = [figure[key] for figure in own for key in keys]
        assert len(rows[name]) == len(measured)
        for cell, value in zip(rows[name], measured, strict=True):
            assert abs(cell - value) <= (0.051 if value >= 2.5 else 0.0051), (name, cell, value)
