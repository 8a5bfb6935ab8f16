"""The file of a retrieval: what it claims is proven again, and nothing else is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.domain import Hull
from uncork.retrieval import Judgements, Retrieval, TopSet, retrieve, verify_retrieval
from uncork.retrieval.archive import holds_retrieval, metric_of
from uncork.retrieval.examples import random_items

Members = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def items() -> Items:
    return random_items(20, 3, seed=2)


@pytest.fixture(scope="module")
def found(items: Items) -> Retrieval:
    return retrieve(items, Judgements.every(20, 2), k=3)


@pytest.fixture
def file(found: Retrieval, tmp_path: Path) -> Path:
    path = tmp_path / "p.npz"
    found.save(path)
    return path


def changed(path: Path, change: Callable[[Members], None]) -> Path:
    with np.load(path) as archive:
        members = {name: np.array(archive[name]) for name in archive.files}
    change(members)
    np.savez(path, **members)
    return path


def header(members: Members, **values: object) -> None:
    held = json.loads(str(members["header"]))
    held.update(values)
    members["header"] = np.array(json.dumps(held))


def test_what_is_written_is_read_and_proven_again(
    found: Retrieval, file: Path, items: Items
) -> None:
    assert holds_retrieval(file)
    assert metric_of(file) == "inner"
    again = Retrieval.load(file, items)
    assert again.counts == found.counts
    assert again.recall == found.recall
    assert again.judgements.queries == found.judgements.queries
    checked = verify_retrieval(file, items)
    assert checked.ok
    assert checked.held == {
        "possible": found.counts["possible"], "impossible": found.counts["impossible"],
        "bounds": 190,
    }  # fmt: skip
    assert any(place.conflicts for place in again.places)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_every_metric_and_an_image_as_domain_can_be_stored(metric: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = Items(rng.normal(size=(12, 3)), metric)
    domain = Hull(rng.normal(size=(5, 3)))
    found = retrieve(items, Judgements.every(6, 2), k=2, domain=domain)
    found.save(tmp_path / "p.npz")
    assert verify_retrieval(tmp_path / "p.npz", items).ok
    assert Retrieval.load(tmp_path / "p.npz", items).domain == domain
    other = Items(items.vectors, "inner")
    with pytest.raises(UncorkError, match=f"give --metric {metric}"):
        Retrieval.load(tmp_path / "p.npz", other)


def _flip(members: Members) -> None:
    v = members["query_verdict"]
    members["query_verdict"] = np.where(v == 1, 2, 1).astype(np.int8)


def _inputs(members: Members) -> None:
    members["top_input"] = -members["top_input"]


def _weights(members: Members) -> None:
    members["right_weight"] = np.roll(members["right_weight"], 1)


def _higher(members: Members) -> None:
    members["query_lower"] = members["query_upper"] = np.full(190, 2)


def _lower(members: Members) -> None:
    members["query_upper"] = np.zeros(190, dtype=np.int64)


def _others(members: Members) -> None:
    members["relevant_item"] = (members["relevant_item"] + 1) % 20
    pairs = np.sort(members["relevant_item"].reshape(-1, 2), axis=1)
    members["relevant_item"] = pairs.reshape(-1)


def _first_places(members: Members) -> None:
    header(members, k=1)


@pytest.mark.parametrize(
    "change", [_flip, _inputs, _weights, _higher, _lower, _others, _first_places]
)
def test_a_claim_that_is_not_proven_fails(
    change: Callable[[Members], None], file: Path, items: Items
) -> None:
    assert not verify_retrieval(changed(file, change), items).ok


def test_proofs_of_other_vectors_prove_nothing(file: Path, items: Items) -> None:
    other = Items(items.vectors + np.float32(0.5))
    assert len(verify_retrieval(file, other).failed) == 190


def test_an_undecided_query_claims_nothing(file: Path, items: Items) -> None:
    def undecided(members: Members) -> None:
        members["query_verdict"][:] = TopSet.UNDECIDED
        members["query_lower"][:], members["query_upper"][:] = 0, 2

    checked = verify_retrieval(changed(file, undecided), items)
    assert checked.ok
    assert checked.held["possible"] == checked.held["impossible"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("query_upper"),
        lambda m: m.update(query_verdict=m["query_verdict"] + 7),
        lambda m: m.update(relevant_size=m["relevant_size"] * 0),
        lambda m: m.update(relevant_item=m["relevant_item"] + 20),
        lambda m: m.update(relevant_item=m["relevant_item"] * 0),
        lambda m: m.update(pair_left=m["pair_left"] * 2),
        lambda m: m.update(pair_conflict=m["pair_conflict"] - 5),
        lambda m: m.update(pair_conflict=m["pair_conflict"] + 9),
        lambda m: m.update(top_input=m["top_input"][:, :1]),
        lambda m: header(m, k=0),
        lambda m: header(m, k="3"),
        lambda m: header(m, version=9),
        lambda m: header(m, metric="manhattan"),
        lambda m: header(m, queries=["a"]),
        lambda m: header(m, items=3),
        lambda m: header(m, domain={"kind": "nowhere"}),
        lambda m: header(m, exact={"top": {"9999": ["1/1"]}, "place": {}}),
        lambda m: header(m, exact={"top": {"0": ["1/0"] * 3}, "place": {}}),
        lambda m: header(m, long={"0": [["f" * 99999], ["1"]]}),
        lambda m: header(m, long=3),
        lambda m: header(m, kind="something else"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    change: Callable[[Members], None], file: Path, items: Items
) -> None:
    with pytest.raises(UncorkError) as refused:
        Retrieval.load(changed(file, change), items)
    assert "\n" not in str(refused.value)


def test_a_truncated_file_is_refused(file: Path, items: Items) -> None:
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(UncorkError):
        Retrieval.load(file, items)
