"""`uncork retrieve`: what it says, writes and refuses, and how `uncork verify` checks it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.reach import rank
from uncork.retrieval.certify import SetCertifier
from uncork.store import Store


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Items, judgements and query vectors in the forms of BEIR."""
    rng = np.random.default_rng(0)
    docs = rng.normal(size=(40, 4)).astype(np.float32)
    np.save(tmp_path / "docs.npy", docs)
    np.save(tmp_path / "queries.npy", rng.normal(size=(6, 4)).astype(np.float32) + 1)
    lines = [json.dumps({"_id": f"d{i}", "text": "…"}) for i in range(40)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    lines = [json.dumps({"_id": f"q{i}", "text": "…"}) for i in range(6)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = [f"q{q}\td{d}\t1" for q in range(6) for d in rng.choice(40, 1 + q % 3, replace=False)]
    text = "\n".join(["query-id\tcorpus-id\tscore", *rows])
    (tmp_path / "test.tsv").write_text(text, encoding="utf-8")
    return tmp_path


def asked(corpus: Path) -> list[object]:
    return ["retrieve", corpus / "docs.npy", "--qrels", corpus / "test.tsv",
            "--labels", corpus / "corpus.jsonl"]  # fmt: skip


def test_limit_s_pairs_of_random_vectors_are_decided_and_verified(run: Run, tmp_path: Path) -> None:
    proofs, out = tmp_path / "p.npz", tmp_path / "r.json"
    ran = run("retrieve", "--example", "limit", "-d", 12, "-k", 2, "--json", out,
              "--certificates", proofs)  # fmt: skip
    assert ran.status == 0
    found = json.loads(out.read_text("utf-8"))
    assert sum(found["counts"].values()) == len(found["queries"]) == 1035
    assert found["counts"]["undecided"] == 0
    assert found["counts"]["impossible"] > 0
    share = found["counts"]["possible"] / 1035
    assert share <= found["recall"]["upper"] <= 1
    assert "recall@2 is possible with these vectors" in ran.out
    # The same vectors from a file
    np.save(tmp_path / "v.npy", _limit(12))
    checked = run("verify", proofs, tmp_path / "v.npy", "--json", "-").json()
    assert checked["ok"]
    assert checked["held"]["bounds"] == 1035


def _limit(features: int) -> np.ndarray:
    from uncork.retrieval.examples import random_items

    return random_items(46, features).vectors


@pytest.mark.parametrize("metric", ["inner", "cosine", "euclidean"])
def test_a_benchmark_is_decided_and_its_proofs_hold(run: Run, corpus: Path, metric: str) -> None:
    proofs = corpus / "p.npz"
    ran = run(*asked(corpus), "--metric", metric, "-k", 3, "--certificates", proofs)
    assert ran.status == 0
    assert "6 queries with 1 to 3 relevant items" in ran.out
    assert "every verdict and every bound is proven" in ran.out
    checked = run("verify", proofs, corpus / "docs.npy")  # the file names its metric
    assert checked.status == 0
    assert "every proof holds" in checked.out
    np.save(corpus / "docs.npy", np.load(corpus / "docs.npy") + 1)
    assert run("verify", proofs, corpus / "docs.npy").status == 1


def test_query_vectors_show_whose_fault_it_is(run: Run, corpus: Path) -> None:
    ran = run(*asked(corpus), "-k", 3, "--queries", corpus / "queries.npy", "--query-ids",
              corpus / "queries.jsonl", "--json", "-")  # fmt: skip
    found = ran.json()
    assert sum(found["faults"].values()) == 6
    assert found["own_recall"] <= found["recall"]["upper"]
    docs, queries = (np.load(corpus / f"{name}.npy") for name in ("docs", "queries"))
    for q, entry in enumerate(found["queries"]):
        order = np.argsort(-(docs @ queries[q]))
        on_top = set(order[: len(entry["relevant"])].tolist()) == set(entry["relevant"])
        assert entry["own"]["on_top"] == on_top
        assert entry["own"]["among_first"] == len(set(order[:3].tolist()) & set(entry["relevant"]))
        expected = {"possible": "query", "impossible": "items"}[entry["top_set"]]
        assert entry["fault"] == ("none" if on_top else expected)


@pytest.mark.parametrize("way", ["span", "box", "hull"])
def test_queries_can_be_the_domain(run: Run, corpus: Path, way: str) -> None:
    free = run(*asked(corpus), "--json", "-").json()["counts"]["possible"]
    proofs = corpus / "p.npz"
    ran = run(*asked(corpus), "--queries", corpus / "queries.npy", "--query-ids",
              corpus / "queries.jsonl", "--queries-as", way, "--json", "-",
              "--certificates", proofs)  # fmt: skip
    found = ran.json()
    assert found["counts"]["undecided"] == 0
    assert found["counts"]["possible"] <= free
    assert run("verify", proofs, corpus / "docs.npy").status == 0


def test_impossible_queries_can_fail_a_check(run: Run, corpus: Path) -> None:
    ran = run("retrieve", corpus / "docs.npy", "--every", 2, "--among", 6, "--fail-if-impossible")
    assert ran.status == 1
    assert "15 queries with 2 relevant items" in ran.out


def test_items_that_judgements_name_and_nobody_has_are_said(run: Run, corpus: Path) -> None:
    with (corpus / "test.tsv").open("a") as file:
        file.write("\nq0\tnowhere\t1")
    ran = run(*asked(corpus))
    assert "1 judgements name items that are not in the index" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{d}/docs.npy"], "which sets? give one of --qrels FILE and --every N"),
        (["{d}/docs.npy", "--every", "2", "--qrels", "{d}/test.tsv"], "which sets?"),
        (["--qrels", "{d}/test.tsv"], "which vectors?"),
        (["--example", "limit", "--every", "2"], "--example brings its own sets"),
        (["{d}/docs.npy", "--every", "2", "-k", "0"], "-k 0: expected one or more"),
        (["{d}/docs.npy", "--every", "0"], "sets of 0 among 40 items"),
        (["{d}/docs.npy", "--every", "2", "--among", "99"], "--among 99: there are 40 items"),
        (["{d}/docs.npy", "--qrels", "{d}/test.tsv"], "(give --labels with the ids)"),
        (["{d}/docs.npy", "--qrels", "{d}/none"], "no such file"),
        (["{d}/none.npy", "--every", "2"], "none.npy"),
        (["{d}/docs.npy", "--every", "2", "--queries-as", "hull"], "add --queries FILE"),
        (["{d}/docs.npy", "--every", "2", "--domain", "auto"], "--domain auto is for models"),
        (["{d}/docs.npy", "--every", "2", "--domain", "cube"], "is not understood"),
        (["{d}/docs.npy", "--every", "2", "--queries", "{d}/wide.npy"], "have 9 features"),
        (["{d}/docs.npy", "--every", "2", "--labels", "{d}/test.tsv"], "labels"),
        (["--example", "limit", "-d", "0"], "0 features"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(
    run: Run, corpus: Path, arguments: list[str], words: str
) -> None:
    np.save(corpus / "wide.npy", np.ones((2, 9), np.float32))
    out = corpus / "out.json"
    ran = run("retrieve", *(a.format(d=corpus) for a in arguments), "--json", out)
    assert words in ran.error
    assert not out.exists()


@pytest.mark.parametrize("way", ["span", "box", "hull"])
def test_an_audit_can_be_bounded_by_real_queries(run: Run, corpus: Path, way: str) -> None:
    out, proofs = corpus / "a.json", corpus / "a.npz"
    ran = run("audit", corpus / "docs.npy", "--queries", corpus / "queries.npy", "--queries-as",
              way, "--json", out, "--certificates", proofs, "--quiet")  # fmt: skip
    assert ran.status == 0
    found = json.loads(out.read_text("utf-8"))
    assert found["counts"]["undecided"] == 0
    assert found["domain_from"].endswith(f"the vectors in {corpus / 'queries.npy'}")
    docs, queries = (np.load(corpus / f"{name}.npy") for name in ("docs", "queries"))
    first = set(np.argmax(queries @ docs.T, axis=1).tolist())
    never = found["queries"]["never_among_first"]
    assert set(never["1"]) == set(range(40)) - first
    # Whatever no input of the domain brings to the top, the queries in it do not either.
    assert {entry["class"] for entry in found["unargmaxable"]} <= set(never["1"])
    assert set(never["10"]) <= set(never["1"])
    assert f"{len(never['1'])} are first at none of the 6 queries" in ran.out
    assert run("verify", proofs, corpus / "docs.npy", "--quiet").status == 0


def test_queries_alone_bound_nothing(run: Run, corpus: Path) -> None:
    plain = run("audit", corpus / "docs.npy", "--json", "-", "--quiet").json()
    beside = run("audit", corpus / "docs.npy", "--queries", corpus / "queries.npy", "--json", "-",
                 "--quiet").json()  # fmt: skip
    assert beside["counts"] == plain["counts"]
    assert "queries" in beside
    assert "queries" not in plain
    ran = run("audit", corpus / "docs.npy", "--queries-as", "hull")
    assert "add --queries FILE" in ran.error
    ran = run("audit", corpus / "docs.npy", "--queries", corpus / "queries.npy", "--queries-as",
              "hull", "--domain", "box:1")  # fmt: skip
    assert "give one" in ran.error


def test_an_audit_says_what_is_never_among_the_first_k(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    out = tmp_path / "a.json"
    ran = run("audit", tmp_path / "w.npy", "--top", "1,5", "--json", out, "--quiet")
    assert ran.status == 0
    found = json.loads(out.read_text("utf-8"))
    places = found["first_places"]
    assert set(places["1"]["never"]) == {entry["class"] for entry in found["unargmaxable"]}
    assert set(places["5"]["never"]) < set(places["1"]["never"])
    assert places["5"]["open"] == 0
    assert f"among the first 5: {len(places['5']['never'])} proven never" in ran.out
    for wrong in ("0", "a", "1,,2", ""):
        assert "expected numbers" in run("audit", tmp_path / "w.npy", "--top", wrong).error


@pytest.mark.parametrize("more", [[], ["--reach"]])
def test_best_ranks_stand_in_the_report_and_in_the_store(
    run: Run, tmp_path: Path, more: list[str]
) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    page, store = tmp_path / "r.html", tmp_path / "s.db"
    ran = run("audit", tmp_path / "w.npy", "--top", "1,5", "--report", page, "--store", store,
              "--json", tmp_path / "a.json", "--quiet", *more)  # fmt: skip
    assert ran.status == 0
    never = json.loads((tmp_path / "a.json").read_text("utf-8"))["first_places"]["5"]["never"]
    with Store(store, create=False) as opened:
        classes, lower, upper = opened.best_ranks(1)
    assert classes[lower > 5].tolist() == never
    assert (lower <= upper).all()
    data = re.search(r'id="data"[^>]*>(.*?)</script>', page.read_text("utf-8"), re.S)
    assert data is not None
    drawn = json.loads(data[1])["outlook"]
    assert np.frombuffer(base64.b64decode(drawn["best_rank_upper"])).tolist() == upper.tolist()
    assert ("probability_upper" in drawn) == bool(more)


def test_ctrl_c_keeps_what_was_decided_and_resume_completes_it(
    run: Run, corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["retrieve", corpus / "docs.npy", "--every", 2, "--among", 12, "-k", 3]
    real, looks = SetCertifier.look, 0

    def stopping(*given: object, **named: object) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SetCertifier, "look", stopping)
    stopped = run(*command, "--json", corpus / "r.json")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert stopped.status == 130
    assert "the same command with --resume continues" in stopped.err
    assert not (corpus / "r.json").exists()
    partial = list(cache.glob("uncork/partial/*retrieve*.npz"))
    assert len(partial) == 1
    fresh = run(*command, "--json", "-", "--quiet").json()
    assert not list(cache.glob("uncork/partial/*"))  # it was done without it
    partial[0].write_bytes(b"damaged")
    refused = run(*command, "--resume")
    assert "delete it, or leave out --resume" in refused.error
    partial[0].unlink()
    assert "starting from the beginning" in run(*command, "--resume").err
    limited = run(*command, "--time-limit", "1e-9")
    assert "the time limit was reached: 0 queries decided" in limited.err
    resumed = run(*command, "--resume", "--json", "-").json()
    assert resumed["counts"] == fresh["counts"]
    assert resumed["recall"] == fresh["recall"]
    assert not list(cache.glob("uncork/partial/*"))


def test_a_killed_run_has_saved_what_was_decided(
    run: Run, corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody can catch, such as kill -9, is played by an error of no kind that is expected."""
    command = ["retrieve", corpus / "docs.npy", "--every", 2, "--among", 12, "-k", 3]
    fresh = run(*command, "--json", "-", "--quiet").json()
    assert not list(cache.glob("uncork/partial/*"))

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("uncork.retrieval.decide._EVERY", 0.0)
    monkeypatch.setattr("uncork.retrieval.decide._SHARE", 0.0)
    monkeypatch.setattr("uncork.retrieval.decide.PlaceSearch.bound", killed)
    with pytest.raises(Killed):
        run(*command, "--quiet")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert len(list(cache.glob("uncork/partial/*retrieve*.npz"))) == 1
    resumed = run(*command, "--resume", "--json", "-")
    assert "starting from the beginning" not in resumed.err
    assert resumed.json()["counts"] == fresh["counts"]
    assert resumed.json()["recall"] == fresh["recall"]
    assert not list(cache.glob("uncork/partial/*"))


def test_ctrl_c_while_places_are_sought_keeps_the_audit_and_the_bounds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rank._Ranks, "_bound", interrupted)
    np.save(tmp_path / "w.npy", np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
    out = tmp_path / "a.json"
    ran = run("audit", tmp_path / "w.npy", "--top", "5", "--json", out, "--quiet", "--jobs", "1")
    assert ran.status == 130
    found = json.loads(out.read_text("utf-8"))
    assert found["counts"]["undecided"] == 0
    assert found["first_places"]["5"]["open"] > 0
    assert "interrupted" in found["first_places_notes"][0]
    assert "interrupted: these are the bounds until then" in ran.out


def test_a_time_limit_ends_the_search_for_places_too(run: Run, tmp_path: Path) -> None:
    """The audit is done at once; what is left of the limit is too little for any rank."""
    weight = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    weight[:8] *= 0.05
    np.save(tmp_path / "w.npy", weight)
    command = ["audit", tmp_path / "w.npy", "--top", "3", "--json", "-", "--quiet", "--jobs", "1"]
    whole = run(*command, "--metric", "inner", "--domain", "unbounded").json()
    assert whole["first_places"]["3"]["open"] == 0
    assert whole["first_places_notes"] == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uncork.cli.commands.audit._time_left", lambda *_: 1e-6)
        late = run(*command, "--metric", "inner", "--domain", "unbounded", "--time-limit", "60")
    assert late.json()["first_places"]["3"]["open"] > 0
    assert "came after the time limit" in late.json()["first_places_notes"][0]
