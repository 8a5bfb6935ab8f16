"""What a configuration says of the head: none, tied, several, not one matrix, not an argmax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import CLASSES, Made, make, variant
from torch import nn

from uncork import LayerNorm, RMSNorm, UncorkError
from uncork.loading import AmbiguousError, find, load, open_source
from uncork.loading.decisions import MULTI_LABEL, REGRESSION
from uncork.save import write_head


def change(folder: Path, **changes: Any) -> None:
    """Change the configuration; None takes an entry out."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {k: v for k, v in (config | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def rewrite(folder: Path, drop: str = "", **added: np.ndarray) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if name != drop}
    save_file(kept | added, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("WhisperForConditionalGeneration", {}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": False}), ("MiniCPM3ForCausalLM", {}),
    ],
)  # fmt: skip
def test_a_base_model_has_no_head(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    made = make(name, **options)
    made.model.model.save_pretrained(tmp_path)
    change(tmp_path, tie_word_embeddings=made.model.config.tie_word_embeddings)
    with pytest.raises(
        AmbiguousError,
        match=r"(without|is no) .*head.*--weight.*embed_tokens|embed_tokens.*--weight",
    ):
        load(tmp_path)
    embedding = next(n for n in load_file(tmp_path / "model.safetensors") if "embed_tokens" in n)
    assert load(tmp_path, weight=embedding).classes == CLASSES


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A model of a type that is in no table, without a tensor for its head."""
    variant("llama").save(tmp_path)
    rewrite(tmp_path, drop="lm_head.weight")
    change(tmp_path, model_type="frobnicator", architectures=["FrobnicatorForCausalLM"],
           tie_word_embeddings=None)  # fmt: skip
    return tmp_path


def test_of_an_unknown_type_an_embedding_is_the_head_only_where_it_is_said(unknown: Path) -> None:
    for said in (None, False):
        change(unknown, tie_word_embeddings=said)
        with pytest.raises(
            AmbiguousError, match=r"nothing says that it is tied.*model\.embed_tokens"
        ):
            load(unknown)
    rewrite(unknown, **{"lm_head.qweight": np.zeros((4, CLASSES), np.int32)})
    with pytest.raises(UncorkError, match=r"lm_head\.qweight.*: dequantise"):
        load(unknown)
    rewrite(unknown, drop="lm_head.qweight")
    change(unknown, tie_word_embeddings=True)
    found = find(unknown)
    assert found.weight_name == "model.embed_tokens.weight"
    assert "'frobnicator' is not in uncork's table" in " ".join(found.notes)


def test_of_an_unknown_type_what_may_be_the_bias_is_not_left_out(unknown: Path) -> None:
    change(unknown, tie_word_embeddings=True)
    rewrite(unknown, **{"odd.offset": np.ones(CLASSES, np.float32)})
    with pytest.raises(AmbiguousError, match=r"whether odd\.offset.* is its bias"):
        load(unknown)
    assert load(unknown, weight="model.embed_tokens.weight", bias="odd.offset").bias is not None


def test_each_codebook_of_a_stacked_head_can_be_audited(tmp_path: Path) -> None:
    made = make("CsmDepthDecoderForCausalLM")
    made.save(tmp_path)
    stacked = made.model.codebooks_head.weight.detach().numpy()
    with pytest.raises(AmbiguousError, match=r"--weight: codebooks_head\.weight\[0\], .* more"):
        load(tmp_path)
    for book in (0, 3, len(stacked) - 1):
        found = find(tmp_path, weight=f"codebooks_head.weight[{book}]", domain="auto")
        np.testing.assert_array_equal(found.head.weight, stacked[book].T)
        assert isinstance(found.head.domain, RMSNorm)
    with pytest.raises(UncorkError, match="3 dimensions"):
        load(tmp_path, weight="codebooks_head.weight")


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn])
def test_codes_without_a_scale_are_refused_in_a_stack_of_codebooks_too(
    tmp_path: Path, kind: Any
) -> None:
    config = {"model_type": "csm_depth_decoder_model"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    file = tmp_path / "model.safetensors"
    save_file({"codebooks_head.weight": np.ones((3, 4, 20), np.float32).astype(kind)}, file)
    with pytest.raises(UncorkError, match="quantised, and no scale"):
        load(tmp_path, weight="codebooks_head.weight[1]")


def test_a_codebook_is_read_without_the_shards_of_other_layers(tmp_path: Path) -> None:
    config = {"model_type": "csm_depth_decoder_model"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stacked = np.arange(240, dtype=np.float32).reshape(3, 4, 20)
    save_file({"codebooks_head.weight": stacked}, tmp_path / "head.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"not opened")
    where = {"codebooks_head.weight": "head.safetensors", "layers.0.w": "other.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    head = load(tmp_path, weight="codebooks_head.weight[1]")
    np.testing.assert_array_equal(head.weight, stacked[1].T)


def test_a_part_of_a_tensor_is_not_written_beside_it(tmp_path: Path) -> None:
    make("CsmDepthDecoderForCausalLM").save(tmp_path)
    found = find(tmp_path / "model.safetensors", weight="codebooks_head.weight[3]")
    with pytest.raises(UncorkError, match=r"a part of codebooks_head\.weight"):
        write_head(found, found.head.weight, None, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_each_codebook_in_the_rows_of_one_matrix_can_be_audited(tmp_path: Path) -> None:
    made = make("DiaForConditionalGeneration")
    made.save(tmp_path)
    rows = made.model.logits_dense.weight.detach().numpy()
    channels = made.model.config.decoder_config.num_channels
    found = find(tmp_path, weight="logits_dense.weight[2]", domain="auto")
    classes = len(rows) // channels
    np.testing.assert_array_equal(found.head.weight, rows[2 * classes : 3 * classes])
    hidden = made.products[-1].hidden
    logits = made.logits.reshape(len(hidden), -1, classes)[:, 2]
    np.testing.assert_array_equal((hidden @ found.head.weight.T).argmax(1), logits.argmax(1))
    assert found.head.domain.contains(hidden, tolerance=1e-5).all()


def test_each_codebook_with_a_layer_of_its_own_can_be_audited(tmp_path: Path) -> None:
    made = make("MusicgenForCausalLM")
    made.save(tmp_path)
    with pytest.raises(AmbiguousError, match=r"lm_heads\.0\.weight, lm_heads\.1\.weight"):
        load(tmp_path)
    found = find(tmp_path, weight="lm_heads.1.weight", domain="auto")
    weight = made.model.lm_heads[1].weight.detach().numpy()
    np.testing.assert_array_equal(found.head.weight, weight)
    assert isinstance(found.head.domain, LayerNorm)
    assert found.head.domain.contains(made.products[-1].hidden, tolerance=1e-5).all()


def test_an_adaptive_softmax_is_refused_by_name(tmp_path: Path) -> None:
    make("XLMWithLMHeadModel").save(tmp_path)
    load(tmp_path)
    change(tmp_path, asm=True)
    with pytest.raises(UncorkError, match="adaptive softmax spreads the classes"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SwiftFormerForImageClassification", "mean of head.weight and dist_head.weight, added"),
        ("DeiTForImageClassificationWithTeacher", "distillation_classifier.weight, side by side"),
    ],
)
def test_the_mean_of_two_heads_is_said_to_be_folded(name: str, said: str, tmp_path: Path) -> None:
    make(name).save(tmp_path)
    choice = open_source(tmp_path).choose()
    assert said in choice.folded[0]
    alone = find(tmp_path, weight=choice.weight_name)
    assert alone.head.dtype == "float32"


def test_a_head_in_two_matrices_is_put_together(tmp_path: Path) -> None:
    made = make("MobileBertForMaskedLM")
    choice = open_source(made.save(tmp_path)).choose()
    assert choice.weight.shape == (CLASSES, 32)
    assert "cls.predictions.dense.weight" in choice.folded[0]


def test_classes_that_a_model_never_says_are_doubtful(tmp_path: Path) -> None:
    make("ChameleonForConditionalGeneration").save(tmp_path)
    choice = open_source(tmp_path).choose()
    assert "never says 8 of its classes, the image tokens 100 to 107" in choice.doubts[0]
    assert "--classes" in choice.doubts[0]


def test_a_single_output_has_no_classes_to_compare(tmp_path: Path) -> None:
    variant("bert classifier").save(tmp_path)
    width = load_file(tmp_path / "model.safetensors")["classifier.weight"].shape[1]
    one = {"classifier.weight": np.ones((1, width), np.float32),
           "classifier.bias": np.ones(1, np.float32)}  # fmt: skip
    rewrite(tmp_path, **one)
    with pytest.raises(UncorkError, match=r"classifier\.weight .* a single number") as raised:
        load(tmp_path)
    assert "transpose" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"problem_type": "multi_label_classification"}, MULTI_LABEL),
        ({"problem_type": "regression"}, REGRESSION), ({}, ""),
        ({"problem_type": "single_label_classification"}, ""),
    ],
)  # fmt: skip
def test_answers_that_are_no_argmax_are_noted(
    settings: dict[str, Any], note: str, tmp_path: Path
) -> None:
    variant("bert classifier").save(tmp_path)
    change(tmp_path, **settings)
    notes = find(tmp_path).notes
    assert (note in notes) if note else not {MULTI_LABEL, REGRESSION} & set(notes)


def test_a_live_sigmoid_is_noted() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))
    assert find(plain).notes == ()
    assert (
        "2 ends in a sigmoid for each class" in find(nn.Sequential(*plain, nn.Sigmoid())).notes[0]
    )


def test_what_the_configuration_does_not_say_is_not_noted(tmp_path: Path) -> None:
    def notes(made: Made, folder: str) -> str:
        return " ".join(find(made.save(tmp_path / folder)).notes)

    assert "capped" in notes(variant("gemma2"), "gemma2")
    assert "capped" not in notes(variant("gemma2 classifier"), "classifier")
    untied = make("T5ForConditionalGeneration")
    untied.save(tmp_path / "t5")
    rows = np.ones((CLASSES, 32), np.float32)
    rewrite(tmp_path / "t5", **{"lm_head.weight": rows})
    change(tmp_path / "t5", tie_word_embeddings=False)
    found = find(tmp_path / "t5")
    assert found.weight_name == "lm_head.weight"
    assert not any("ties the head" in note for note in found.notes)
