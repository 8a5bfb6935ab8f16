"""docs/contributing, "how to add a domain", followed: one module, one import."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.optimize import linprog
from typer.testing import CliRunner

from uncork import Audit, Domain, Head, Image, UncorkError, audit, verify
from uncork.cli import app
from uncork.domain import parse_domain
from uncork.domain.file import read_domain, write_domain
from uncork.domain.protocol import KINDS

MODULE = '''
# [docs: begin]
"""The cross-polytope: inputs whose absolute values have a bounded sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from uncork.core.text import number
from uncork.domain.protocol import Domain, register


@register
@dataclass(frozen=True)
class CrossPolytope(Domain):
    """Σ |x_j| ≤ radius."""

    radius: float

    kind = "l1"  # in files, and in --domain l1:3
    numbers = ("radius",)  # what files and text hold of it
    forms = ("l1:R",)

    def support_exactly(self, r: Sequence[Fraction]) -> Fraction:
        return Fraction(self.radius) * max(abs(v) for v in r)

    def contains_exactly(self, x: Sequence[Fraction]) -> bool:
        return sum(abs(v) for v in x) <= Fraction(self.radius)

    def in_words(self, features: int) -> str:
        return f"every input whose absolute values sum to at most {number(self.radius)}"
# [docs: end]
'''

RADIUS = 1.5


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported from a package that uncork has never heard of."""
    package = tmp_path / "own_domains"
    package.mkdir()
    (package / "__init__.py").write_text("from own_domains.cross_polytope import CrossPolytope\n")
    (package / "cross_polytope.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield importlib.import_module("own_domains")
    KINDS.pop("l1")
    for name in [name for name in sys.modules if name.startswith("own_domains")]:
        del sys.modules[name]


def margins(head: Head, radius: float, matrix: np.ndarray | None = None) -> np.ndarray:
    """By how much each class can lead at most, by SciPy: x = M (p − q), Σ(p + q) ≤ radius."""
    rows = head.rows(0, head.classes) @ (np.eye(head.features) if matrix is None else matrix)
    bias, width = head.offsets, rows.shape[1]
    best = []
    for t in range(head.classes):
        others = np.arange(head.classes) != t
        away = rows[others] - rows[t]
        limits = np.hstack([away, -away, np.ones((len(away), 1))])
        inside = np.append(np.ones(2 * width), 0.0)
        solved = linprog(
            np.append(np.zeros(2 * width), -1.0), A_ub=np.vstack([limits, inside]),
            b_ub=np.append(bias[t] - bias[others], radius),
            bounds=[(0, None)] * (2 * width) + [(None, 1)], method="highs",
        )  # fmt: skip
        best.append(-solved.fun)
    return np.array(best)


def random_head(classes: int, features: int, bias: bool, domain: Domain) -> Head:
    rng = np.random.default_rng(classes)
    weight = rng.standard_normal((classes, features)).astype(np.float32)
    return Head(weight, rng.standard_normal(classes) if bias else None, domain=domain)


@pytest.mark.parametrize(("classes", "features", "bias"), [(40, 3, True), (40, 3, False),
                                                           (30, 5, True)])  # fmt: skip
def test_support_and_contains_are_enough_to_decide_every_class(
    new: ModuleType, classes: int, features: int, bias: bool, tmp_path: Path
) -> None:
    head = random_head(classes, features, bias, new.CrossPolytope(RADIUS))
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    assert found.argmaxable.tolist() == np.flatnonzero(margins(head, RADIUS) > 1e-9).tolist()
    assert len(found.unargmaxable) > 3
    for t in found.argmaxable.tolist():
        witness = found.proofs.exact[t].fractions() if t in found.proofs.exact else found.witness(t)
        assert sum(abs(Fraction(v)) for v in witness) <= Fraction(RADIUS)
    found.save(tmp_path / "proofs.npz")
    again = Audit.load(tmp_path / "proofs.npz")
    assert again.domain == head.domain
    assert verify(again, head).ok


def test_it_is_a_base_for_images_too(new: ModuleType) -> None:
    matrix = np.random.default_rng(5).standard_normal((4, 3))
    head = random_head(30, 4, True, Image(new.CrossPolytope(RADIUS), matrix))
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    wins = np.flatnonzero(margins(head, RADIUS, matrix) > 1e-9)
    assert found.argmaxable.tolist() == wins.tolist()
    assert verify(found, head).ok


def test_a_larger_domain_s_witness_is_refused(new: ModuleType) -> None:
    """The outline of a set that is searched is larger than the set: proofs are not."""
    large = random_head(40, 3, True, new.CrossPolytope(4 * RADIUS))
    small = large.replace(domain=new.CrossPolytope(RADIUS))
    lost = np.setdiff1d(audit(large).argmaxable, audit(small).argmaxable)
    assert len(lost)
    claimed = audit(large)
    claimed.domain = small.domain
    assert set(lost.tolist()) <= set(verify(claimed, small).failed)


def test_commands_reports_and_files_know_it_by_name(new: ModuleType, tmp_path: Path) -> None:
    head = random_head(40, 3, True, new.CrossPolytope(RADIUS))
    model, proofs, page, result = (tmp_path / n for n in ("m.npz", "p.npz", "r.html", "r.json"))
    np.savez(model, weight=head.weight, bias=head.offsets)

    def run(*arguments: object) -> int:
        ran = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        return ran.exit_code

    assert run("audit", model, "--domain", f"l1:{RADIUS}", "--certificates", proofs,
               "--report", page, "--json", result, "--quiet") == 0  # fmt: skip
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["domain"] == "l1:1.5"
    assert found["proven"] is True
    assert found["counts"]["undecided"] == 0
    text = page.read_text(encoding="utf-8")
    assert "every input whose absolute values sum to at most 1.5" in text
    assert "--domain l1:1.5" in text
    assert run("verify", proofs, model, "--quiet") == 0


def test_it_is_read_back_from_text_and_from_a_file(new: ModuleType, tmp_path: Path) -> None:
    domain = new.CrossPolytope(0.1)
    assert parse_domain(domain.spec()) == domain
    write_domain(tmp_path / "d.npz", Image(domain, np.ones((2, 2))), {"from": "a test"})
    again, about = read_domain(tmp_path / "d.npz")
    assert again == Image(domain, np.ones((2, 2)))
    assert about == {"from": "a test"}
    for wrong in ("l1", "l1:", "l1:a", "l1:1,2"):
        with pytest.raises(UncorkError, match=r"expected box:R, .*, l1:R, @FILE"):
            parse_domain(wrong)


def test_a_second_domain_of_the_same_kind_is_refused(new: ModuleType) -> None:
    from uncork.domain import register

    other = type("Other", (Domain,), {"kind": "l1"})
    with pytest.raises(UncorkError, match="already is a domain of kind 'l1'"):
        register(other)
