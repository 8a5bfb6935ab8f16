"""`uncork repair`: repaired copies that keep everything else, proven before they appear."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from running import Run
from safetensors.numpy import load_file, save_file

from models import DDDDOCR_INT8
from tiny_models import node, save_onnx
from uncork import audit, load

QUICK = ("--device", "cpu", "--jobs", 1)
C, D = 150, 8


def head_of(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(C, D)).astype(np.float32)
    return weight, (0.3 * rng.normal(size=C)).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    weight, bias = head_of()
    np.savez(tmp_path / "a.npz", weight=weight, bias=bias)
    return tmp_path / "a.npz"


@pytest.mark.parametrize("norm", ["inf", "1"])
def test_every_class_of_the_written_file_is_proven(run: Run, source: Path, norm: str) -> None:
    lost = audit(load(source), device="cpu", jobs=1).unargmaxable
    out, proofs = source.with_name("b.npz"), source.with_name("p.npz")
    asked = ("repair", source, "-o", out, "--norm", norm, "--certificates", proofs)
    found = run(*asked, "--json", "-", *QUICK).json()
    assert found["counts"] == {"argmaxable": C, "unargmaxable": 0, "tied": 0, "undecided": 0}
    assert [entry["class"] for entry in found["freed"]] == lost.tolist()
    assert 0 < found["needed"] <= found["size"]
    assert found["written"] == str(out)
    assert run("audit", out, "--fail-if-unargmaxable", *QUICK).status == 0
    assert run("verify", proofs, out).status == 0
    after = load(out)
    assert after.fingerprint == found["repaired_fingerprint"]
    np.testing.assert_array_equal(after.weight, head_of()[0])


def test_onnx_runs_and_predicts_as_before_away_from_the_freed(run: Run, tmp_path: Path) -> None:
    weight, bias = head_of()
    nodes = [
        node("Relu", ["x"], "h"),
        node("MatMul", ["h", "w"], "z"),
        node("Add", ["z", "b"], "out"),
    ]
    source = save_onnx(tmp_path / "m.onnx", nodes, {"w": weight.T, "b": bias}, ["n", D])
    out = tmp_path / "r.onnx"
    states = tmp_path / "x.npy"
    x = np.maximum(np.random.default_rng(1).normal(size=(500, D)), 0).astype(np.float32)
    np.save(states, x)
    asked = ("repair", source, "-o", out, "--domain", "box:0,100", "--activations", states)
    found = run(*asked, "--json", "-", *QUICK).json()
    assert found["counts"]["argmaxable"] == C
    price = found["price"]
    was, now = (
        onnxruntime.InferenceSession(path).run(None, {"x": x})[0].argmax(axis=1)
        for path in (source, out)
    )
    assert price["inputs"] == 500
    assert price["changed"] == int((was != now).sum())
    assert price["changed"] < 250
    freed = [entry["class"] for entry in found["freed"]]
    assert price["to_freed"] == int(np.isin(now[was != now], freed).sum())


def test_safetensors_keep_their_other_tensors_and_gain_a_bias(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    body = np.random.default_rng(0).normal(size=(4, 4))
    save_file({"body": body, "lm_head.weight": head_of()[0]}, source)
    ran = run("repair", source, "-o", out, *QUICK)
    assert ran.status == 0, ran.out
    assert f"afterwards, proven: {C} argmaxable" in ran.out
    np.testing.assert_array_equal(load_file(out)["body"], body)
    assert load(out).bias is not None


def test_rows_move_instead_and_the_bias_stays(run: Run, source: Path) -> None:
    out = source.with_name("b.npz")
    ran = run("repair", source, "-o", out, "--how", "row", *QUICK)
    assert ran.status == 0, ran.out
    assert "longest move" in ran.out
    after = load(out)
    np.testing.assert_array_equal(after.bias, head_of()[1])
    assert audit(after, device="cpu", jobs=1).counts["argmaxable"] == C


def test_what_the_margin_adds_is_said_and_an_audit_of_the_copy_decides_all(
    run: Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(120, 6)).astype(np.float32)
    weight[80:] = weight.mean(axis=0) + 1e-7 * rng.normal(size=(40, 6))  # untrained, say
    bias = np.append(np.zeros(80), np.full(40, -0.1)).astype(np.float32)
    np.savez(tmp_path / "a.npz", weight=weight, bias=bias)
    asked = ("repair", tmp_path / "a.npz", "-o", tmp_path / "b.npz", *QUICK)
    said = run(*asked).out
    assert "brings them to a tie, the rest gives them the lead; proven: no change" in said
    assert "rows are too close to others for a bias to tell them apart in float32" in said
    assert "win by less than" not in said
    found = run("audit", tmp_path / "b.npz", "--low-precision", "--json", "-", *QUICK).json()
    assert found["counts"]["argmaxable"] == 120
    assert found["low_precision"]["wins"] == 120
    assert "lie too near" not in run(*asked, "--margin", "0").out
    np.testing.assert_array_equal(load(tmp_path / "b.npz").weight, weight)


def test_an_earlier_audit_and_chosen_classes(run: Run, source: Path) -> None:
    proofs, out = source.with_name("p.npz"), source.with_name("b.npz")
    run("audit", source, "--certificates", proofs, *QUICK)
    lost = audit(load(source), device="cpu", jobs=1).unargmaxable
    asked = ",".join(str(t) for t in lost[:2])
    ran = run("repair", source, "-o", out, "--audit", proofs, "--classes", asked, *QUICK)
    assert ran.status == 0, ran.out
    assert "2 classes freed" in ran.out
    after = audit(load(out), device="cpu", jobs=1)
    assert set(lost[:2].tolist()) <= set(after.argmaxable.tolist())
    assert len(after.argmaxable) == C - len(lost) + 2


def test_what_cannot_be_freed_is_status_1_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    # Where the second feature is always 0, the first two classes are one function.
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    weight = np.array([[1.0, 0], [1, 1], [-1, 0], [0, 2]])
    np.savez(source, weight=weight, bias=np.zeros(4))
    ran = run("repair", source, "-o", out, "--domain", "box:-1,1;0,0", *QUICK)
    assert ran.status == 1
    assert "not freed: " in ran.out
    assert "nothing was written" in ran.out
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_equal_rows_are_told_and_do_not_fail_it(run: Run, tmp_path: Path, square: Path) -> None:
    ran = run("repair", square, "-o", tmp_path / "b.npz", *QUICK)
    assert ran.status == 0
    assert "tied classes have equal rows" in ran.out


def test_activations_hands_hidden_states_to_repair(run: Run, tmp_path: Path) -> None:
    weight, bias = head_of()
    nodes = [
        node("Relu", ["x"], "h"),
        node("MatMul", ["h", "w"], "z"),
        node("Add", ["z", "b"], "out"),
    ]
    source = save_onnx(tmp_path / "m.onnx", nodes, {"w": weight.T, "b": bias}, ["n", D])
    data, states, out = tmp_path / "x.npy", tmp_path / "s.npz", tmp_path / "r.onnx"
    np.save(data, np.random.default_rng(1).normal(size=(200, D)).astype(np.float32))
    assert run("activations", source, "--data", data, "--sample", states).status == 0
    ran = run("repair", source, "-o", out, "--activations", states, *QUICK)
    assert ran.status == 0
    assert "of 200 hidden states" in ran.out


def test_a_link_stays_one_and_its_file_is_replaced(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real", tmp_path / "link.npz"
    target.write_bytes(b"earlier")
    link.symlink_to(target)
    assert run("repair", source, "-o", link, *QUICK).status == 0
    assert link.is_symlink()
    assert not target.is_symlink()
    assert audit(load(link), device="cpu", jobs=1).counts["argmaxable"] == C
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("where", ["price", "low_precision", "emit_json", "put_in_place"])
def test_ctrl_c_leaves_nothing_behind(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(*rest: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("uncork.cli.commands.repair"), where, interrupted)
    outputs = ("-o", tmp_path / "b.npz", "--certificates", tmp_path / "p.npz")
    ran = run("repair", source, *outputs, "--json", tmp_path / "j", *QUICK)
    assert (ran.status, ran.out) == (130, "")
    assert list(tmp_path.iterdir()) == [source]


def test_what_cannot_be_written_leaves_nothing_of_the_rest(
    run: Run, source: Path, tmp_path: Path
) -> None:
    outputs = ("-o", tmp_path / "b.npz", "--certificates", tmp_path / "p.npz")
    ran = run("repair", source, *outputs, "--json", "/dev/full", *QUICK)
    assert "/dev/full cannot be written: No space" in ran.error
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SOURCE", "-o", "SOURCE"), "would overwrite"),
        (("SOURCE", "-o", "x.onnx"), "write .npz"),
        (("SOURCE", "-o", "x.npz", "--activations", "no.npy"), "does not exist"),
        (("SOURCE", "-o", "x.npz", "--activations", "SOURCE"), "expected hidden states"),
        (("SOURCE", "-o", "x.npz", "--classes", "999"), "does not exist"),
        (("SOURCE", "-o", "x.npz", "--norm", "2"), "--norm"),
        (("SOURCE", "-o", "x.npz", "--activations", ""), "--activations: the name is empty"),
        (("SOURCE", "-o", "x.npz", "--audit", ""), "--audit: the name is empty"),
        (("no.npz", "-o", "x.npz", "--time-limit", "0"), "time limit must be positive, and is 0"),
        (("SOURCE", "-o", "x.npz", "--time-limit", "-1"), "time limit must be positive"),
        (("SOURCE", "-o", "x.npz", "--time-limit", "nan"), "time limit must be positive"),
        (("SOURCE", "-o", "x.npz", "--certificates", "x.npz"), "would overwrite what -o writes"),
        (("SOURCE", "-o", "x.npz", "--domain", "@x.npz"), "would overwrite the domain"),
        (("SOURCE", "-o", "x.npz", "--classes", "1,@x.npz"), "would overwrite the classes"),
        (("SOURCE", "-o", "x.npz", "--labels", "x.npz"), "would overwrite the labels"),
        (("SOURCE", "-o", "x.npz", "--activations", "x.npz"), "overwrite the hidden states"),
        ((DDDDOCR_INT8, "-o", "x.onnx"), "write .npz instead"),
        (("SOURCE", "-o", "x.npz", "--margin", "-1"), "margin must be a number of logits, 0 or"),
        (("SOURCE", "-o", "x.npz", "--margin", "nan"), "margin must be a number of logits, 0 or"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_in_one_line(
    run: Run,
    arguments: tuple[str, ...],
    message: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    given = [str(source) if a == "SOURCE" else a for a in arguments]
    assert message in run("repair", *given, *QUICK).error
    assert sorted(path.name for path in tmp_path.iterdir()) == before
