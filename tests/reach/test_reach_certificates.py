"""The file of reach's proofs: what it claims is proven again, and no changed claim gets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import Box, Domain, Head, LayerNorm, Unbounded, UncorkError
from uncork.reach import (
    Certificates,
    best_rank,
    check_certificates,
    highest_probability,
    read_certificates,
    sparse_probability,
    write_certificates,
)

DOMAINS = [Box(2.0), Unbounded(), LayerNorm(np.linspace(0.5, 2, 3), np.linspace(-1, 1, 3))]


def head_of(domain: Domain) -> Head:
    rng = np.random.default_rng(11)
    weight = rng.normal(size=(14, 3))
    weight[12:] = 0.1 * rng.normal(size=(2, 3))  # inside the hull of the others
    return Head(weight, 0.2 * rng.normal(size=14), domain=domain)


def proofs_of(head: Head) -> Certificates:
    classes = [0, 5, 12, 13]
    return Certificates(
        head.fingerprint, head.domain,
        highest_probability(head, classes, jobs=1, device="cpu"),
        best_rank(head, classes, jobs=1),
        sparse_probability(head, classes, 1.5, jobs=1, device="cpu"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def head() -> Head:
    return head_of(Box(2.0))


@pytest.fixture(scope="module")
def path(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("proofs") / "reach.npz"
    write_certificates(proofs_of(head), target)
    return target


def members(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return dict(stored)


def caught(head: Head, arrays: dict[str, Any], path: Path) -> list[str]:
    """What a file of these members is refused for, or what of it is not proven."""
    np.savez(path, **arrays)
    try:
        checked = check_certificates(read_certificates(path, head), head, device="cpu", jobs=1)
    except UncorkError as error:
        return [str(error)]
    return [why for _, why in checked.failed]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_every_bound_is_proven_again_from_the_file(domain: Domain, tmp_path: Path) -> None:
    head = head_of(domain)
    found = proofs_of(head)
    write_certificates(found, tmp_path / "all.npz")
    back = read_certificates(tmp_path / "all.npz", head)
    for kind in ("probability", "rank", "sparse"):
        was, now = getattr(found, kind), getattr(back, kind)
        for name in ("classes", "lower", "upper", "inputs"):
            np.testing.assert_array_equal(getattr(was, name), getattr(now, name))
    checked = check_certificates(back, head, device="cpu", jobs=1)
    assert checked.ok
    assert checked.held == {"probability": 4, "rank": 4, "sparse probability": 4}


CLAIMS = {
    "probability_lower": (lambda v: np.minimum(v * 1.001, 1) + 1e-6, "lower bound on its prob"),
    "probability_upper": (lambda v: v * 0.999, "upper bound on its probability"),
    "sparse_lower": (lambda v: v + 0.001, "lower bound on its sparse"),
    "sparse_upper": (lambda v: v - 0.001, "upper bound on its sparse"),
    "sparse_whole": (lambda v: 1 - v, "whole support"),
    "sparse_support": (lambda v: 1 - v, "support"),
    "rank_lower": (lambda v: v + 1, "is never better than"),
    "rank_upper": (lambda v: v - 1, "at its input the rank is not"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_made_stronger_is_not_proven(
    name: str, head: Head, path: Path, tmp_path: Path
) -> None:
    change, why = CLAIMS[name]
    arrays = members(path)
    arrays[name] = change(arrays[name])
    told = caught(head, arrays, tmp_path / "changed.npz")
    assert len(told) >= 3
    assert any(why in one for one in told)


PROOFS = {
    "probability_input": lambda v: v * 0.3,
    "probability_mixture_input": lambda v: v * 0 + 1.9,
    "probability_class": lambda v: v[::-1],
    "probability_bulk": lambda v: v + 0.5,
    "rank_input": lambda v: -v,
    "rank_class": lambda v: (v + 1) % 14,
    "sparse_inputs": lambda v: v * 0.3,
    "sparse_class": lambda v: v[::-1],
    "sparse_mixture_inputs": lambda v: v * 0 + 1.9,
    "sparse_bulk": lambda v: v + 2.0,
}


@pytest.mark.parametrize("name", PROOFS)
def test_claims_with_other_proofs_are_not_proven(
    name: str, head: Head, path: Path, tmp_path: Path
) -> None:
    arrays = members(path)
    changed = PROOFS[name](arrays[name])
    assert not np.array_equal(changed, arrays[name])
    if name == "probability_mixture_input":  # read only where a share is spread over all
        arrays["probability_bulk"] = arrays["probability_bulk"] + 1e-9
    arrays[name] = changed
    assert caught(head, arrays, tmp_path / "changed.npz")


@pytest.mark.parametrize(
    "damage",
    [
        {"mixture_weight": lambda v: -v},
        {"mixture_class": lambda v: v * 0 + 3},  # every mixture names the same class
        {"mixture_class": lambda v: v + 100},
        {"mixture_size": lambda v: v + 1},
        {"rank_mixtures": lambda v: v + 1},
        {"probability_lower": lambda v: v[:-1]},
        {"probability_input": lambda v: v[:, :-1]},
        {"probability_input": lambda v: np.full_like(v, np.nan)},
        {"probability_upper": lambda v: v.astype(np.int64)},
        {"probability_class": lambda v: v - 1},
        {"sparse_epsilon": lambda v: -v},
        {"sparse_weights_of": lambda v: np.append(v, 99)},
        {"header": lambda v: np.array(str(v).replace('"version": 1', '"version": 2'))},
        {"header": lambda v: np.array(str(v).replace("uncork reach", "uncork wreck"))},
        {"header": lambda v: np.array(str(v)[:-2])},
    ],
    ids=lambda damage: "-".join(damage),
)
def test_damage_is_refused_or_proves_nothing(
    damage: dict[str, Any], head: Head, path: Path, tmp_path: Path
) -> None:
    arrays = members(path)
    for name, change in damage.items():
        assert arrays[name].size or name == "sparse_weights_of"
        arrays[name] = change(arrays[name])
    assert caught(head, arrays, tmp_path / "damaged.npz")


def test_the_weights_of_a_sparsemax_proof_are_part_of_it(tmp_path: Path) -> None:
    """Sparsemax's kinks are proven with weights of their own, which the file holds."""
    rng = np.random.default_rng(3)
    head = Head(rng.normal(size=(16, 3)), 0.1 * rng.normal(size=16), domain=Box(1.0))
    found = sparse_probability(head, None, 2.0, jobs=1, device="cpu")
    target = tmp_path / "sparsemax.npz"
    write_certificates(Certificates(head.fingerprint, head.domain, sparse=found), target)
    arrays = members(target)
    assert len(arrays["sparse_weights"])
    assert not caught(head, arrays, tmp_path / "same.npz")
    assert caught(head, {**arrays, "sparse_weights": -arrays["sparse_weights"]}, target)
    some = arrays["sparse_weights_class"]
    assert caught(head, {**arrays, "sparse_weights_class": (some + 1) % 16}, target)


def test_an_input_outside_the_domain_reaches_nothing(
    head: Head, path: Path, tmp_path: Path
) -> None:
    arrays = members(path)
    for name in ("probability_input", "rank_input", "sparse_inputs"):
        outside = {**arrays, name: arrays[name] * 0 + 2.5}
        assert len(caught(head, outside, tmp_path / "outside.npz")) == 4


def test_a_wider_domain_than_was_proven_is_another_claim(
    head: Head, path: Path, tmp_path: Path
) -> None:
    """The domain stands in the file: a wider one in its place makes the upper bounds false."""
    arrays = members(path)
    wide = tmp_path / "wide.npz"
    found = proofs_of(head.replace(domain=Box(3.0)))
    write_certificates(found, wide)
    other = members(wide)
    swapped = {**arrays, **{k: other[k] for k in other if k.startswith("domain_")}}
    swapped["header"] = other["header"]
    assert any("upper bound on its probability" in why for why in caught(head, swapped, wide))


def test_certificates_of_other_weights_are_refused(head: Head, path: Path) -> None:
    other = head.replace(bias=head.offsets + 1e-9)
    with pytest.raises(UncorkError, match="other weights"):
        check_certificates(read_certificates(path, other), other)
    with pytest.raises(UncorkError):
        read_certificates(path, Head(np.eye(3)))


def test_what_is_no_such_file_is_said(head: Head, path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.npz"
    cut.write_bytes(path.read_bytes()[:-100])
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    extra = tmp_path / "extra.npz"
    np.savez(extra, **members(path), surprise=np.ones(3))  # type: ignore[arg-type]
    for wrong in (cut, text, extra, tmp_path / "none.npz"):
        with pytest.raises(UncorkError, match=wrong.name):
            read_certificates(wrong, head)
