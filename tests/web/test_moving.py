"""Moving a row and asking: the answer is that of an audit of the changed head."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import uncork
from uncork import Head, UncorkError
from uncork.store import Store
from uncork.theory.random_heads import random_head
from uncork.web.app import make_app
from uncork.web.moving import head as moving
from uncork.web.moving.head import moved_head


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, uncork.Audit]:
    """A store with an audit of 40 classes, beside its weights."""
    folder = tmp_path_factory.mktemp("moving")
    head = random_head(40, 3, bias=True, seed=4)
    np.savez(folder / "head.npz", weight=head.weight, bias=head.bias)
    audit = uncork.audit(uncork.load(str(folder / "head.npz")), jobs=1)
    with Store(folder / "s.db") as store:
        store.save(audit, name="head")
    return folder, audit


@pytest.fixture
def client(kept: tuple[Path, uncork.Audit]) -> Iterator[TestClient]:
    folder = kept[0]
    before = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in folder.iterdir()}
    app = make_app(Store(folder / "s.db", create=False))
    with TestClient(app, base_url="http://127.0.0.1") as asked:
        yield asked
    after = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in folder.iterdir()}
    assert after == before  # it writes nothing


def moved(client: TestClient, class_id: int, **query: Any) -> Any:
    answer = client.get(f"/api/audits/1/classes/{class_id}/moved", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_row_that_is_not_moved_has_the_verdict_of_the_audit(
    client: TestClient, kept: tuple[Path, uncork.Audit]
) -> None:
    audit = kept[1]
    for t in (int(audit.unargmaxable[0]), int(audit.argmaxable[0])):
        found = moved(client, t)
        assert found["verdict"] == str(audit.verdicts[t])
        assert found["weights"] == ""
        assert found["bias"] == audit.head.offsets[t]
        assert "certified" in found["text"]


@pytest.mark.parametrize(("bias", "length"), [(0.7, 1.0), (0.0, 3.0), (-0.4, 0.5), (50.0, 1.0)])
def test_the_answer_is_that_of_an_audit_of_the_changed_head(
    client: TestClient, kept: tuple[Path, uncork.Audit], bias: float, length: float
) -> None:
    head = kept[1].head
    for t in (int(kept[1].unargmaxable[1]), int(kept[1].argmaxable[2])):
        weight, offsets = head.weight.copy(), head.bias.copy()
        weight[t] = (weight[t].astype(np.float64) * length).astype(weight.dtype)
        offsets[t] = offsets[t].astype(np.float64) + bias
        expected = uncork.audit(Head(weight, offsets, domain=head.domain), classes=[t], jobs=1)
        found = moved(client, t, bias=bias, length=length)
        assert found["verdict"] == str(expected.verdicts[t])
        assert found["bias"] == offsets[t]
        named = found["mixture"]["parts"] if found["mixture"] else found["runners_up"]
        assert t not in [entry["class"] for entry in named]


def test_a_large_bias_brings_a_lost_class_back_and_a_low_one_loses_any(
    client: TestClient, kept: tuple[Path, uncork.Audit]
) -> None:
    assert moved(client, int(kept[1].unargmaxable[0]), bias=1e6)["verdict"] == "argmaxable"
    assert moved(client, int(kept[1].argmaxable[0]), bias=-1e6)["verdict"] == "unargmaxable"


def test_weights_that_are_gone_are_said(kept: tuple[Path, uncork.Audit], tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        audit = uncork.audit(random_head(9, 2).replace(source="gone.npz"), jobs=1)
        store.save(audit)
    app = make_app(Store(tmp_path / "s.db", create=False))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        found = moved(client, 1, bias=1)
    assert found["verdict"] is None
    assert "no longer there" in found["weights"]


def test_a_server_that_others_can_reach_moves_nothing(kept: tuple[Path, uncork.Audit]) -> None:
    app = make_app(Store(kept[0] / "s.db", create=False), "0.0.0.0")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/api/audits/1/classes/1/moved")
        page = client.get("/audits/1/classes/1").text
    assert answer.status_code == 403
    assert "this machine alone" in answer.json()["detail"]
    assert "&quot;local&quot;: false" in page


def test_pages_of_others_are_refused(client: TestClient) -> None:
    path = "/api/audits/1/classes/1/moved"
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert client.get(path, headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize(
    "query", ["bias=nan", "bias=inf", "bias=1e31", "length=-1", "length=1e4", "length=x"]
)
def test_what_no_row_can_be_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/api/audits/1/classes/1/moved?{query}").status_code == 422
    assert client.get("/api/audits/1/classes/40/moved").status_code == 404
    assert client.get("/api/audits/2/classes/1/moved").status_code == 404


def test_a_moved_row_is_what_the_heads_own_type_can_hold() -> None:
    head = Head(np.ones((3, 2), np.float16), np.array([8, 0, 0], np.float16))
    assert moved_head(head, 0, 0.001, 1).offsets[0] == 8  # lost in rounding, and the answer says so
    assert moved_head(head, 0, 0.5, 1).bias.dtype == np.float16
    assert moved_head(head, 1, 0, 0.1).weight[1, 0] == np.float16(0.1)
    assert moved_head(head, 1, 0, 1) is head
    for raised, stretched in ((1e6, 1), (0, 1e6)):
        with pytest.raises(UncorkError, match="beyond what float16 holds"):
            moved_head(head, 1, raised, stretched)


def test_a_head_without_a_bias_is_given_one_and_whole_numbers_become_real() -> None:
    head = Head(np.array([[1, 2], [3, 4], [5, 6]], np.int8))
    raised = moved_head(head, 2, 0.25, 1)
    assert raised.offsets.tolist() == [0, 0, 0.25]
    assert moved_head(head, 0, 0, 0.5).rows(0, 2).tolist() == [[0.5, 1], [3, 4]]
    assert head.weight[0].tolist() == [1, 2]


def test_heads_that_take_too_long_or_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    head = random_head(9, 2)
    monkeypatch.setattr(moving, "MOST_BYTES", 10)
    with pytest.raises(UncorkError, match="its bias can be moved"):
        moved_head(head, 1, 0, 2)
    moved_head(head, 1, 1, 1)
    monkeypatch.setattr(moving, "MOST_WORK", 10)
    with pytest.raises(UncorkError, match="takes too long"):
        moved_head(head, 1, 1, 1)
