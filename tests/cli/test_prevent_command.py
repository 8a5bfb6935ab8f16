"""`uncork prevent`: copies that keep everything but the head, proven before they appear."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from running import Run
from safetensors.numpy import load_file, save_file

from models import DDDDOCR_INT8, PP_OCR_V6
from uncork import audit, load

QUICK = ("--device", "cpu", "--jobs", 1)


@pytest.mark.parametrize("how", ["norm", "bias"])
def test_the_papers_demonstration(run: Run, how: str, tmp_path: Path) -> None:
    asked = ("prevent", "--random", "-C", 500, "-d", 10, "--how", how, *QUICK, "--json", "-")
    as_it_is = run(*asked, "--do-not-prevent").json()
    assert as_it_is["counts"]["unargmaxable"] > 50
    out = tmp_path / "head.npz"
    prevented = run(*asked, "-o", out).json()
    assert prevented["counts"]["argmaxable"] == 500
    assert audit(load(out), device="cpu", jobs=1).counts["argmaxable"] == 500


def test_every_character_of_a_shipped_recogniser(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "fixed.onnx"
    ran = run("prevent", PP_OCR_V6, "-o", out, "--how", "bias", *QUICK)
    assert ran.status == 0
    assert "afterwards, proven: 18,710 argmaxable" in ran.out
    assert "apex" in ran.out
    before, after = load(PP_OCR_V6), load(out)
    assert after.labels == before.labels
    np.testing.assert_array_equal(after.weight, before.weight)
    session = onnxruntime.InferenceSession(out)
    image = np.random.default_rng(0).random((1, 3, 48, 64), np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: image})
    assert found.shape[-1] == 18_710
    assert np.isfinite(found).all()
    old, new = onnx.load(PP_OCR_V6), onnx.load(out)
    assert [n.op_type for n in old.graph.node] == [n.op_type for n in new.graph.node]
    assert list(old.metadata_props) == list(new.metadata_props)


def test_half_precision_safetensors_keep_their_other_tensors(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    rng = np.random.default_rng(0)
    body = rng.normal(size=(4, 4))
    weight = rng.normal(size=(150, 8)).astype(ml_dtypes.bfloat16)
    save_file({"body": body, "lm_head.weight": weight}, source)
    for how in ("norm", "bias"):
        ran = run("prevent", source, "-o", out, "--how", how, *QUICK)
        assert ran.status == 0, ran.out
        np.testing.assert_array_equal(load_file(out)["body"], body)
        head = load(out)
        assert head.dtype == "bfloat16"
        assert audit(head, device="cpu", jobs=1).counts["argmaxable"] == 150


def test_rounding_that_undoes_it_is_status_1_and_nothing_is_written(
    run: Run, tmp_path: Path
) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    weight = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float16)
    np.savez(source, weight=np.unique(weight, axis=0))
    ran = run("prevent", source, "-o", out, "--how", "norm", *QUICK)
    assert ran.status == 1
    assert "rounding to float16 undid it" in ran.out
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_equal_rows_are_told_and_do_not_fail_it(run: Run, tmp_path: Path, square: Path) -> None:
    ran = run("prevent", square, "-o", tmp_path / "b.npz", "--how", "bias", *QUICK)
    assert ran.status == 0
    assert "4 argmaxable, 2 tied" in ran.out
    assert "tied classes have equal rows" in ran.out


def test_columns_named_by_hand_stay_columns(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(source, weight=np.random.default_rng(0).normal(size=(8, 8)))
    ran = run("prevent", source, "--transpose", "-o", out, "--how", "bias", *QUICK)
    assert ran.status == 0
    np.testing.assert_array_equal(np.load(out)["weight"], np.load(source)["weight"])
    assert np.load(out)["bias"].shape == (8,)


def test_a_metric_from_a_file_and_the_least_change(run: Run, tmp_path: Path) -> None:
    source, out, metric = tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "m.npy"
    rng = np.random.default_rng(0)
    np.savez(source, weight=rng.normal(size=(90, 4)), bias=rng.normal(size=90))
    np.save(metric, np.diag([1.0, 2, 3, 4]))
    for extra in (("--metric", metric), ("--metric", "covariance"), ("--least",)):
        ran = run("prevent", source, "-o", out, "--how", "bias", *extra, *QUICK)
        assert ran.status == 0
        assert "90 argmaxable" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give SOURCE, or --random"),
        (("--random", "-C", "5"), "needs -C and -d"),
        (("SQUARE",), "name the changed copy with -o"),
        (("SQUARE", "-o", "SQUARE"), "would overwrite"),
        (("SQUARE", "-o", "x.onnx"), "write .npz"),
        (("SQUARE", "-o", "x.npz", "--metric", "euclid"), "identity, covariance or an .npy"),
        (("SQUARE", "-o", "x.npz", "--do-not-prevent"), "nothing to write"),
        (("--random", "-C", "5", "-d", "2", "-o", "x.onnx"), "written as .npz"),
        ((DDDDOCR_INT8, "-o", "x.onnx"), "write .npz instead"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run,
    arguments: tuple[str, ...],
    message: str,
    square: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    given = [str(square) if a == "SQUARE" else a for a in arguments]
    assert message in run("prevent", *given, *QUICK).error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_rows_made_equal_are_status_1_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    """Alone at (1, 0), class 1 would share that input with class 0."""
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(source, weight=np.array([[1, 0], [2, 0], [0, 1], [-1, -1]], np.float32))
    ran = run("prevent", source, "-o", out, *QUICK)
    assert ran.status == 1
    assert "different rows have become equal, those of 0, 1:" in ran.out
    assert "Nothing was written; try --how bias" in ran.out
    assert "tied classes have equal rows" not in ran.out
    assert not out.exists()
    ran = run("prevent", source, "-o", out, *QUICK, "--json", "-")
    assert (ran.json()["made_equal"], ran.json()["written"]) == ([0, 1], None)
    assert run("prevent", source, "-o", out, "--how", "bias", *QUICK).status == 0


@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_a_bias_that_its_type_rounds_away_is_said(run: Run, tmp_path: Path, size: float) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    weight = np.random.default_rng(0).normal(size=(12, 2)) * size
    np.savez(source, weight=weight.astype(np.float32))
    asked = ("--scale", "1e-320") if size == 1 else ()
    error = run("prevent", source, "-o", out, "--how", "bias", *asked, *QUICK).error
    assert "is rounded away as float32: scale the weights up first" in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_time_limit_is_refused_as_the_audit_does(
    run: Run, square: Path, tmp_path: Path, seconds: str
) -> None:
    error = run("prevent", square, "-o", tmp_path / "b.npz", "--time-limit", seconds).error
    assert error == run("audit", square, "--time-limit", seconds).error
    assert not (tmp_path / "b.npz").exists()


def test_the_metric_is_not_overwritten(run: Run, square: Path, tmp_path: Path) -> None:
    metric = tmp_path / "m.npy"
    np.save(metric, np.eye(2))
    given = metric.read_bytes()
    asked = ("prevent", square, "-o", tmp_path / "b.npz", "--metric", metric, "--json", metric)
    assert "would overwrite the metric" in run(*asked).error
    assert metric.read_bytes() == given


def test_a_link_stays_one_and_its_file_is_replaced(run: Run, tmp_path: Path) -> None:
    source, target, link = (tmp_path / name for name in ("a.npz", "b.npz", "link.npz"))
    np.savez(source, weight=np.random.default_rng(0).normal(size=(50, 3)))
    target.write_bytes(b"before")
    link.symlink_to(target)
    for asked in ([source], ["--random", "-C", "50", "-d", "3"]):
        assert run("prevent", *asked, "-o", link, *QUICK).status == 0
        assert link.is_symlink()
        assert load(target).classes == 50
        target.write_bytes(b"before")
