"""Label audits among the pages and in the API: listed, searched, and each set proven again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.web.browsing import HOSTILE, Watched

import uncork
from browsers import shows
from uncork.labels import LabelSets, decide_sets
from uncork.store import Store
from uncork.web.app import make_app

NAMES = ("black bird", "robin", "owl", "100% gull", "crow", "wren", "kite", "jay")


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with pairs and triples of eight labels, beside their weights and certificates."""
    folder = tmp_path_factory.mktemp("birds")
    rng = np.random.default_rng(3)
    head = uncork.Head(rng.normal(size=(8, 3)), np.full(8, -0.3), labels=NAMES)
    np.savez(folder / "birds.npz", weight=head.weight, bias=head.bias)
    sets = LabelSets.of_size(8, 2).joined(LabelSets.of_size(8, 3))
    audit = decide_sets(head.replace(source=str(folder / "birds.npz")), sets, jobs=1)
    audit.save(folder / "proofs.npz")
    with Store(folder / "results.db") as store:
        store.save_label_audit(audit, name="birds", certificates=str(folder / "proofs.npz"))
    return folder


@pytest.fixture
def client(birds: Path) -> Iterator[TestClient]:
    app = make_app(Store(birds / "results.db", create=False))
    with TestClient(app, base_url="http://127.0.0.1") as asked:
        yield asked


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get("/api/label-audits" + path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_counts_and_sets_are_those_of_the_audit(client: TestClient) -> None:
    [item] = get(client, "")["items"]
    assert (item["labels"], item["features"], item["sets"]) == (8, 3, 84)
    assert item["feasible"] + item["infeasible"] == 84
    assert get(client, "/1") == item
    found = get(client, "/1/sets", verdict="infeasible", limit=1000)
    assert found["total"] == len(found["items"]) == item["infeasible"]
    first = get(client, "/1/sets", limit=50)
    second = get(client, "/1/sets", limit=50, offset=first["next_offset"])
    assert [row["set"] for row in first["items"] + second["items"]] == list(range(84))
    assert second["next_offset"] is None


@pytest.mark.parametrize(
    ("search", "label"), [("ROBIN", 1), ("100%", 3), ("5", 5), ("owl", 2), ("black b", 0)]
)
def test_sets_are_found_by_a_labels_name_or_number(
    client: TestClient, search: str, label: int
) -> None:
    found = get(client, "/1/sets", search=search, limit=1000)
    every = get(client, "/1/sets", limit=1000)["items"]
    assert found["items"] == [row for row in every if label in row["labels"]]
    assert found["items"][0]["names"] == [NAMES[i] for i in found["items"][0]["labels"]]


def test_a_set_is_shown_with_the_audits_own_proof_certified(client: TestClient) -> None:
    for verdict, shown in (("infeasible", "mixture"), ("feasible", "nearest")):
        row = get(client, "/1/sets", verdict=verdict, limit=1)["items"][0]
        detail = get(client, f"/1/sets/{row['set']}")
        assert detail["check"]["holds"]
        assert "audit's own proof" in detail["check"]["text"]
        assert detail[shown]
        on = {part["label"] for part in detail[shown] if part["on"]}
        assert on <= set(row["labels"])


def test_a_stored_verdict_that_the_weights_contradict_is_said_not_to_hold(
    birds: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes((birds / "results.db").read_bytes())
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE label_sets SET verdict = 3 - verdict WHERE set_id = 4")
        database.execute("UPDATE label_audits SET certificates = NULL")
    with TestClient(make_app(Store(copy, create=False)), base_url="http://127.0.0.1") as client:
        detail = get(client, "/1/sets/4")
        assert detail["check"]["holds"] is False
        assert "does not hold" in detail["check"]["text"]
        assert "anew" in get(client, "/1/sets/5")["check"]["text"]


def test_a_forged_certificate_is_not_shown(birds: Path, client: TestClient) -> None:
    path = birds / "proofs.npz"
    kept = path.read_bytes()
    with np.load(path) as archive:
        members = {name: archive[name] for name in archive.files}
    members["set_verdict"] = 3 - members["set_verdict"]  # every claim turned round
    try:
        np.savez(path, **members)
        detail = get(client, "/1/sets/4")
    finally:
        path.write_bytes(kept)
    assert detail["check"]["holds"]
    assert "audit's own proof," not in detail["check"]["text"]


def test_what_is_not_there_is_not_found(client: TestClient) -> None:
    for path in ("/2", "/2/sets", "/1/sets/84"):
        assert client.get("/api/label-audits" + path).status_code == 404
        assert client.get("/label-audits" + path.replace("/2/sets", "/2")).status_code == 404


def test_stores_from_before_names_were_kept_still_open(birds: Path, tmp_path: Path) -> None:
    copy = tmp_path / "old.db"
    copy.write_bytes((birds / "results.db").read_bytes())
    with sqlite3.connect(copy) as database:
        database.execute("ALTER TABLE label_sets DROP COLUMN names")
        database.execute("ALTER TABLE models DROP COLUMN metric")
        database.execute("DROP TABLE best_ranks")
        database.execute("UPDATE alembic_version SET version_num = '0004'")
    with TestClient(make_app(Store(copy, create=False)), base_url="http://127.0.0.1") as client:
        assert get(client, "/1/sets", search="5")["total"] > 0
        assert get(client, "/1/sets/5")["names"] is None


def test_a_label_is_searched_and_its_sets_proof_opened(
    watch: Callable[..., Watched], serving: Callable[[Path], str], birds: Path
) -> None:
    from playwright.sync_api import expect

    page = watch().page
    page.goto(serving(birds / "results.db") + "/label-audits")
    page.get_by_role("link", name="birds").click()
    expect(page.locator("h1")).to_contain_text("of 84 label sets can never be predicted")
    page.get_by_role("searchbox").fill("gull")
    expect(page.locator("#found")).to_have_text("28 sets")
    page.get_by_label("verdict").select_option("infeasible")
    first = page.locator("#sets tbody tr").first
    expect(first).to_contain_text("infeasible")
    expect(first).to_contain_text("100% gull")
    page.locator("#sets tbody a").first.click()
    expect(page.locator("#set .statement")).to_contain_text("No input gives this answer")
    expect(page.locator("#set")).to_contain_text("certified against the weights just now")


def test_hostile_labels_stay_text(watch: Callable[..., Watched], address: str) -> None:
    page = watch().page
    page.goto(address + "/label-audits/2")
    page.wait_for_selector("#sets tbody tr")
    shows(page, "#sets", HOSTILE[0])
    page.goto(address + "/label-audits/2/sets/16")
    page.wait_for_selector("#set .statement")
    shows(page, "#set", HOSTILE[2])
    shows(page, "#set", "not at hand")
    assert json.loads(page.evaluate("document.body.dataset.page"))["set"] == 16
