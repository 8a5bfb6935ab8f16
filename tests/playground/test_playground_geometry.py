"""The playground's geometry, run in Chromium, agrees with uncork on 1,000 heads."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uncork
from uncork import Box, Head, Unbounded
from uncork.auditing.search.reference import braid_reflect
from uncork.labels import LabelSets, decide_sets
from uncork.theory import counting
from uncork.theory.braid import rankings
from uncork.theory.label_sets import label_sets

Generator = np.random.Generator

KINDS = {
    "normal": lambda rng, c: rng.standard_normal((c, 2)),
    "uniform": lambda rng, c: rng.uniform(-1, 1, (c, 2)),
    "lattice": lambda rng, c: rng.integers(-2, 3, (c, 2)).astype(float),
    "one line": lambda rng, c: rng.standard_normal((c, 1)) @ rng.standard_normal((1, 2)),
    "repeated": lambda rng, c: rng.standard_normal((2, 2))[rng.integers(0, 2, c)],
    "zeros": lambda rng, c: rng.standard_normal((c, 2)) * rng.integers(0, 2, (c, 1)),
    "an ulp off": lambda rng, c: rng.integers(-1, 2, (c, 2)) + rng.integers(-1, 2, (c, 2)) * 2**-52,
    "far apart": lambda rng, c: rng.standard_normal((c, 2)) * 10.0 ** rng.integers(-30, 30, (c, 1)),
}
SHARES = [12, 8, 4, 1, 1, 1, 1, 1]  # mostly heads in general position
BIASES = [
    lambda rng, c: None,
    lambda rng, c: rng.standard_normal(c),
    lambda rng, c: rng.integers(-1, 2, c).astype(float),
    lambda rng, c: rng.standard_normal(c) / 16,
]
DOMAINS = [Unbounded(), Box(100), Box(1), Box(0.125), Box(0.7)]


def random_heads(count: int, most: int, seed: int) -> list[Head]:
    rng = np.random.default_rng(seed)
    shares = np.array(SHARES) / sum(SHARES)
    heads = []
    for _ in range(count):
        classes = int(rng.integers(2, most + 1))
        make = KINDS[rng.choice(list(KINDS), p=shares)]
        bias = BIASES[rng.integers(len(BIASES))](rng, classes)
        domain = DOMAINS[rng.integers(len(DOMAINS))]
        heads.append(Head(make(rng, classes), bias, domain=domain))
    return heads


def as_json(head: Head) -> dict[str, Any]:
    box = None if isinstance(head.domain, Unbounded) else float(head.domain.bounds(2)[1][0])
    bias = None if head.bias is None else head.bias.tolist()
    return {"weight": head.rows(0, head.classes).tolist(), "bias": bias, "box": box}


@pytest.fixture(scope="module")
def geometry(chromium: Any, playground_file: Path) -> Any:
    page = chromium.new_page()
    page.goto(playground_file.as_uri())

    def asked(function: str, *arguments: Any) -> Any:
        return page.evaluate(f"(given) => ({function})(...given)", list(arguments))

    return asked


def test_playground_and_uncork_agree_on_1000_heads(geometry: Any) -> None:
    heads = random_heads(1000, 7, seed=0)
    found = geometry(
        "(heads) => heads.map((head) => uncorkGeometry.judge(head))", [as_json(h) for h in heads]
    )
    verdicts = {"argmaxable": 0, "unargmaxable": 0, "tied": 0}
    for head, judged in zip(heads, found, strict=True):
        truth = [str(v) for v in uncork.audit(head, jobs=1).verdicts]
        assert [entry["verdict"] for entry in judged] == truth, as_json(head)
        for verdict in truth:
            verdicts[verdict] += 1
        for t, entry in enumerate(judged):
            if entry["verdict"] == "unargmaxable":
                assert_blocked(head, t, entry)
    assert min(verdicts.values()) > 50  # every verdict was really tried


def assert_blocked(head: Head, t: int, entry: dict[str, Any]) -> None:
    """Its blockers, at most three, keep the class from winning all by themselves."""
    blockers = [i for i in entry["blockers"] if i != t]
    assert 1 <= len(blockers) <= 3
    weights, rows = entry["weights"], head.rows(0, head.classes)
    if weights is not None and np.abs(rows).max() < 1e3:
        np.testing.assert_allclose(np.array(weights) @ rows[blockers], rows[t], atol=1e-9)
        assert np.array(weights) @ head.offsets[blockers] >= head.offsets[t] - 1e-9
    elif not entry["inBox"]:
        assert weights is not None


def test_blockers_are_enough(geometry: Any) -> None:
    heads = random_heads(30, 8, seed=1)
    found = geometry(
        "(heads) => heads.map((head) => uncorkGeometry.judge(head))", [as_json(h) for h in heads]
    )
    tried = 0
    for head, judged in zip(heads, found, strict=True):
        for t, entry in enumerate(judged):
            if entry["verdict"] != "unargmaxable" or tried >= 30:
                continue
            rows = [t, *entry["blockers"]]
            bias = None if head.bias is None else head.bias[rows]
            few = Head(head.weight[rows], bias, domain=head.domain)
            assert uncork.audit(few, jobs=1).verdicts[0] == uncork.Verdict.UNARGMAXABLE
            tried += 1
    assert tried == 30


def test_witnesses_win(geometry: Any) -> None:
    heads = [head for head in random_heads(150, 7, seed=2) if np.abs(head.weight).max() < 1e3]
    found = geometry(
        "(heads) => heads.map((head) => uncorkGeometry.judge(head))", [as_json(h) for h in heads]
    )
    for head, judged in zip(heads, found, strict=True):
        for t, entry in enumerate(judged):
            if entry["verdict"] == "unargmaxable":
                continue
            x = np.array(entry["witness"])
            assert head.domain.contains(x, 1e-9)
            logits = head.weight @ x + head.offsets
            assert logits[t] >= logits.max() - 1e-9 * (1 + np.abs(x).max())


def test_rankings_are_the_ones_uncork_enumerates(geometry: Any) -> None:
    heads = random_heads(25, 5, seed=3)
    found = geometry(
        "(heads) => heads.map((head) => uncorkGeometry.rankings(head))", [as_json(h) for h in heads]
    )
    for head, listed in zip(heads, found, strict=True):
        domain = None if isinstance(head.domain, Unbounded) else head.domain
        truth = rankings(head, domain=domain)
        assert [tuple(entry["order"]) for entry in listed] == [r.order for r in truth]
        assert [entry["bounded"] for entry in listed] == [r.bounded for r in truth]


def test_the_formula_is_uncorks(geometry: Any) -> None:
    counts = geometry(
        "() => [1,2,3,4,5,6,7,8,9,10].map((c) => [false, true].map((b) => "
        "uncorkGeometry.formula(c, b)))"
    )
    truth = [[counting.rankings(c, 2, bias=b) for b in (False, True)] for c in range(1, 11)]
    assert counts == truth


def test_braid_reflect_takes_the_reference_steps(geometry: Any) -> None:
    heads = [
        Head(head.weight, head.bias, domain=Unbounded())
        for head in random_heads(80, 8, seed=4)
        if len(np.unique(head.weight, axis=0)) == head.classes and np.abs(head.weight).max() < 1e2
    ]
    walk = """(heads) => heads.map((head) => head.weight.map((w, t) => {
        let x = w, made = 0, step = uncorkGeometry.reflect(head, t, x);
        while (step.state === "moved" && made < 40) {
          x = step.x; made += 1; step = uncorkGeometry.reflect(head, t, x);
        }
        return [step.state, made, x];
    }))"""
    found = geometry(walk, [as_json(h) for h in heads])
    won = 0
    for head, walks in zip(heads, found, strict=True):
        for t, (state, made, x) in enumerate(walks):
            truth, reflections = braid_reflect(head, t, patience=40)
            if truth is None:
                assert state != "won"
            else:
                assert (state, made) == ("won", reflections)
                np.testing.assert_allclose(x, truth, rtol=1e-6, atol=1e-9)
                won += made > 0
    assert won > 20


@pytest.mark.parametrize("bias", [None, [0.5]])
def test_a_single_class_always_wins(geometry: Any, bias: list[float] | None) -> None:
    head = {"weight": [[0, 0]], "bias": bias, "box": 1}
    assert geometry("(head) => uncorkGeometry.judge(head)", head)[0]["verdict"] == "argmaxable"
    assert len(geometry("(head) => uncorkGeometry.rankings(head)", head)) == 1


@pytest.mark.slow
def test_playground_and_uncork_find_the_same_label_sets(geometry: Any) -> None:
    for head in random_heads(40, 4, seed=29):
        every = [
            s
            for k in range(head.classes + 1)
            for s in itertools.combinations(range(head.classes), k)
        ]
        decided = decide_sets(head, LabelSets.of(head.classes, every), jobs=1)
        assert not len(decided.undecided)
        found = geometry("uncorkGeometry.labelSets", as_json(head))
        assert [tuple(s["on"]) for s in found] == [every[k] for k in decided.feasible], head


def test_the_playgrounds_count_of_label_sets_is_covers(geometry: Any) -> None:
    for labels, bias in itertools.product(range(1, 11), (False, True)):
        counted = geometry("uncorkGeometry.labelFormula", labels, bias)
        assert counted == label_sets(labels, 2, bias=bias)


def test_a_witness_of_a_label_set_has_exactly_its_labels_on(geometry: Any) -> None:
    head = random_heads(1, 4, seed=1)[0]
    for found in geometry("uncorkGeometry.labelSets", as_json(head)):
        z = head.rows(0, head.classes) @ np.array(found["witness"]) + head.offsets
        assert np.flatnonzero(z > 0).tolist() == found["on"]
