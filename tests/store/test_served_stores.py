"""The API over stores of both kinds: the same answers, whatever text is asked for."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.store.audits import AWKWARD, small_audit

from uncork.store import Store
from uncork.web.app import make_app


def test_a_served_store_answers_the_same_on_every_database(url: str) -> None:
    with Store(url) as store:
        for seed in (0, 1):
            store.save(small_audit(seed), name=AWKWARD[5], group=AWKWARD[2])
        store.record_failure("\x00", "\ud800", name="\x00")
    app = make_app(Store(url, create=False))
    with TestClient(app, base_url="http://localhost") as client:

        def get(path: str, **query: object) -> dict:
            answer = client.get(path, params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        for key in ("id", "name", "group", "share", "created", "features", "undecided"):
            assert get("/api/audits", sort=key, descending=True)["total"] == 2
        assert get("/api/groups")["items"] == [AWKWARD[2]]
        assert get("/api/audits", name="SCRIPT")["total"] == 2
        assert get("/api/audits", group=AWKWARD[2])["total"] == 2
        for text in (*AWKWARD[1:], "\x00", "%", "_", "\\"):
            query = text[:900].encode("utf-8", "replace").decode()
            get("/api/audits", name=query)
            get("/api/audits/1/classes", label=query)
            get("/api/results", model=query, limit=3)
            get("/api/unargmaxable", model=query)
            get("/api/audits/1/classes", search=query)
        whole = get("/api/audits/1/classes", whole_labels=True)
        labels = [item["label"] for item in whole["items"]]
        assert labels[: len(AWKWARD)] == list(AWKWARD)
        for number in range(len(AWKWARD)):
            described = get(f"/api/audits/1/classes/{number}")
            assert [past["class"] for past in described["history"]] == [number, number]
        for search, first, total in (("WORD1", 10, 10), ("12", 12, 1), ("U+0077", 10, 30)):
            found = get("/api/audits/1/classes", search=search)
            assert (found["total"], found["items"][0]["class"]) == (total, first)
            page = get("/api/audits/1/classes", search=search, limit=1, offset=total - 1)
            assert (page["total"], page["items"]) == (total, found["items"][-1:])
            assert get("/api/audits/1/classes", search=search, offset=total)["total"] == total
        for order in ("class", "label", "verdict", "margin"):
            ids = [item["class"] for item in get("/api/audits/1/classes", sort=order)["items"]]
            assert sorted(ids) == list(range(40))
        assert get("/api/compare", before=1, after=2)["total"] > 0
        (failure,) = get("/api/failures")["items"]
        assert (failure["source"], failure["error"]) == ("\x00", "\ud800")


def test_both_names_of_equal_weights_are_listed_shown_and_in_the_history(url: str) -> None:
    with Store(url) as store:
        store.save(small_audit(), name="first", group="G")
        store.save(small_audit(1), name="second", group="H")  # other weights, an earlier checkpoint
        store.save(small_audit(), name="second", group="H")
        store.record_failure("m.npz", "is odd", options={"domain": "auto"}, weights="file:0")
    with TestClient(make_app(Store(url, create=False)), base_url="http://localhost") as client:

        def get(path: str, **query: object) -> dict:
            return client.get(path, params=query).json()

        listed = [(a["id"], a["name"], a["also"]) for a in get("/api/audits")["items"]]
        assert listed == [(1, "first", ["second"]), (1, "second", ["first"]), (2, "second", [])]
        assert [a["name"] for a in get("/api/audits", limit=1, offset=1)["items"]] == ["second"]
        assert get("/api/audits", name="second")["total"] == 2
        assert get("/api/groups")["items"] == ["G", "H"]
        for sort in ("name", "group", "created", "unargmaxable"):
            assert get("/api/audits", sort=sort)["total"] == 3
        for page in ("/audits/1", "/audits/1/classes/3"):
            text = client.get(page).text
            assert "first" in text
            assert "second" in text
        past = [(p["audit"], p["name"]) for p in get("/api/audits/1/classes/12")["history"]]
        assert past == [(1, "first"), (2, "second"), (1, "second")]
        assert len(get("/api/unargmaxable")["items"]) == 3
        classes = get("/api/results", limit=1000)["items"]
        assert [(row["audit"], row["class"]) for row in classes] == [
            (audit, t) for audit in (1, 2) for t in range(40)
        ]
        named = get("/api/results", model="second", limit=1000)["items"]
        assert {row["name"] for row in named} == {"second"}
        assert len(named) == 80
        (failure,) = get("/api/failures")["items"]
        assert (failure["options"], failure["weights"]) == ({"domain": "auto"}, "file:0")


@pytest.mark.parametrize("path", ["/api/audits/2147483647", "/api/audits/1/classes/2147483647"])
def test_the_largest_number_is_just_not_there(url: str, path: str) -> None:
    with Store(url) as store:
        store.save(small_audit())
    with TestClient(make_app(Store(url, create=False)), base_url="http://localhost") as client:
        assert client.get(path).status_code == 404
