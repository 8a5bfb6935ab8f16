"""uncork activations: what is printed and saved, and that Ctrl-C loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import Run

from models import PP_OCR_V4
from tiny_models import node, save_onnx, save_texts, save_transformer
from uncork.activations import recording
from uncork.domain.file import read_domain

RNG = np.random.default_rng(0)
D, C = 5, 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [node("Relu", ["x"], "h"), node("MatMul", ["h", "w"], "out")]
    weight = RNG.normal(size=(D, C)).astype(np.float32)
    return save_onnx(tmp_path / "m.onnx", nodes, {"w": weight}, ["n", D])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, RNG.normal(size=(200, D)).astype(np.float32))
    return path


def test_the_range_seen_is_a_domain_to_audit_with(
    run: Run, model: Path, data: Path, tmp_path: Path
) -> None:
    domain, figure, result = (tmp_path / name for name in ("d.npz", "f.png", "r.json"))
    ran = run(
        "activations", model, "--data", data, "-o", domain, "--plot", figure, "--json", result
    )
    assert ran.status == 0
    assert "observed on data, not proven" in ran.out
    assert f"--domain @{domain}" in ran.out
    x = np.maximum(np.load(data), 0)
    box, provenance = read_domain(domain)
    np.testing.assert_array_equal(box.lower, x.min(axis=0))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(box.upper, x.max(axis=0))  # type: ignore[attr-defined]
    assert provenance["items"] == 200
    assert "not proven" in provenance["assumption"]
    found = json.loads(result.read_text())
    assert found["inputs"] == 200
    assert found["per_feature"]["maximum"] == x.max(axis=0).tolist()
    assert found["first"]["seen"] == len(found["first"]["counts"])
    assert sum(found["first"]["counts"].values()) == 200
    assert figure.read_bytes()[:4] == b"\x89PNG"
    audit = run("audit", model, "--domain", f"@{domain}", "--json", "-")
    assert audit.status == 0
    assert audit.json()["counts"]["undecided"] == 0
    assert "not proven" in audit.json()["domain_from"]
    assert "observed on data, not proven" in run("audit", model, "--domain", f"@{domain}").out


def test_a_ball_and_a_margin(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    x = np.maximum(np.load(data), 0).astype(np.float64)
    run("activations", model, "--data", data, "-o", tmp_path / "d", "--kind", "ball")
    ball, _ = read_domain(tmp_path / "d")
    assert ball.contains(x).all()
    assert ball.radius == pytest.approx(np.linalg.norm(x, axis=1).max())  # type: ignore[attr-defined]
    run("activations", model, "--data", data, "-o", tmp_path / "d", "--margin", "0.5")
    box, _ = read_domain(tmp_path / "d")
    width = np.ptp(x, axis=0)
    np.testing.assert_allclose(box.upper - box.lower, 2 * width)  # type: ignore[attr-defined]


def test_files_may_follow_without_an_option_each(run: Run, model: Path, data: Path) -> None:
    ran = run("activations", model, "--data", data, data, "--json", "-")
    assert ran.json()["items"] == 400
    pattern = run("activations", model, "--data", data.parent / "*.npy", "--json", "-")
    assert pattern.json()["items"] == 200


def test_text_for_a_transformers_folder(run: Run, tmp_path: Path) -> None:
    folder = save_transformer(tmp_path / "model", "gpt2")
    texts = save_texts(tmp_path / "t.txt")
    ran = run("activations", folder, "--data", texts, "--limit", 6, "--batch-size", 4)
    assert ran.status == 0
    assert "48 classes × 8 features; 6 items" in ran.out
    assert "length ‖x‖₂" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "--limit 0"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--margin", "-1"], "--margin -1"),
        (["-o", "nowhere/d.npz"], "there is no folder"),
        (["--data", "nowhere.npy"], "nowhere.npy does not exist"),
        (["--data", ""], "--data: a name is empty"),
        (["--max-length", "0"], "--max-length 0: expected one or more"),
        (["--max-new-tokens", "-1"], "--max-new-tokens -1: expected one or more"),
        (["--plot", "x.txt"], "ends in .png"),
        (["-o", "-"], "only --json goes to stdout"),
        (["--json", "x.npy"], "would overwrite the data"),
        (["--data", "*.npy", "--json", "y.npy"], "would overwrite the data"),
        (["--data", "more", "--json", "more/y.npy"], "would overwrite the data"),
        (["--json", "m.onnx"], "would overwrite the model"),
        (["--sample", "a.npz", "-o", "a.npz"], "would overwrite what -o writes"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: Run,
    model: Path,
    data: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(data.parent)
    (data.parent / "more").mkdir()
    for copy in ("y.npy", "more/y.npy"):
        (data.parent / copy).write_bytes(data.read_bytes())
    before = {path: path.is_file() and path.read_bytes() for path in data.parent.rglob("*")}
    assert message in run("activations", model, "--data", data, *arguments).error
    after = {path: path.is_file() and path.read_bytes() for path in data.parent.rglob("*")}
    assert after == before


def test_a_figure_is_of_the_format_its_name_says(
    run: Run, model: Path, data: Path, tmp_path: Path
) -> None:
    starts = {".PNG": b"\x89PNG", ".jpg": b"\xff\xd8", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for suffix, start in starts.items():
        path = tmp_path / f"f{suffix}"
        assert run("activations", model, "--data", data, "--plot", path).status == 0
        assert path.read_bytes().startswith(start)


def test_without_data_nothing_is_run(run: Run, model: Path) -> None:
    assert "name files with --data" in run("activations", model).error


def test_resuming_gives_what_an_undisturbed_run_gives(
    run: Run, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("activations", model, "--data", data, "--json", "-", "-o", tmp_path / "a").json()
    taken = recording.Statistics.add
    seen: list[int] = []

    def interrupted(self: recording.Statistics, batch: recording.Batch) -> None:
        taken(self, batch)
        seen.append(len(batch.first))
        if len(seen) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(recording.Statistics, "add", interrupted)
    arguments = ["activations", model, "--data", data, "--json", "-", "-o", tmp_path / "b"]
    stopped = run(*arguments)
    assert stopped.status == 130
    assert "64 of 200 items done" in stopped.err
    assert (tmp_path / "b.unfinished").exists()
    assert not (tmp_path / "b").exists()
    resumed = run(*arguments, "--resume")
    assert sum(seen) == 200  # no item twice
    del whole["domain_file"], (again := resumed.json())["domain_file"]
    assert again == whole
    assert not (tmp_path / "b.unfinished").exists()


def test_a_state_of_other_data_is_refused(
    run: Run, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_SAVED_EVERY", -1.0)
    monkeypatch.setattr(recording.State, "remove", lambda self: None)
    run("activations", model, "--data", data, "-o", tmp_path / "d")
    np.save(data, np.ones((3, D), dtype=np.float32))
    ran = run("activations", model, "--data", data, "-o", tmp_path / "d", "--resume")
    assert "other data" in ran.error
    (tmp_path / "d.unfinished").write_bytes(b"PK damaged")
    ran = run("activations", model, "--data", data, "-o", tmp_path / "d", "--resume")
    assert "damaged" in ran.error


def test_ctrl_c_on_a_real_recogniser_saves_what_was_done(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    from PIL import Image

    folder = tmp_path / "lines"
    folder.mkdir()
    for k in range(400):
        Image.new("RGB", (320, 48), (k % 256, 90, 200)).save(folder / f"{k:03}.png")
    output = tmp_path / "d.npz"
    for seconds in (3, 6, 12, 24):  # until it is no longer loading, where others interrupt Ctrl-C
        process = start("activations", PP_OCR_V4, "--data", folder, "-o", output)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        if "items done" in err:
            break
    assert process.returncode == 130
    assert (tmp_path / "d.npz.unfinished").exists()
    assert "--resume continues" in err
    assert not output.exists()
