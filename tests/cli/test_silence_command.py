"""`uncork repair --silence`: copies in which some classes are never first, and masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from running import Run
from safetensors.numpy import save_file

from tiny_models import node, save_onnx
from uncork import audit, load

QUICK = ("--device", "cpu", "--jobs", 1, "--quiet")
RNG = np.random.default_rng(1)
WEIGHT = RNG.standard_normal((30, 4)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.npz"
    np.savez(path, weight=WEIGHT, bias=np.zeros(30, np.float32))
    return path


def test_the_copy_is_proven_and_its_proofs_verify(run: Run, model: Path, tmp_path: Path) -> None:
    out, proofs = tmp_path / "s.npz", tmp_path / "p.npz"
    asked = ("repair", model, "-o", out, "--silence", "20-29", "--certificates", proofs, *QUICK)
    found = run(*asked, "--json", "-").json()
    assert found["silenced"] == list(range(20, 30))
    assert found["left"] == []
    assert found["first_in_own_type"] == []
    assert {*range(20, 30)} <= set(audit(load(out), device="cpu", jobs=1).unargmaxable.tolist())
    assert run("verify", proofs, out).status == 0
    assert "proven: none of them is first anywhere in box:-100,100" in run(*asked).out


def test_classes_are_named_as_everywhere(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("3\n5-6\n")
    labels = tmp_path / "labels.txt"
    names = [f"w{k}" for k in range(27)] + ["[unused1]", "[unused2]", "<pad>"]
    labels.write_text("\n".join(names) + "\n")

    def silenced(which: str) -> list[int]:
        asked = ("repair", model, "-o", tmp_path / "s.npz", "--labels", labels, "--silence", which)
        return run(*asked, "--json", "-", *QUICK).json()["silenced"]

    assert silenced(f"@{tmp_path / 'ids.txt'}") == [3, 5, 6]
    assert silenced("reserved") == [27, 28]
    assert silenced("reserved,special") == [27, 28, 29]


def test_an_onnx_model_without_a_bias_gets_one_and_never_says_them(
    run: Run, tmp_path: Path
) -> None:
    source = save_onnx(
        tmp_path / "m.onnx", [node("MatMul", ["x", "w"], "out")], {"w": WEIGHT.T}, ["n", 4]
    )
    out = tmp_path / "s.onnx"
    done = run("repair", source, "-o", out, "--silence", "0-9", "--domain", "box:5", *QUICK)
    assert "the head has no bias: one was added" in done.out
    inputs = (5 * RNG.uniform(-1, 1, (20_000, 4))).astype(np.float32)

    def said(path: Path) -> set[int]:
        (logits,) = onnxruntime.InferenceSession(path).run(None, {"x": inputs})
        return set(logits.argmax(axis=1).tolist())

    assert said(source) & set(range(10))
    assert not said(out) & set(range(10))
    assert said(out) >= said(source) - set(range(10))


def test_a_format_whose_readers_add_no_bias_gets_a_mask(run: Run, tmp_path: Path) -> None:
    source, mask = tmp_path / "model.safetensors", tmp_path / "generation_config.json"
    save_file({"lm_head.weight": WEIGHT}, source)
    asked = ("repair", source, "--silence", "20-29", *QUICK)
    refused = run(*asked, "-o", tmp_path / "s.safetensors").error
    assert "add none: write a mask instead (-o generation_config.json)" in refused
    mask.write_text(json.dumps({"temperature": 0.7, "suppress_tokens": [1]}))
    assert run(*asked, "-o", mask).status == 0
    found = json.loads(mask.read_text())
    assert found == {"temperature": 0.7, "suppress_tokens": [1, *range(20, 30)]}
    assert run(*asked, "-o", tmp_path / "s.npz").status == 0  # the head alone, with a bias


def test_what_is_not_proven_is_not_written(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "m.npz", tmp_path / "s.npz"
    np.savez(source, weight=WEIGHT)
    lead = int(np.argmax(np.linalg.norm(WEIGHT, axis=1)))
    asked = ("repair", source, "-o", out, "--silence", lead, "--domain", "unbounded", *QUICK)
    done = run(*asked)
    assert done.status == 1
    assert "nothing was written; try a smaller --domain" in done.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--silence", "99"), "--silence: class 99 does not exist"),
        (("--silence", "padding"), "--silence padding needs labels"),
        (("--silence", "@none.txt"), "--silence file none.txt does not exist"),
        (("--silence", "0-29"), "one has to be first"),
        (("--silence", "1", "--classes", "2"), "--classes frees classes, and --silence does not"),
        (("--silence", "1", "--how", "row"), "--how frees classes"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, model: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "s.npz"
    assert said in run("repair", model, "-o", out, *arguments, *QUICK).error
    assert not out.exists()


def test_transformers_never_says_what_is_masked(run: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    folder, mask = tmp_path / "model", tmp_path / "generation_config.json"
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    start = torch.zeros(32, 1, dtype=torch.long)

    def said() -> set[int]:
        model = transformers.GPT2LMHeadModel.from_pretrained(folder)
        seen = model.generate(
            start, attention_mask=torch.ones_like(start), do_sample=True, max_new_tokens=14,
            pad_token_id=0,
        )  # fmt: skip
        return set(seen.flatten().tolist())

    assert said() & set(range(30, 40))
    assert run("repair", folder, "-o", mask, "--silence", "30-39", *QUICK).status == 0
    mask.replace(folder / mask.name)
    assert not said() & set(range(30, 40))
    assert "would overwrite a file of the model" in (
        run("repair", folder, "-o", folder / mask.name, "--silence", "1", *QUICK).error
    )
