"""Models run over data: what is recorded is what the real libraries compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import (
    TEXTS,
    node,
    number,
    rows_of,
    run_onnx,
    save_onnx,
    save_texts,
    save_transformer,
)
from uncork import UncorkError
from uncork.activations import open_runner, record
from uncork.loading import find

RNG = np.random.default_rng(0)
D, C = 6, 9
W = RNG.normal(size=(D, C)).astype(np.float32)


@pytest.fixture
def recogniser(tmp_path: Path) -> Path:
    """(n, 3, 5) to ReLU features to logits at every position."""
    nodes = [
        node("Transpose", ["x"], "t", perm=[0, 2, 1]), node("MatMul", ["t", "a"], "y"),
        node("Relu", ["y"], "h"), node("MatMul", ["h", "w"], "z"), node("Add", ["z", "b"], "l"),
        node("Softmax", ["l"], "out"),
    ]  # fmt: skip
    a = RNG.normal(size=(3, D)).astype(np.float32)
    b = RNG.normal(size=C).astype(np.float32)
    return save_onnx(tmp_path / "m.onnx", nodes, {"a": a, "w": W, "b": b}, ["n", 3, "t"])


def test_onnx_inputs_and_predictions_are_those_of_the_graph(
    recogniser: Path, tmp_path: Path
) -> None:
    x = RNG.normal(size=(11, 3, 5)).astype(np.float32)
    np.savez(tmp_path / "first.npz", x=x[:7])
    np.save(tmp_path / "second.npy", x[7:])
    data = [tmp_path / "first.npz", tmp_path / "second.npy"]
    runner = open_runner(recogniser, data, batch_size=4)
    assert runner.total == 11
    seen = list(runner.batches(0, 11))
    assert [batch.items for batch in seen] == [4, 3, 4]
    h, out = run_onnx(recogniser, x, "h", "out")
    np.testing.assert_array_equal(np.concatenate([b.inputs for b in seen]), rows_of(h))
    np.testing.assert_array_equal(np.concatenate([b.first for b in seen]), rows_of(out).argmax(1))
    statistics = record(runner)
    np.testing.assert_array_equal(statistics.upper, rows_of(h).max(axis=0))
    part = record(runner, limit=8)
    np.testing.assert_array_equal(part.upper, rows_of(h[:8]).max(axis=0))


def test_a_convolution_that_is_averaged_records_the_averages(tmp_path: Path) -> None:
    weight = RNG.normal(size=(C, D, 1, 1)).astype(np.float32)
    nodes = [node("Relu", ["x"], "h"), node("Conv", ["h", "w"], "z"),
             node("GlobalAveragePool", ["z"], "out")]  # fmt: skip
    path = save_onnx(tmp_path / "m.onnx", nodes, {"w": weight}, ["n", D, "a", "b"])
    x = RNG.normal(size=(7, D, 3, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    statistics = record(open_runner(path, [tmp_path / "x.npy"]))
    assert statistics.count == 7
    h, out = run_onnx(path, x, "h", "out")
    np.testing.assert_allclose(statistics.upper, h.mean(axis=(2, 3)).max(axis=0), rtol=1e-6)
    counts = np.bincount(out.reshape(7, C).argmax(1), minlength=C)
    np.testing.assert_array_equal(statistics.first, counts)


def test_a_dynamically_quantised_head_records_what_its_integers_stand_for(tmp_path: Path) -> None:
    whole = RNG.integers(0, 256, size=(D, C)).astype(np.uint8)
    nodes = [
        node("Tanh", ["x"], "h"), node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], "i"), node("Cast", ["i"], "f", to=1),
        node("Mul", ["s", "ws"], "ss"), node("Mul", ["f", "ss"], "out"),
    ]  # fmt: skip
    constants = {"w": whole, "wz": np.array(120, dtype=np.uint8), "ws": number(0.02)}
    path = save_onnx(tmp_path / "m.onnx", nodes, constants, ["n", D])
    x = RNG.normal(size=(60, D)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    runner = open_runner(path, [tmp_path / "x.npy"])
    batch = next(runner.batches(0, 16))
    q, s, z = run_onnx(path, x[:16], "q", "s", "z")
    expected = (q.astype(np.float64) - float(z)) * np.float64(s)
    np.testing.assert_array_equal(batch.inputs, expected)
    domain = find(path, domain="auto").head.domain
    assert domain.contains(batch.inputs).all()


def test_pictures_go_in_as_recognisers_take_them(tmp_path: Path) -> None:
    from PIL import Image

    from uncork.activations.data import picture

    Image.new("RGB", (96, 24), (255, 0, 128)).save(tmp_path / "p.png")
    x = picture(tmp_path / "p.png", 3, 48)
    assert x.shape == (1, 3, 48, 192)
    np.testing.assert_allclose(x[0, :, 0, 0], [128 / 127.5 - 1, -1, 1], atol=1e-6)
    assert picture(tmp_path / "p.png", 1, 64).shape == (1, 1, 64, 256)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "takes .npz or .npy arrays, or pictures"),
        ("none", "does not exist"),
        ("empty folder", "the folder is empty"),
        ("pickle", "not an array file"),
        ("wrong name", "has no array 'x'"),
        ("wrong shape", "fails on this data"),
        ("picture", "give arrays"),
    ],
)
def test_data_that_does_not_fit_is_answered_in_one_line(
    recogniser: Path, tmp_path: Path, data: str, message: str
) -> None:
    from PIL import Image

    path = tmp_path / "data"
    if data == "text":
        path.write_text("hello")
    elif data == "empty folder":
        path.mkdir()
    elif data == "pickle":
        path = path.with_suffix(".npy")
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    elif data == "wrong name":
        path = path.with_suffix(".npz")
        np.savez(path, y=np.zeros((2, 3, 5), dtype=np.float32))
    elif data == "wrong shape":
        path = path.with_suffix(".npy")
        np.save(path, np.zeros((2, 4, 5), dtype=np.float32))
    elif data == "picture":
        path = path.with_suffix(".png")
        Image.new("RGB", (9, 9)).save(path)
    with pytest.raises(UncorkError, match=message) as raised:
        record(open_runner(recogniser, [path]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["gpt2", "gpt2 classifier", "bert classifier"])
def test_transformers_inputs_are_the_hidden_states_of_one_text_at_a_time(
    tmp_path: Path, kind: str
) -> None:
    """In batches, with padding, the same arrives as without."""
    import torch

    folder = save_transformer(tmp_path / "model", kind)
    texts = save_texts(tmp_path / "texts.txt")
    runner: Any = open_runner(folder, [texts], batch_size=5)
    seen = list(runner.batches(0, runner.total))
    assert sum(batch.items for batch in seen) == len(TEXTS)
    every = np.concatenate([batch.inputs for batch in seen])
    firsts = np.concatenate([batch.first for batch in seen])
    expected, winners = [], []
    for text in TEXTS:
        ids = torch.tensor([runner.tokenizer(text)["input_ids"]])
        kept: list[Any] = []
        hook = runner.module.register_forward_pre_hook(lambda m, x, kept=kept: kept.append(x[0]))
        with torch.inference_mode():
            logits = runner.model(input_ids=ids).logits
        hook.remove()
        x = kept[0].reshape(-1, 8)
        expected.append(x[-1:] if kind == "gpt2 classifier" else x)
        winners.append(logits.reshape(-1, logits.shape[-1]).argmax(-1))
    np.testing.assert_allclose(every, torch.cat(expected).double(), atol=1e-4)
    np.testing.assert_array_equal(firsts, torch.cat(winners))
    domain = find(folder, domain="auto").head.domain
    assert domain.contains(every, 1e-5).all()


def test_an_encoder_decoder_writes_greedily_or_reads_the_target(tmp_path: Path) -> None:
    import torch

    folder = save_transformer(tmp_path / "model", "t5")
    lines = [TEXTS[0], f"{TEXTS[1]}\t{TEXTS[2]}", TEXTS[3]]
    texts = save_texts(tmp_path / "texts.txt", lines)
    runner: Any = open_runner(folder, [texts], batch_size=3, max_new_tokens=5)
    (batch,) = runner.batches(0, 3)
    written = []
    for text in (lines[0], lines[2]):
        ids = torch.tensor([runner.tokenizer(text)["input_ids"]])
        made = runner.model.generate(input_ids=ids, max_new_tokens=5, do_sample=False, num_beams=1)
        tokens = made[0, 1:].tolist()
        written += tokens[: tokens.index(1) + 1] if 1 in tokens else tokens
    targets = runner.tokenizer(TEXTS[2])["input_ids"]
    assert len(batch.inputs) == len(written) + len(targets)
    assert batch.first[: len(written)].tolist() == written
    domain = find(folder, domain="auto").head.domain
    assert domain.contains(batch.inputs, 1e-5).all()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    import json

    folder = save_transformer(tmp_path / "model", "gpt2")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["EvilForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "evil.EvilForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UncorkError, match="is never run"):
        open_runner(folder, [save_texts(tmp_path / "t.txt")])
    assert not (tmp_path / "ran").exists()


def test_a_head_that_is_not_the_models_own_is_noticed(tmp_path: Path) -> None:
    folder = save_transformer(tmp_path / "model", "gpt2")
    runner: Any = open_runner(folder, [save_texts(tmp_path / "t.txt")])
    runner.head = runner.head.replace(weight=runner.head.weight[::-1].copy())
    with pytest.raises(UncorkError, match="not the same layer"):
        record(runner)


def test_weights_alone_cannot_be_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "head.npz", weight=W)
    with pytest.raises(UncorkError, match="holds weights only"):
        open_runner(tmp_path / "head.npz", [save_texts(tmp_path / "t.txt")])
