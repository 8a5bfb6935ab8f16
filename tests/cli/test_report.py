"""`uncork audit --report`: the file it writes, and the commands it shows."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import numpy as np
from running import Run

from uncork import Head, audit
from uncork.report.page import write_report


def test_its_commands_check_the_head_that_was_audited(run: Run, tmp_path: Path) -> None:
    model, page, proofs = (tmp_path / name for name in ("a b.npz", "r.html", "proofs.npz"))
    np.savez(model, other=np.eye(5), turned=np.eye(3, 4))
    chosen = ["--weight", "turned", "--transpose"]
    assert run("audit", model, *chosen, "--report", page).status == 0
    shown = re.search(r'id="commands">(.*?)</code>', page.read_text(), re.S)
    assert shown is not None
    lines = html.unescape(shown[1]).splitlines()
    audited, verified = (shlex.split(line)[1:] for line in lines)
    audited[audited.index("proofs.npz")] = verified[verified.index("proofs.npz")] = str(proofs)
    assert "4 classes × 3 features" in run(*audited).out
    assert "every proof holds" in run(*verified).out


def test_it_is_written_whole_or_not_at_all(run: Run, square: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert f"report written to {target}" in run("audit", square, "--report", target).out
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")
    write_report(audit(Head(np.eye(2))), target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "square.npz"]
