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


@pytest.mark.parametrize("path", ["/api/audits/2147483647", "/api/audits/1/classes/2147483647"])
def test_the_largest_number_is_just_not_there(url: str, path: str) -> None:
    with Store(url) as store:
        store.save(small_audit())
    with TestClient(make_app(Store(url, create=False)), base_url="http://localhost") as client:
        assert client.get(path).status_code == 404
