"""The paper's own study: its manifest, and small models of its classes from a local hub."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hub_server import Hub, serving
from tiny_models import save_transformer
from uncork.sweep import read_manifest

SCRIPT = Path(__file__).parents[2] / "experiments" / "grivas2022.py"


def save_marian(folder: Path) -> Path:
    """A Marian model with a tied head and a bias, and more tokens than one feature can rank."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    config = t.MarianConfig(
        vocab_size=30, d_model=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=16,
        pad_token_id=29, eos_token_id=0, decoder_start_token_id=29, forced_eos_token_id=0,
    )  # fmt: skip
    t.MarianMTModel(config).save_pretrained(folder)
    words = [
        "</s>",
        "<unk>",
        *(chr(0x430 + k) * 2 for k in range(20)),
        *"abc",
        *"1.!",
        "x",
        "<pad>",
    ]
    (folder / "vocab.json").write_text(
        "{" + ", ".join(f'"{word}": {k}' for k, word in enumerate(words)) + "}", encoding="utf-8"
    )
    return folder


def test_the_manifest_names_the_paper_s_models() -> None:
    tasks = read_manifest(SCRIPT.with_suffix(".toml"))
    groups = Counter(task.group for task in tasks)
    assert groups == {"Helsinki NLP": 32, "FAIR": 4, "language models": 7}
    scripts = {task.name: task.options.get("classes") for task in tasks}
    assert scripts["opus-mt-en-ru"] == "script:CYRILLIC"
    assert scripts["gpt2"] is None


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


def test_small_models_of_the_same_classes_are_swept_and_compared(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["Helsinki-NLP/opus-mt-en-ru"] = save_marian(tmp_path / "marian")
    hub.repositories["openai-community/gpt2"] = save_transformer(tmp_path / "gpt2", "gpt2")
    manifest = tmp_path / "small.toml"
    whole = SCRIPT.with_suffix(".toml").read_text("utf-8").split("\n\n")
    wanted = ("[defaults]", "opus-mt-en-ru", "/gpt2", "facebook/wmt19-en-ru")
    manifest.write_text("\n\n".join(p for p in whole if any(w in p for w in wanted)), "utf-8")
    asked = [sys.executable, str(SCRIPT), "--manifest", str(manifest), "--store", "found.db",
             "--workers", "1"]  # fmt: skip
    ran = [
        subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, check=False)
        for _ in range(2)
    ]
    lines = ran[0].stdout.splitlines()
    marian = next(line.split() for line in lines if line.startswith("opus-mt-en-ru"))
    assert marian[1] == "20", ran[0].stderr  # the Cyrillic tokens alone
    assert (marian[2], marian[4]) == ("98", "34")  # the paper's
    gpt2 = next(line.split() for line in lines if line.startswith("gpt2"))
    assert (gpt2[1], gpt2[2], gpt2[4], gpt2[7]) == ("48", "–", "0", "0")
    assert any(line.startswith("wmt19-en-ru") and "not audited" in line for line in lines)
    assert any(line.startswith("failed: wmt19-en-ru") for line in lines)
    assert ran[1].stdout == ran[0].stdout  # nothing is decided again, and the table is the same
