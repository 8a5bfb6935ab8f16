"""The JSON API: what it answers, and that nothing anybody asks makes it fail."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from tests.store.audits import large_audit
from tests.web.browsing import HOSTILE, HOSTILE_READING

import uncork
from uncork.store import Store
from uncork.theory.random_heads import random_head
from uncork.web.app import make_app
from uncork.web.figures import dots
from uncork.web.guard import Guard, is_loopback
from uncork.web.weights import WeightsCache

_OURS = {"host": "127.0.0.1"}
PATHS = (
    "/api/audits",
    "/api/audits/{audit_id}",
    "/api/audits/{audit_id}/classes",
    "/api/audits/{audit_id}/classes/{class_id}",
    "/api/audits/{audit_id}/classes/{class_id}/moved",
    "/api/audits/{audit_id}/classes/{class_id}/outlook",
    "/api/audits/{audit_id}/figures",
    "/api/audits/{audit_id}/odd",
    "/api/audits/{audit_id}/report",
    "/api/compare",
    "/api/experiments",
    "/api/failures",
    "/api/groups",
    "/api/label-audits",
    "/api/label-audits/{label_audit_id}",
    "/api/label-audits/{label_audit_id}/sets",
    "/api/label-audits/{label_audit_id}/sets/{set_id}",
    "/api/results",
    "/api/unargmaxable",
)


@pytest.fixture(scope="module")
def client(store_file: Path) -> Iterator[TestClient]:
    before = hashlib.sha256(store_file.read_bytes()).digest()
    app = make_app(Store(store_file, create=False))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client
    assert hashlib.sha256(store_file.read_bytes()).digest() == before  # it only reads
    assert sorted(path.name for path in store_file.parent.iterdir()) == [
        "results.db", "step0.npz", "step1.npz", "step2.npz",
    ]  # fmt: skip


@pytest.fixture
def stored(store_file: Path) -> Iterator[Store]:
    with Store(store_file, create=False) as store:
        yield store


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_audits_come_in_pages(client: TestClient) -> None:
    whole = get(client, "/api/audits")
    assert whole["total"] == len(whole["items"]) == 4
    assert whole["next_offset"] is None
    paged, offset = [], 0
    while offset is not None:
        page = get(client, "/api/audits", limit=3, offset=offset)
        paged += page["items"]
        offset = page["next_offset"]
    assert paged == whole["items"]
    assert get(client, "/api/audits/1") == whole["items"][0]
    assert get(client, "/api/groups")["items"] == sorted([HOSTILE[2], "checkpoints"])


@pytest.mark.parametrize("key", ["unargmaxable", "share", "classes", "name", "created"])
def test_audits_are_sorted(client: TestClient, key: str) -> None:
    items = get(client, "/api/audits", sort=key)["items"]
    if key == "share":
        values = [item["unargmaxable"] / item["asked"] for item in items]
    else:
        values = [item[key] for item in items]
    assert values == sorted(values)
    back = get(client, "/api/audits", sort=key, descending=True)["items"]
    assert [item[key] for item in back if key != "share"] == (
        [] if key == "share" else values[::-1]
    )


def test_classes_come_in_pages_and_by_verdict_and_label(client: TestClient, stored: Store) -> None:
    every = [json.loads(json.dumps(row)) for row in stored.classes(1)]
    every = [{**row, "label_length": len(row["label"])} for row in every]
    paged, after = [], -1
    while after is not None:
        page = get(client, "/api/audits/1/classes", limit=25, after=after)
        assert page["total"] == 60
        paged += page["items"]
        after = page["next_after"]
    assert paged == every
    lost = get(client, "/api/audits/1/classes", verdict="unargmaxable")
    assert lost["items"] == [row for row in every if row["verdict"] == "unargmaxable"]
    found = get(client, "/api/audits/1/classes", label="word1")["items"]
    assert [row["label"] for row in found] == ["word1", *(f"word{k}" for k in range(10, 20))]


def test_what_the_papers_server_answered_is_answered(client: TestClient, stored: Store) -> None:
    experiments = get(client, "/api/experiments", model="mod")["items"]
    assert [item["name"] for item in experiments] == ["model"] * 3
    lost = [item["unargmaxable"] for item in experiments]
    assert lost == sorted(lost)
    ids = get(client, "/api/unargmaxable", model="model")["items"]
    assert [item["audit"] for item in ids] == [1, 2, 3]
    for item in ids:
        rows = stored.classes(item["audit"])
        assert item["ids"] == [r["class"] for r in rows if r["verdict"] == "unargmaxable"]
    rows, after = [], {"audit": 0, "class": -1}
    while after is not None:
        page = get(
            client, "/api/results", model="model", limit=50,
            after_audit=after["audit"], after_class=after["class"],
        )  # fmt: skip
        rows += page["items"]
        after = page["next_after"]
    assert len(rows) == 60 + 60 + 61
    assert [(row["audit"], row["class"]) for row in rows] == [
        (audit, k) for audit, n in ((1, 60), (2, 60), (3, 61)) for k in range(n)
    ]


def test_labels_arrive_as_they_are(client: TestClient) -> None:
    items = get(client, "/api/audits/4/classes", whole_labels=True)["items"]
    assert [item["label"] for item in items] == list(HOSTILE)
    for number in range(len(HOSTILE)):
        described = get(client, f"/api/audits/4/classes/{number}", whole_labels=True)
        assert described["label"] == HOSTILE[number]
    assert get(client, "/api/audits/4")["name"] == HOSTILE[0]


def test_long_labels_are_cut_unless_the_whole_is_asked_for(client: TestClient) -> None:
    number = next(k for k, label in enumerate(HOSTILE) if len(label) > 256)
    whole = HOSTILE[number]
    for path, found in (
        ("/api/audits/4/classes", lambda body: body["items"][number]),
        (f"/api/audits/4/classes/{number}", lambda body: body),
        ("/api/results?after_audit=4", lambda body: body["items"][number]),
        ("/api/compare?before=1&after=4", lambda body: body["changes"][number]),
    ):
        cut = found(client.get(path).json())["label"]
        assert cut == f"{whole[:256]}… ({len(whole):,} characters)"
        mark = "&" if "?" in path else "?"
        assert found(client.get(f"{path}{mark}whole_labels=true").json())["label"] == whole
    assert get(client, "/api/audits/4/classes")["items"][number]["label_length"] == len(whole)


def test_classes_are_searched_sorted_and_passed_over(client: TestClient, stored: Store) -> None:
    rows = stored.classes(1)

    def asked(**query: Any) -> list[int]:
        found = get(client, "/api/audits/1/classes", **query)
        assert found["total"] >= len(found["items"])
        return [item["class"] for item in found["items"]]

    assert asked(search="WORD5") == [5, *range(50, 60)]
    assert asked(search="7") == [7, 17, 27, 37, 47, 57]
    assert asked(search="U+0064", limit=1000) == list(range(60))  # the d of every word
    assert asked(search="x") == asked(search="U+0078") == []
    by_margin = sorted(rows, key=lambda row: (row["margin"], row["class"]))
    assert asked(sort="margin") == [row["class"] for row in by_margin]
    assert asked(sort="margin", descending=True, limit=3, offset=2) == [
        row["class"] for row in by_margin[::-1][2:5]
    ]
    assert asked(offset=58) == [58, 59]
    assert asked(offset=1000) == []
    lost = [row["class"] for row in rows if row["verdict"] == "unargmaxable"]
    assert asked(verdict="unargmaxable", offset=1) == lost[1:]
    page = get(client, "/api/audits/1/classes", verdict="unargmaxable")
    named = {str(i) for item in page["items"] for i, _ in item["stolen_by"]}
    assert page["others"] == {i: f"word{i}" for i in named}


def test_odd_rows_are_counted_and_listed(tmp_path: Path) -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [0, 0]])
    np.save(tmp_path / "head.npy", weight)
    head = uncork.Head(weight, source=str(tmp_path / "head.npy"))
    with Store(tmp_path / "s.db") as store:
        store.save(uncork.audit(head, jobs=1))
    app = make_app(Store(tmp_path / "s.db", create=False))
    with TestClient(app, base_url="http://127.0.0.1") as own:
        kinds = {kind["kind"]: kind for kind in get(own, "/api/audits/1/odd")["kinds"]}
        assert set(kinds) == {"zero_rows", "equal_rows"}
        assert (kinds["zero_rows"]["count"], kinds["zero_rows"]["lost"]) == (2, 2)
        assert kinds["equal_rows"]["groups"] == 1
        for query in ({}, {"sort": "margin"}, {"verdict": "unargmaxable"}):
            found = get(own, "/api/audits/1/classes", odd="zero_rows", **query)
            assert (found["total"], [item["class"] for item in found["items"]]) == (2, [4, 5])
        (tmp_path / "head.npy").unlink()
    with TestClient(make_app(Store(tmp_path / "s.db", create=False)),
                    base_url="http://127.0.0.1") as own:  # fmt: skip
        assert get(own, "/api/audits/1/odd")["kinds"] is None
        assert get(own, "/api/audits/1/figures", across="norm")["size"] is None
        assert get(own, "/api/audits/1/figures")["size"] == 6


def test_dots_stand_for_every_class_once() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 100, 50_000):
        verdicts = rng.integers(0, 4, n).astype(np.uint8)
        margins = np.where(verdicts == 0, np.nan, rng.normal(size=n) ** 5)
        found = dots(np.arange(n), verdicts, margins, rng.normal(size=n))
        counts = np.frombuffer(base64.b64decode(found["counts"]), "<i4")
        ids = np.frombuffer(base64.b64decode(found["ids"]), "<i4")
        kinds = np.frombuffer(base64.b64decode(found["verdicts"]), "u1")
        assert len(np.unique(ids)) == len(ids) <= min(n, 4 * 161 * 81)
        assert (kinds == verdicts[ids]).all()
        for verdict in range(4):
            assert counts[kinds == verdict].sum() == (verdicts == verdict).sum()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "s.db"
    with Store(path) as store:
        store.save(large_audit(256_000))
    return path


def test_the_page_of_a_quarter_of_a_million_classes_is_small_and_quick(many: Path) -> None:
    with TestClient(make_app(Store(many, create=False)), base_url="http://127.0.0.1") as own:
        start = time.process_time()
        page = own.get("/audits/1").content
        first = own.get("/api/audits/1/classes?verdict=unargmaxable&sort=margin").content
        assert time.process_time() - start < 2
        assert len(page) + len(first) < 100_000
        assert len(own.get("/api/audits/1/figures").content) < 500_000


@pytest.mark.parametrize("sought", ["token 25", "nowhere", "9"])
def test_a_label_is_found_among_a_quarter_of_a_million(many: Path, sought: str) -> None:
    with TestClient(make_app(Store(many, create=False)), base_url="http://127.0.0.1") as own:
        get(own, "/api/audits/1")  # opened, as it is when somebody types
        start = time.process_time()
        found = get(own, "/api/audits/1/classes", search=sought)
        assert time.process_time() - start < 0.2
    assert found["total"] == sum(sought in f"token {k}" for k in range(256_000))


def test_what_was_read_is_answered_for_with_every_audit(client: TestClient) -> None:
    found = get(client, "/api/audits/4")
    assert found["weight"] == HOSTILE_READING.weight
    assert found["bias_tensor"] == HOSTILE_READING.bias
    assert found["preceded_by"] == HOSTILE_READING.preceded_by
    assert found["doubts"] == list(HOSTILE_READING.doubts)
    assert found["notes"] == [*HOSTILE_READING.doubts, *HOSTILE_READING.notes]
    unknown = get(client, "/api/audits/1")
    assert (unknown["weight"], unknown["doubts"], unknown["notes"]) == (None, [], [])
    assert get(client, "/api/compare", before=1, after=4)["after"] == found


def test_a_class_is_described_with_a_fresh_proof(client: TestClient, stored: Store) -> None:
    rows = stored.classes(2)
    lost = next(row["class"] for row in rows if row["verdict"] == "unargmaxable")
    described = get(client, f"/api/audits/2/classes/{lost}")
    assert described["weights"] == ""
    assert described["mixture"]["certified"]
    assert (described["check"]["holds"], described["check"]["verdict"]) == (True, "unargmaxable")
    stored_parts = [[part["class"], part["share"]] for part in described["stored_parts"]]
    assert stored_parts == described["stolen_by"]
    assert sum(part["share"] for part in described["mixture"]["parts"]) <= 1 + 1e-9
    assert all(part["label"] == f"word{part['class']}" for part in described["mixture"]["parts"])
    assert described["slack"] == -described["margin"]
    assert [past["audit"] for past in described["history"]] == [1, 2, 3]
    won = next(row["class"] for row in rows if row["verdict"] == "argmaxable")
    described = get(client, f"/api/audits/2/classes/{won}")
    assert described["mixture"] is None
    assert described["runners_up"][0]["lead"] >= described["margin"] * (1 - 1e-6)
    assert len(described["nearest"]) == 8


def test_how_near_a_lost_class_comes_is_answered_from_the_weights(
    client: TestClient, stored: Store
) -> None:
    lost = next(r["class"] for r in stored.classes(2) if r["verdict"] == "unargmaxable")
    near = get(client, f"/api/audits/2/classes/{lost}/outlook")
    assert 0 < near["probability_lower"] <= near["probability_upper"] < 0.5
    assert 2 <= near["best_rank_lower"] <= near["best_rank_upper"] <= 60
    assert client.get("/api/audits/2/classes/9999/outlook").status_code == 404


def test_weights_that_changed_are_not_taken_for_those_audited(
    store_file: Path, client: TestClient
) -> None:
    file = store_file.parent / "step2.npz"
    content = file.read_bytes()
    file.write_bytes((store_file.parent / "step0.npz").read_bytes())
    try:
        described = get(client, "/api/audits/3/classes/0")
    finally:
        file.write_bytes(content)
    assert "holds other weights now" in described["weights"]
    assert described["nearest"] is None


def test_a_domain_that_reads_the_same_is_not_taken_for_the_audits_own(tmp_path: Path) -> None:
    head = random_head(30, 2, seed=1)
    file, proofs = tmp_path / "head.npz", [tmp_path / f"{k}.npz" for k in range(2)]
    np.savez(file, weight=head.weight)
    domains = [uncork.Box(lower, np.array([3.0, 3])) for lower in np.array([[-3.0, -1], [-1, -3]])]
    assert str(domains[0]) == str(domains[1])
    with Store(tmp_path / "s.db") as store:
        cache = WeightsCache(store)
        for k, domain in enumerate(domains):
            audit = uncork.audit(head.replace(source=str(file)), domain=domain, jobs=1)
            audit.save(proofs[k])
            store.save(audit, certificates=str(proofs[k]))
        first, second = store.audits()
        assert cache.of(first).domain == domains[0]
        assert cache.of(second).domain == domains[1]
        assert cache.proof(second, 3).audit.domain == domains[1]
        proofs[0].write_bytes(proofs[1].read_bytes())
        assert WeightsCache(store).of(first).domain is None


@pytest.fixture
def proven(tmp_path: Path) -> tuple[Path, uncork.Audit]:
    """A store with one audit whose weights and certificates are at hand, and the audit."""
    head = random_head(60, 4, bias=True, seed=2)
    file, proofs = tmp_path / "head.npz", tmp_path / "proofs.npz"
    np.savez(file, weight=head.weight, bias=head.bias)
    audit = uncork.audit(head.replace(source=str(file)), jobs=1)
    audit.save(proofs)
    with Store(tmp_path / "s.db") as store:
        store.save(audit, certificates=str(proofs))
    return tmp_path / "s.db", audit


def described(store_file: Path, class_id: int) -> Any:
    with TestClient(make_app(Store(store_file, create=False)), base_url="http://127.0.0.1") as own:
        return get(own, f"/api/audits/1/classes/{class_id}")


def forge(store_file: Path, class_id: int, verdict: int, margin: float) -> None:
    with sqlite3.connect(store_file) as database:
        database.execute(
            "UPDATE results SET verdict = ?, margin = ?, stolen_by = ? WHERE class_id = ?",
            (verdict, margin, "[[1, 0.5], [2, 0.5]]" if verdict == 2 else None, class_id),
        )
    database.close()


@pytest.mark.parametrize("certificates", [True, False])
def test_a_stored_verdict_that_the_weights_contradict_is_said_not_to_hold(
    proven: tuple[Path, uncork.Audit], certificates: bool
) -> None:
    store_file, audit = proven
    if not certificates:
        (store_file.parent / "proofs.npz").unlink()
    won, lost = int(audit.argmaxable[0]), int(audit.unargmaxable[0])
    forge(store_file, won, 2, -5.0)
    forge(store_file, lost, 1, 5.0)
    for class_id, said, found in ((won, "unargmaxable", "argmaxable"),
                                  (lost, "argmaxable", "unargmaxable")):  # fmt: skip
        shown = described(store_file, class_id)
        assert shown["verdict"] == said
        assert (shown["check"]["holds"], shown["check"]["verdict"]) == (False, found)
        assert "does not hold" in shown["check"]["text"]
        # What is shown is what was certified, never the proof that does not hold.
        if found == "argmaxable":
            assert shown["mixture"] is None
            assert shown["runners_up"][0]["lead"] >= shown["check"]["margin"] * (1 - 1e-6) > 0
        else:
            assert shown["mixture"]["certified"]
            assert shown["runners_up"] is None


def test_a_class_shows_the_audits_own_mixture_certified_where_its_certificates_are_at_hand(
    proven: tuple[Path, uncork.Audit],
) -> None:
    store_file, audit = proven
    for t in audit.unargmaxable.tolist():
        shown = described(store_file, t)
        assert shown["check"]["holds"]
        assert "audit's own proof" in shown["check"]["text"]
        parts = [[part["class"], round(part["share"], 6)] for part in shown["mixture"]["parts"]]
        assert parts[:5] == shown["stolen_by"]


def test_a_forged_proof_in_the_certificates_is_not_shown(
    proven: tuple[Path, uncork.Audit],
) -> None:
    store_file, audit = proven
    lost = int(audit.unargmaxable[0])
    mixture = audit.mixture(lost)
    assert mixture is not None
    audit.proofs.mixtures[lost] = dataclasses.replace(
        mixture, classes=np.array([int(audit.argmaxable[0])]), weights=np.ones(1)
    )
    audit.save(store_file.parent / "proofs.npz")
    shown = described(store_file, lost)
    assert shown["check"]["holds"]  # by a proof found anew
    assert "certificates does not hold" in shown["check"]["text"]
    assert len(shown["mixture"]["parts"]) > 1


def test_what_cannot_be_checked_says_so(proven: tuple[Path, uncork.Audit]) -> None:
    store_file, audit = proven
    (store_file.parent / "head.npz").unlink()
    shown = described(store_file, int(audit.unargmaxable[0]))
    assert shown["check"]["holds"] is None
    assert "not checked" in shown["check"]["text"]
    assert shown["mixture"]["certified"] is False


def test_two_audits_are_compared_in_pages(client: TestClient, stored: Store) -> None:
    whole = get(client, "/api/compare", before=1, after=2, limit=1000)
    one, two = ({row["label"]: row["verdict"] for row in stored.classes(k)} for k in (1, 2))
    changed = [label for label in two if one[label] != two[label]]
    changed.sort(key=lambda label: two[label] != "unargmaxable")  # those that are lost first
    assert [change["label"] for change in whole["changes"]] == changed
    both = get(client, "/api/compare", before=1, after=2, limit=1000, kind="both")
    lost_twice = [label for label in two if one[label] == two[label] == "unargmaxable"]
    assert [change["label"] for change in both["changes"]] == lost_twice
    assert both["counts"] == whole["counts"]
    assert whole["counts"]["both"] == len(lost_twice)
    sought = get(client, "/api/compare", before=1, after=2, search="WORD1", limit=1000)
    assert [row["label"] for row in sought["changes"]] == [
        label for label in changed if label.startswith("word1")
    ]
    lost = sum(two[label] == "unargmaxable" for label in changed)
    assert whole["counts"]["lost"] == lost
    assert whole["total"] == len(changed)
    page = get(client, "/api/compare", before=1, after=2, limit=2, offset=1)
    assert page["changes"] == whole["changes"][1:3]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/audits/99", 404),
        ("/api/audits/0", 422),
        ("/api/audits/x", 422),
        (f"/api/audits/{2**40}", 422),
        ("/api/audits/1/classes/60", 404),
        ("/api/audits/1/classes?verdict=maybe", 422),
        ("/api/audits?limit=0", 422),
        ("/api/audits?limit=100000", 422),
        ("/api/audits?sort=secret", 422),
        ("/api/compare?before=1", 422),
        ("/api/compare?before=1&after=77", 404),
        ("/api/nothing", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/nothing", 404),
        ("/audits/99", 404),
        ("/audits/1/classes/9999", 404),
    ],
)
def test_wrong_questions_are_refused(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    kind = answer.headers["content-type"]
    assert kind.startswith("application/json" if path.startswith("/api") else "text/html")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/audits/1").status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/audits/1", "/audits/1/classes/0", "/api/audits", "/static/site.css", "/no"]
)
def test_head_is_answered_as_get_without_the_content(client: TestClient, path: str) -> None:
    whole, head = client.get(path), client.head(path)
    assert head.status_code == whole.status_code
    assert head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"GET /api/groups HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
        b"POST /api/groups HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n1",
    ],
    ids=["nothing", "a word", "headers", "a second one", "content"],
)
def test_half_sent_requests_are_closed(address: str, sent: bytes) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        start = time.monotonic()
        while connection.recv(65536):
            pass
        assert time.monotonic() - start < 15


def test_a_request_that_dribbles_is_closed_too(address: str) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        start = time.monotonic()
        connection.settimeout(0.1)
        while time.monotonic() - start < 15:
            with contextlib.suppress(TimeoutError):
                if not connection.recv(65536):
                    break
            connection.sendall(b"X: y\r\n")
        assert time.monotonic() - start < 10


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for path in ("/", "/audits/1", "/api/audits", "/static/site.css", "/nothing", "/docs"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "", "[::2]"]
)
def test_names_of_others_are_not_answered_for(client: TestClient, host: str) -> None:
    assert client.get("/api/audits", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:80"])
def test_our_own_names_are_answered_for(client: TestClient, host: str) -> None:
    assert client.get("/api/groups", headers={"host": host}).status_code == 200


def test_a_server_for_others_answers_to_numbers_and_its_own_name_only() -> None:
    guard = Guard(None, "models.example")
    asked = {
        name: guard.is_ours({"headers": [(b"host", name.encode())]})
        for name in ("192.168.0.7:80", "[fe80::1]", "models.example:8765", "evil.example")
    }
    assert list(asked.values()) == [True, True, True, False]
    assert [is_loopback(h) for h in ("127.9.0.1", "::1", "0.0.0.0", "example.org")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_store_that_went_away_is_said_not_thrown(tmp_path: Path, store_file: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_bytes(store_file.read_bytes())
    with TestClient(make_app(Store(path, create=False)), base_url="http://localhost") as client:
        path.write_bytes(b"no database" * 1000)
        answer = client.get("/api/audits")
        assert answer.status_code == 503
        assert "copy.db" in answer.json()["detail"]
        assert client.get("/audits/1").status_code == 503


@pytest.fixture(scope="module")
def description(client: TestClient) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", client.app, headers=_OURS)


def ask_often(operation: Any, mode: schemathesis.GenerationMode, **given_parts: Any) -> None:
    """Every check that schemathesis knows, on requests made from the description."""

    @settings(
        max_examples=10, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode, **given_parts))
    def asked(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=_OURS)

    asked()


@pytest.mark.parametrize("path", PATHS)
def test_the_api_answers_as_described(description: Any, path: str) -> None:
    ask_often(description[path]["GET"], schemathesis.GenerationMode.POSITIVE)


@pytest.mark.parametrize("audit", [1, 4])
@pytest.mark.parametrize("path", [path for path in PATHS if "{" in path or "compare" in path])
def test_the_api_answers_as_described_about_what_is_there(
    description: Any, path: str, audit: int
) -> None:
    there = {"audit_id": audit, "class_id": 7, "label_audit_id": 1 + audit // 4, "set_id": 7}
    parts: dict[str, Any] = {
        "path_parameters": {name: there[name] for name in there if f"{{{name}}}" in path}
    }
    if "{" not in path:
        parts = {"query": {"before": 1, "after": audit}}
    ask_often(description[path]["GET"], schemathesis.GenerationMode.POSITIVE, **parts)


@pytest.mark.parametrize("path", [p for p in PATHS if p not in ("/api/failures", "/api/groups")])
def test_the_api_refuses_what_is_not_described_and_never_fails(description: Any, path: str) -> None:
    ask_often(description[path]["GET"], schemathesis.GenerationMode.NEGATIVE)


def test_the_description_is_served_and_complete(client: TestClient) -> None:
    assert set(get(client, "/openapi.json")["paths"]) == set(PATHS)


def test_a_client_without_a_host_is_refused(address: str) -> None:
    answer = httpx.get(f"{address}/api/audits", headers={"host": "rebound.example"})
    assert answer.status_code == 421
