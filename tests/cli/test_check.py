"""uncork audit --check: the model's behaviour held against the proofs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run

from models import PP_OCR_V4
from tiny_models import node, save_onnx, save_texts, save_transformer
from uncork import Box, Head
from uncork import audit as decide
from uncork.activations import Batch, open_runner, record
from uncork.activations.behaviour import Behaviour
from uncork.loading import load

CORNERS = np.array(
    [[1, 1], [1, -1], [-1, 1], [-1, -1], [0.1, 0.05], [-2, -2]], dtype=np.float32
)  # class 4 is inside the hull; 3 is behind 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [node("Tanh", ["x"], "h"), node("MatMul", ["h", "w"], "out")]
    return save_onnx(tmp_path / "m.onnx", nodes, {"w": CORNERS.T.copy()}, ["n", 2])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    return path


def to_json(data: Path) -> list[object]:
    return ["--data", data, "--json", "-"]


def test_a_model_that_behaves_passes(run: Run, model: Path, data: Path) -> None:
    ran = run("audit", model, "--domain", "auto", "--check", model, "--data", data)
    assert ran.status == 0
    assert "300 inside the domain, 0 outside" in ran.out
    assert "0 predictions of the 2 classes proven unargmaxable" in ran.out
    assert "behaviour agrees with the proofs" in ran.out
    found = run("audit", model, "--domain", "auto", "--check", model, *to_json(data))
    check = found.json()["check"]
    assert check["ok"] is True
    assert (check["inputs"], check["inside"], check["classes_seen"]) == (300, 300, 4)


def test_inputs_outside_the_domain_are_counted_and_named(run: Run, model: Path, data: Path) -> None:
    # Near zero only: there class 4, by a bias it has not, could not win either.
    ran = run(
        "audit", model, "--domain", "box:0.25", "--check", model, "--data", data, "--json", "-"
    )
    check = ran.json()["check"]
    assert ran.status == 0
    inside = (np.abs(np.tanh(np.load(data))) <= 0.25).all(axis=1).sum()
    assert check["inside"] == inside
    assert check["outside"] == 300 - inside
    assert sum(entry["times"] for entry in check["first_outside"]) == 300 - inside


def test_a_class_lost_inside_the_domain_may_come_first_outside(
    run: Run, tmp_path: Path, data: Path
) -> None:
    weight = np.array([[1, 0], [-1, 0], [0, 1]], dtype=np.float32)
    bias = np.array([1, 1, 0], dtype=np.float32)
    nodes = [node("Tanh", ["x"], "h"), node("Gemm", ["h", "w", "b"], "out", transB=1)]
    path = save_onnx(tmp_path / "b.onnx", nodes, {"w": weight, "b": bias}, ["n", 2])
    np.save(data, np.array([[0, 9.0], [5, 0]], dtype=np.float32))
    ran = run("audit", path, "--domain", "box:0.9", "--check", path, "--data", data)
    assert ran.status == 0
    assert "2 outside" in ran.out
    weight[2] = 0, 2
    path = save_onnx(tmp_path / "c.onnx", nodes, {"w": weight, "b": bias}, ["n", 2])
    ran = run("audit", path, "--domain", "box:0.4", "--check", path, "--data", data)
    assert ran.status == 0
    assert "class 2: 1 times, proven unargmaxable inside" in ran.out


def test_a_contradiction_is_loud_and_status_one(
    run: Run, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the audit had called class 0 unargmaxable, which it is not."""
    from uncork.auditing import Audit

    monkeypatch.setattr(Audit, "unargmaxable", property(lambda self: np.array([0])))
    ran = run("audit", model, "--domain", "auto", "--check", model, "--data", data)
    assert ran.status == 1
    assert "BEHAVIOUR CONTRADICTS THE PROOFS" in ran.out
    assert "class 0 0 came first by" in ran.out


def test_first_place_by_rounding_alone_is_told_apart() -> None:
    head_of = np.array([[1.0, 0.0], [1.0 + 2**-20, 0.0], [1.0 + 2**-19, 0.0]], dtype=np.float64)
    head = Head(head_of, domain=Box(0.5, 2.0))
    audit = decide(head)
    assert audit.unargmaxable.tolist() == [0, 1]
    behaviour = Behaviour(audit, head, unit=2.0**-11)
    # float16 holds one value for all three logits; argmax takes the lowest id.
    behaviour(Batch(np.array([[1.0, 1.0]]), np.array([0]), np.array([True]), 1))
    assert behaviour.ok
    assert behaviour.rounded == {0: 1}
    assert behaviour.shared == 1


def test_another_head_proves_nothing_of_the_model(run: Run, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weight=CORNERS * 2)
    np.savez(tmp_path / "same.npz", weight=CORNERS.astype(np.float64))
    np.savez(tmp_path / "wide.npz", weight=np.ones((4, 3)))
    np.save(tmp_path / "x.npy", np.zeros((2, 2), dtype=np.float32))
    check = ["--check", model, "--data", tmp_path / "x.npy"]
    assert "holds other numbers" in run("audit", tmp_path / "other.npz", *check).error
    assert "6 classes × 2 features" in run("audit", tmp_path / "wide.npz", *check).error
    assert run("audit", tmp_path / "same.npz", *check).status == 0


def test_check_and_data_go_together(run: Run, model: Path, data: Path) -> None:
    assert "--data FILE is missing" in run("audit", model, "--check", model).error
    assert "--check MODEL is missing" in run("audit", model, "--data", data).error


def test_a_transformers_folder_checks_itself(run: Run, tmp_path: Path) -> None:
    folder = save_transformer(tmp_path / "model", "gpt2")
    texts = save_texts(tmp_path / "t.txt")
    ran = run(
        "audit", folder, "--domain", "auto", "--check", folder, "--data", texts, "--json", "-"
    )
    assert ran.status == 0
    check = ran.json()["check"]
    assert check["ok"] is True
    assert check["outside"] == 0
    assert check["inputs"] > 100


def test_pp_ocr_v4_reads_no_class_that_is_proven_lost(tmp_path: Path) -> None:
    """Rendered text: hidden states lie in the domain exactly, and nothing lost is read."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    letters = ImageFont.truetype(str(font), 36)
    for k, text in enumerate(["uncork 0.1", "Hello, world!", "3,141.59", "What can it say?"]):
        image = Image.new("RGB", (24 + int(letters.getlength(text)), 52), "white")
        ImageDraw.Draw(image).text((12, 4), text, font=letters, fill="black")
        image.save(tmp_path / f"{k}.png")
    head = load(PP_OCR_V4, domain="auto")
    # Deciding all classes takes long; those that are read, and some that are lost, will do.
    runner = open_runner(PP_OCR_V4, [tmp_path])
    statistics = record(runner)
    read = np.flatnonzero(statistics.first)
    assert len(read) > 20
    audit = decide(head, classes=np.unique([*read.tolist(), 37, 53, 58, 82, 131]))
    assert set(audit.unargmaxable.tolist()) == {37, 53, 58, 82, 131}
    behaviour = Behaviour(audit, head, runner.unit, tolerance=0.0)
    record(runner, watch=[behaviour])
    assert behaviour.inside == behaviour.inputs == statistics.count > 100
    assert behaviour.ok
    assert not behaviour.rounded
