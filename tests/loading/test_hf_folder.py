"""Hugging Face folders: every way to keep the weights, and folders that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from small_models import CLASSES, variant

from uncork import RMSNorm, UncorkError
from uncork.loading import AmbiguousError, describe, find, load, open_source
from uncork.loading.codes.decoded import Decoded
from uncork.loading.hugging_face.folder import Shards
from uncork.loading.hugging_face.locate import locate


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama with a head of its own, in one file."""
    return variant("llama").save(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant("llama").save(tmp_path_factory.mktemp("sharded"), max_shard_size="12KB")


def config_of(folder: Path, **changes: Any) -> None:
    """Change the configuration; None takes an entry out."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {k: v for k, v in (config | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def tensors_of(folder: Path, **changes: np.ndarray | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name.replace("__", "."): value for name, value in changes.items()}
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file(kept, folder / "model.safetensors")


def expect_head(folder: Path, name: str = "llama") -> None:
    found = find(folder, domain="auto")
    made = variant(name)
    logits = made.hidden @ found.head.rows(0, CLASSES).T
    np.testing.assert_array_equal(logits.argmax(axis=1), made.first)
    assert found.head.domain.contains(made.hidden, tolerance=1e-5).all()


def test_weights_in_shards_are_opened_only_where_they_are_needed(sharded: Path) -> None:
    expect_head(sharded)
    contents = open_source(sharded)
    assert isinstance(contents.tensors, Decoded)
    tensors = contents.tensors.stored
    assert isinstance(tensors, Shards)
    shards = len(list(sharded.glob("*.safetensors")))
    assert shards > 4
    choice = contents.choose()
    contents.domain(choice)
    assert len(tensors.opened) <= 2


def test_shards_that_hold_nothing_needed_may_be_missing(sharded: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "model"))
    where = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    config = json.loads((copy / "config.json").read_text())
    found = locate(config, list(where))
    assert found is not None
    needed = found.tensors
    assert set(needed) == {"lm_head.weight", "model.norm.weight"}
    for shard in set(where.values()) - {where[name] for name in needed}:
        (copy / shard).unlink()
    expect_head(copy)
    assert describe(copy).head is not None
    (copy / where["lm_head.weight"]).unlink()
    with pytest.raises(UncorkError, match=r"lacks model-000\d\d-of-.*complete the download"):
        load(copy)


def test_shards_without_an_index_are_read_if_they_are_all_there(
    sharded: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "model"))
    (copy / "model.safetensors.index.json").unlink()
    expect_head(copy)
    next(copy.glob("*-00002-of-*")).unlink()
    with pytest.raises(UncorkError, match="complete the download"):
        load(copy)


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x.safetensors\n",
              "C:\\x.safetensors", "weights.pkl", 7, None],
)  # fmt: skip
def test_an_index_that_leads_out_of_the_folder_is_refused(
    sharded: Path, tmp_path: Path, shard: Any
) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "model"))
    file = copy / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["lm_head.weight"] = shard
    file.write_text(json.dumps(index))
    with pytest.raises(UncorkError, match="not a file of this folder"):
        load(copy)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}', "{" * 9999]
)
def test_a_damaged_index_is_one_clear_line(sharded: Path, tmp_path: Path, text: str) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "model"))
    (copy / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UncorkError, match=r"index\.json") as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_an_index_that_does_not_go_with_its_shards_is_noticed(
    sharded: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "model"))
    file = copy / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    where = index["weight_map"]
    where["lm_head.weight"] = where["model.embed_tokens.weight"]
    file.write_text(json.dumps(index))
    with pytest.raises(UncorkError, match="do not belong together"):
        load(copy)


def test_weights_as_torch_saves_them(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(variant("llama").model.state_dict(), folder / "pytorch_model.bin")
    expect_head(folder)


def test_weights_as_torch_saves_them_in_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    state = variant("llama").model.state_dict()
    names = sorted(state)
    where = {}
    for k in range(3):
        shard = f"pytorch_model-0000{k + 1}-of-00003.bin"
        torch.save({name: state[name] for name in names[k::3]}, folder / shard)
        where |= dict.fromkeys(names[k::3], shard)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    expect_head(folder)


def test_a_pickle_saved_with_both_names_of_a_tied_head(tmp_path: Path) -> None:
    made = variant("gpt2")
    made.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(made.model.state_dict(), tmp_path / "pytorch_model.bin")
    found = find(tmp_path)
    assert found.weight_name == "lm_head.weight"
    assert found.notes == ()


def test_a_file_of_a_folder_is_read_with_the_configuration_beside_it(saved: Path) -> None:
    found = find(saved / "model.safetensors", domain="auto")
    assert isinstance(found.head.domain, RMSNorm)
    assert found.contents.format == "safetensors"


def test_a_tied_head_that_its_configuration_leaves_unsaid(tmp_path: Path) -> None:
    made = variant("gemma")
    made.save(tmp_path)
    config_of(tmp_path, tie_word_embeddings=None)
    found = find(tmp_path)
    assert found.weight_name == "model.embed_tokens.weight"
    config_of(tmp_path, tie_word_embeddings=False)
    with pytest.raises(AmbiguousError, match=r"does not tie it.*name it with --weight"):
        load(tmp_path)
    assert load(tmp_path, weight="model.embed_tokens.weight").classes == CLASSES


def test_a_head_that_should_be_tied_and_is_not_is_pointed_out(folder: Path) -> None:
    config_of(folder, tie_word_embeddings=True)
    found = find(folder)
    assert found.weight_name == "lm_head.weight"
    assert any("the two differ" in note for note in found.notes)


def test_bfloat16_is_kept_and_one_plus_is_taken_as_the_model_takes_it(tmp_path: Path) -> None:
    for name, exact in (("gemma", np.float32), ("nemotron", ml_dtypes.bfloat16)):
        model = variant(name).model
        folder = tmp_path / name
        model.save_pretrained(folder, state_dict={
            key: value.to(torch.bfloat16) for key, value in model.state_dict().items()
        })  # fmt: skip
        found = find(folder, domain="auto")
        assert found.head.dtype == "bfloat16"
        stored = load_file(folder / "model.safetensors")["model.norm.weight"]
        gain = stored.astype(exact) + exact(1)
        np.testing.assert_array_equal(found.head.domain.gain, gain.astype(exact).astype(np.float64))


def test_a_gain_taken_for_another_convention_would_be_noticed(tmp_path: Path) -> None:
    """The domains are tight enough for the tests to tell w from 1 + w."""
    made = variant("gemma")
    found = find(made.save(tmp_path), domain="auto")
    assert isinstance(found.head.domain, RMSNorm)
    gain = found.head.domain.gain
    assert gain is not None
    assert not RMSNorm(gain - 1).contains(made.hidden, tolerance=1e-5).any()


def test_an_unknown_model_type_is_found_by_name_and_said_to_be(folder: Path) -> None:
    config_of(folder, model_type="frobnicator", architectures=["FrobnicatorForCausalLM"])
    found = find(folder, domain="auto")
    assert found.weight_name == "lm_head.weight"
    assert found.shown_domain is None
    assert any("'frobnicator' is not in uncork's table" in note for note in found.notes)


def test_a_folder_without_a_configuration_is_found_by_name(folder: Path) -> None:
    (folder / "config.json").unlink()
    found = find(folder, domain="auto")
    assert found.weight_name == "lm_head.weight"
    assert found.shown_domain is None


def test_the_models_own_code_is_said_to_be_unseen(folder: Path) -> None:
    config_of(folder, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    shown = find(folder, domain="auto").shown_domain
    assert shown is not None
    assert "auto_map" in shown.assumed


def test_a_model_saved_without_its_head_is_refused(tmp_path: Path) -> None:
    variant("bert").model.bert.save_pretrained(tmp_path)
    with pytest.raises(AmbiguousError, match="no head here"):
        load(tmp_path)
    shutil.rmtree(tmp_path)
    variant("llama").model.model.save_pretrained(tmp_path)
    with pytest.raises(AmbiguousError, match="there is no head"):
        load(tmp_path)


def test_names_without_the_inner_models_name_are_understood(tmp_path: Path) -> None:
    """The hub's gpt2 was saved that way."""
    variant("gpt2").model.transformer.save_pretrained(tmp_path)
    assert "wte.weight" in load_file(tmp_path / "model.safetensors")
    config_of(tmp_path, architectures=["GPT2LMHeadModel"])
    expect_head(tmp_path, "gpt2")


def test_names_of_tensorflows_time_are_understood(tmp_path: Path) -> None:
    made = variant("bert")
    made.save(tmp_path)
    norm = "cls.predictions.transform.LayerNorm."
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[norm + "gamma"] = tensors.pop(norm + "weight")
    tensors[norm + "beta"] = tensors.pop(norm + "bias")
    save_file(tensors, tmp_path / "model.safetensors")
    found = find(tmp_path, domain="auto")
    assert found.head.domain.contains(made.hidden, tolerance=1e-5).all()


@pytest.mark.parametrize("architectures", [None, ["LlamaForRewards"]])
def test_two_heads_and_a_class_that_does_not_say_which(folder: Path, architectures: Any) -> None:
    tensors_of(folder, score__weight=np.ones((3, 32), np.float32))
    config_of(folder, architectures=architectures)
    with pytest.raises(AmbiguousError, match=r"which is the head: lm_head\.weight, score\.weight"):
        load(folder)
    assert load(folder, weight="score.weight").classes == 3
    shown = describe(folder)
    assert shown.head is None
    assert "name one with --weight" in shown.problem


def test_a_second_head_is_pointed_out(tmp_path: Path) -> None:
    made = variant("bert")
    made.save(tmp_path)
    config_of(tmp_path, architectures=["BertForPreTraining"])
    tensors_of(tmp_path, cls__seq_relationship__weight=np.ones((2, 32), np.float32))
    found = find(tmp_path)
    assert found.head.classes == CLASSES
    assert any("cls.seq_relationship.weight" in note for note in found.notes)


def test_an_activation_of_unknown_range_gives_no_domain(tmp_path: Path) -> None:
    variant("deberta-v2 classifier").save(tmp_path)
    config_of(tmp_path, pooler_hidden_act="frob")
    found = find(tmp_path, domain="auto")
    assert found.shown_domain is None
    assert any("'frob'" in note for note in found.notes)


def test_question_answering_has_no_classes(folder: Path) -> None:
    config_of(folder, architectures=["LlamaForQuestionAnswering"])
    with pytest.raises(AmbiguousError, match="positions"):
        load(folder)
    assert load(folder, weight="lm_head.weight").classes == CLASSES


def test_settings_that_change_the_order_of_operations_give_no_domain(tmp_path: Path) -> None:
    variant("opt").save(tmp_path)
    config_of(tmp_path, _remove_final_layer_norm=True)
    found = find(tmp_path, domain="auto")
    assert found.shown_domain is None
    assert any("_remove_final_layer_norm" in note for note in found.notes)


def test_a_factor_on_the_logits_that_turns_them_round_is_refused(tmp_path: Path) -> None:
    variant("cohere").save(tmp_path)
    assert any("logit_scale" in note for note in find(tmp_path).notes)
    config_of(tmp_path, logit_scale=-1.0)
    with pytest.raises(UncorkError, match="logit_scale = -1"):
        load(tmp_path)


def test_capped_logits_are_noted(tmp_path: Path) -> None:
    variant("gemma2").save(tmp_path)
    assert any("capped at ±30" in note for note in find(tmp_path).notes)


def test_quantised_heads_are_refused(folder: Path) -> None:
    tensors_of(folder, lm_head__weight=np.zeros((CLASSES, 16), np.uint8))
    with pytest.raises(UncorkError, match="uint8: quantised"):
        load(folder)
    tensors_of(folder, lm_head__weight=None, lm_head__qweight=np.zeros((4, CLASSES), np.int32))
    with pytest.raises(UncorkError, match=r"stored as codes \(with lm_head\.qweight\)"):
        load(folder)


def test_a_norm_that_does_not_fit_the_head_gives_no_domain(folder: Path) -> None:
    tensors_of(folder, model__norm__weight=np.ones(31, np.float32))
    assert find(folder, domain="auto").shown_domain is None


def test_columns_named_by_hand_have_no_domain(folder: Path) -> None:
    found = find(folder, weight="lm_head.weight", transpose=True, domain="auto")
    assert (found.head.classes, found.shown_domain) == (32, None)


def test_the_only_model_of_a_folder_is_read(tmp_path: Path) -> None:
    weight = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "model.npz", weight=weight)
    (tmp_path / "README.md").write_text("a model")
    np.testing.assert_array_equal(load(tmp_path).weight, weight)
    np.save(tmp_path / "other.npy", weight)
    with pytest.raises(AmbiguousError, match=r"2 models: model\.npz, other\.npy: give the path"):
        load(tmp_path)


def test_a_folder_without_a_model_says_what_to_do(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(UncorkError, match="holds no model: give"):
        load(tmp_path)
    shutil.copytree(saved, tmp_path / "inside")
    with pytest.raises(UncorkError, match="there is a model in inside"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UncorkError, match=r"no adapter_model\.safetensors: complete the download"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", "\ud800", '{"model_type": ' + "[" * 100_000])
def test_a_damaged_configuration_is_one_clear_line(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, errors="surrogatepass")
    with pytest.raises(UncorkError, match=r"config\.json") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"model_type": 7}, {"architectures": "LlamaForCausalLM"}, {"architectures": [None]},
     {"text_config": {"text_config": 3}}, {"tie_word_embeddings": "yes"}, {"architectures": [[]]}],
)  # fmt: skip
def test_odd_configurations_are_read_or_refused_clearly(folder: Path, changes: Any) -> None:
    config_of(folder, **changes)
    assert load(folder).classes == CLASSES


def test_timm_says_where_its_classifier_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(5, 8)).astype(np.float32)
    save_file(
        {
            "head.fc.weight": weight,
            "head.fc.bias": weight[:, 0].copy(),
            "stem.weight": weight.T.copy(),
        },
        tmp_path / "model.safetensors",
    )
    config: dict[str, Any] = {
        "architecture": "net", "num_classes": 5, "label_names": list("abcde"),
        "pretrained_cfg": {"classifier": "head.fc"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = load(tmp_path)
    np.testing.assert_array_equal(head.weight, weight)
    assert head.bias is not None
    assert head.labels == tuple("abcde")
    config["pretrained_cfg"] = {"classifier": ["head.fc", "head_dist"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AmbiguousError, match="2 classifiers"):
        load(tmp_path)


def test_labels_come_from_the_folder(tmp_path: Path) -> None:
    model = variant("bert classifier").model
    model.config.id2label = {k: f"kind {k}" for k in range(29)}
    model.save_pretrained(tmp_path)
    assert load(tmp_path).labels == tuple(f"kind {k}" for k in range(29))
