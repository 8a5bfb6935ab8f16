"""PEFT adapters: the head is the one that peft's own merge gives, or the adapter is refused."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import describe, find, load
from uncork.loading.source import Found

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # peft's, on tied embeddings and on saving

WORDS, WIDTH = 40, 16
INSIDE = "q_proj"


def llama(tied: bool, kind: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return _shaken(transformers.LlamaForCausalLM(config)).to(kind)


def _shaken(model: Any, every: bool = True) -> Any:
    """The model with all that can be trained, or what is not zero yet, drawn anew."""
    for value in model.parameters():
        if every or value.requires_grad:
            value.data.normal_(0.1, 0.2)  # in place: some are shared
    return model


def trained(folder: Path, model: Any, config: Any, beside: bool = False) -> Path:
    """The base model in folder/base and its adapter in folder/adapter, or both in one folder."""
    base = folder / "base"
    adapter = base if beside else folder / "adapter"
    model.save_pretrained(base)
    _shaken(peft.get_peft_model(model, config), every=False).save_pretrained(adapter)
    if not beside:
        (adapter / "config.json").unlink(missing_ok=True)
    return adapter


def by_peft(folder: Path, kind: Any = transformers.AutoModelForCausalLM, **options: Any) -> Any:
    """The model as peft merges it: its head's weight, as an array."""
    base = kind.from_pretrained(folder / "base", dtype="auto", **options)
    return peft.PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload()


def array(value: torch.Tensor) -> np.ndarray:
    value = value.detach()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def merged(folder: Path, **options: Any) -> Found:
    return find(folder / "adapter", base=folder / "base", **options)


def lora(*layers: str, **options: Any) -> Any:
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": list(layers), **options})


CASES = {
    "head": (False, lora("lm_head", INSIDE)),
    "head of a tied model": (True, lora("lm_head")),
    "rank 64": (False, lora("lm_head", r=64)),
    "rslora": (False, lora("lm_head", use_rslora=True)),
    "patterns": (
        False,
        lora("lm_head", INSIDE, rank_pattern={"lm_head": 3}, alpha_pattern={"^lm_head": 7}),
    ),
    "other patterns": (False, lora("lm_head", alpha_pattern={"layers.0.self_attn.*": 9, "x": 1})),
    "fan_in_fan_out": (False, lora("lm_head", fan_in_fan_out=True)),
    "tied embedding": (True, lora("embed_tokens")),
    "both of a tied model": (True, lora("embed_tokens", "lm_head")),
    "both, tied as one": (True, lora("embed_tokens", ensure_weight_tying=True)),
    "both of an untied model": (False, lora("embed_tokens", "lm_head")),
    "embedding of an untied model": (False, lora("embed_tokens")),
    "saved head": (False, lora(INSIDE, modules_to_save=["lm_head"])),
    "saved head of a tied model": (True, lora(INSIDE, modules_to_save=["lm_head"])),
    "saved embedding of a tied model": (True, lora(INSIDE, modules_to_save=["embed_tokens"])),
    "saved both of a tied model": (True, lora(INSIDE, modules_to_save=["embed_tokens", "lm_head"])),
    "trained tokens of a tied model": (True, lora(INSIDE, trainable_token_indices=[1, 5, 7])),
    "trained tokens by layer": (
        False,
        lora(INSIDE, trainable_token_indices={"embed_tokens": [1, 2], "lm_head": [3, 9]}),
    ),
    "trained tokens alone": (True, peft.TrainableTokensConfig(token_indices=[2, 4])),
    "other layers": (False, lora(INSIDE)),
    "prompt": (False, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_head_is_bit_for_bit_the_one_that_peft_merges_to(
    case: str, kind: torch.dtype, tmp_path: Path
) -> None:
    tied, config = CASES[case]
    trained(tmp_path, llama(tied, kind), config)
    found = merged(tmp_path, domain="auto")
    base = find(tmp_path / "base", domain="auto")
    if case == "prompt":  # nothing to merge
        expected = np.asarray(base.head.weight)
    else:
        expected = array(by_peft(tmp_path).lm_head.weight)
    assert found.head.weight.dtype == expected.dtype
    if (case, kind) == ("rank 64", torch.float32):
        # On some processors NumPy's BLAS adds 64 products in another order than torch's.
        last = np.spacing(np.abs(expected).max())
        np.testing.assert_allclose(found.head.weight, expected, rtol=0, atol=4 * last)
    else:
        np.testing.assert_array_equal(found.head.weight, expected)
    changed = not np.array_equal(expected, base.head.weight)
    assert any("changes other layers" in n or "adds to what" in n for n in found.notes) == (
        not changed and "saved embedding" not in case
    )
    assert str(found.head.domain) == str(base.head.domain)
    doubtful = case in ("tied embedding", "both of a tied model", "both, tied as one")
    assert ("merge_and_unload() leaves it" in found.notes[0]) == doubtful


@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_dora_agrees_with_peft_up_to_the_rounding_of_a_length(
    layer: str, kind: torch.dtype, tmp_path: Path
) -> None:
    trained(tmp_path, llama(layer != "lm_head", kind), lora(layer, use_dora=True))
    found = merged(tmp_path)
    expected = array(by_peft(tmp_path).lm_head.weight)
    assert found.head.weight.dtype == expected.dtype
    step = np.abs(np.spacing(expected).astype(np.float64))
    off = np.abs(found.head.weight.astype(np.float64) - expected.astype(np.float64))
    assert (off <= (4 if kind == torch.float32 else 1) * step).all()
    assert any("scaled to the trained magnitudes (DoRA)" in note for note in found.notes)


def test_an_adapter_beside_its_base_model_is_merged_as_from_pretrained_applies_it(
    tmp_path: Path,
) -> None:
    folder = trained(tmp_path, llama(False), lora("lm_head"), beside=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    out = model(torch.arange(8)[None], output_hidden_states=True)
    hidden, logits = out.hidden_states[-1][0].detach().numpy(), out.logits[0].detach().numpy()
    found = find(folder)
    np.testing.assert_allclose(hidden @ found.head.weight.T, logits, atol=1e-5)
    assert any(
        "merged: 1.5·lora_B·lora_A of rank 4 added to lm_head" in note for note in found.notes
    )
    alone = find(folder / "model.safetensors")
    assert "adapter_config.json beside it is left out" in alone.notes[0]
    assert not np.array_equal(alone.head.weight, found.head.weight)


def test_a_bias_that_lora_trains_is_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.PhiConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    model = _shaken(transformers.PhiForCausalLM(config))
    trained(tmp_path, model, lora("lm_head", lora_bias=True))
    found, expected = merged(tmp_path), by_peft(tmp_path).lm_head
    np.testing.assert_array_equal(found.head.bias, array(expected.bias))
    np.testing.assert_array_equal(found.head.weight, array(expected.weight))


@pytest.mark.parametrize("how", ["saved", "tuned"])
def test_a_norm_that_the_adapter_trains_is_the_one_before_the_head(
    how: str, tmp_path: Path
) -> None:
    config = (
        lora(INSIDE, modules_to_save=["norm"])
        if how == "saved"
        else peft.LNTuningConfig(target_modules=["norm"])
    )
    trained(tmp_path, llama(False), config)
    domain: Any = merged(tmp_path, domain="auto").head.domain
    expected = array(by_peft(tmp_path).model.norm.weight)
    np.testing.assert_array_equal(domain.gain, expected)
    old: Any = find(tmp_path / "base", domain="auto").head.domain
    assert not np.array_equal(domain.gain, old.gain)


def test_a_classifier_trained_on_a_language_model_is_found_in_the_adapter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    _shaken(transformers.RobertaForMaskedLM(config)).save_pretrained(tmp_path / "base")
    model = transformers.RobertaForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3
    )
    task = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    adapted = _shaken(peft.get_peft_model(model, task), every=False)
    adapted.save_pretrained(tmp_path / "adapter")
    found = merged(tmp_path, domain="auto")
    layer = adapted.merge_and_unload().classifier.out_proj
    np.testing.assert_array_equal(found.head.weight, array(layer.weight))
    np.testing.assert_array_equal(found.head.bias, array(layer.bias))
    assert found.head.domain.contains(np.full((1, found.head.features), 1.0)).all()
    assert not found.head.domain.contains(
        np.full((1, found.head.features), 1.00001)
    ).any()  # a tanh


OTHERS = {
    "IA3": peft.IA3Config(target_modules=["lm_head"], feedforward_modules=[]),
    "LOHA": peft.LoHaConfig(target_modules=["lm_head"]),
    "OFT": peft.OFTConfig(target_modules=["lm_head"], oft_block_size=4, r=0),
    "VERA": peft.VeraConfig(target_modules=["lm_head"]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_adapters_that_change_the_head_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    trained(tmp_path, llama(False), OTHERS[kind])
    with pytest.raises(UncorkError, match=f"type {kind} changes lm_head.*merge_and_unload"):
        merged(tmp_path)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_adapters_that_leave_the_head_alone_are_noted(kind: str, tmp_path: Path) -> None:
    config = copy.copy(OTHERS[kind])
    config.target_modules = {INSIDE}
    trained(tmp_path, llama(False), config)
    found = merged(tmp_path)
    np.testing.assert_array_equal(found.head.weight, load(tmp_path / "base").weight)
    assert any(f"the {kind} adapter changes other layers" in note for note in found.notes)


def test_a_norm_changed_in_another_way_leaves_the_domain_open(folder: Path) -> None:
    settings(folder, peft_type="OFT")
    rotation = {"base_model.model.model.norm.oft_R.weight": np.ones((2, 3), np.float32)}
    save_file(rotation, folder / "adapter" / "adapter_model.safetensors")
    found = merged(folder, domain="auto")
    assert found.shown_domain is None
    assert any(
        "the domain is not known" in note and "type OFT changes model.norm" in note
        for note in found.notes
    )


def test_weights_saved_with_the_factors_beside_them_are_refused(folder: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    model = peft.PeftModel.from_pretrained(base, folder / "adapter")
    torch.save(model.state_dict(), folder / "model.pt")
    with pytest.raises(UncorkError, match=r"lora_\w.*not merged: call merge_and_unload\(\)"):
        load(folder / "model.pt")
    (folder / "base" / "model.safetensors").unlink()
    torch.save(model.base_model.model.state_dict(), folder / "base" / "pytorch_model.bin")
    with pytest.raises(UncorkError, match=r"lora_\w.*not merged: call merge_and_unload\(\)"):
        load(folder / "base")


def settings(folder: Path, **changes: Any) -> None:
    file = folder / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    trained(folder, llama(False), lora("lm_head", INSIDE))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "XLORA"}, "type XLORA changes the model, which uncork does not merge"),
        ({"peft_type": "of next year"}, "type OF NEXT YEAR"),
        ({"init_lora_weights": "pissa"}, "with init_lora_weights = pissa changes lm_head"),
        ({"alora_invocation_tokens": [1]}, "with alora_invocation_tokens changes lm_head"),
        ({"use_dora": True}, "use_dora and the magnitude of lm_head do not agree"),
        ({"lora_alpha": "many"}, "lora_alpha = 'many'"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "alpha_pattern"),
    ],
)
def test_what_is_not_merged_is_refused_by_name(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    settings(folder, **changes)
    with pytest.raises(UncorkError, match=message):
        merged(folder)


def test_an_adapter_alone_says_which_base_it_wants(folder: Path) -> None:
    settings(folder, base_model_name_or_path="owner/large")
    with pytest.raises(UncorkError, match=r"an adapter for owner/large.*--base hf:owner/large"):
        load(folder / "adapter")
    with pytest.raises(UncorkError, match="holds an adapter, not a model"):
        load(folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(UncorkError, match=r"no adapter_model\.safetensors: complete the download"):
        merged(folder)


def test_a_base_that_does_not_go_with_the_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="is not an adapter"):
        load(folder / "base", base=folder / "base")
    with pytest.raises(UncorkError, match="a base goes with the folder of an adapter"):
        load(folder / "base" / "model.safetensors", base=folder / "base")
    with pytest.raises(UncorkError, match="holds an adapter itself"):
        load(folder / "adapter", base=shutil.copytree(folder / "adapter", tmp_path / "other"))
    with pytest.raises(UncorkError, match="holds no base model"):
        load(folder / "adapter", base=tmp_path)
    file = folder / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.lm_head.lora_B.weight"
    save_file(tensors | {name: np.ones((WORDS + 1, 4), np.float32)}, file)
    with pytest.raises(UncorkError, match=r"do not fit .*another base model"):
        merged(folder)
    extra = {"base_model.model.projector.lora_A.weight": np.ones((4, 3), np.float32)}
    save_file(tensors | extra, file)
    with pytest.raises(UncorkError, match="changes projector, and its base model has no weight"):
        merged(folder)


def test_only_the_shards_that_the_head_needs_are_opened(tmp_path: Path) -> None:
    model = llama(False)
    trained(tmp_path, model, lora("lm_head", INSIDE, "down_proj"))
    shutil.rmtree(tmp_path / "base")
    llama(False).save_pretrained(tmp_path / "base", max_shard_size="3KB")
    index = json.loads((tmp_path / "base" / "model.safetensors.index.json").read_text())
    where = index["weight_map"]
    for shard in {*where.values()} - {where["lm_head.weight"], where["model.norm.weight"]}:
        (tmp_path / "base" / shard).unlink()
    np.testing.assert_array_equal(
        merged(tmp_path, domain="auto").head.weight[:0], np.ones((0, WIDTH), np.float32)
    )
    assert describe(tmp_path / "adapter", base=tmp_path / "base").head is not None


def test_live_models_with_an_adapter_are_to_be_merged_first(folder: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    model = peft.PeftModel.from_pretrained(base, folder / "adapter")
    with pytest.raises(UncorkError, match=r"call merge_and_unload\(\) first"):
        load(model)
    with pytest.raises(UncorkError, match=r"call merge_and_unload\(\) first"):
        load(model.base_model.model)
    np.testing.assert_array_equal(load(model.merge_and_unload()).weight, merged(folder).head.weight)


def test_the_commands_take_a_base(folder: Path) -> None:
    adapter, base = str(folder / "adapter"), str(folder / "base")
    shown = CliRunner().invoke(app, ["show", adapter, "--base", base, "--json", "-"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["weight"] == "lm_head.weight"
    certificates = str(folder / "proofs.npz")
    audited = CliRunner().invoke(
        app, ["audit", adapter, "--base", base, "--certificates", certificates]
    )
    assert audited.exit_code == 0
    verified = CliRunner().invoke(app, ["verify", certificates, adapter, "--base", base])
    assert verified.exit_code == 0
    assert CliRunner().invoke(app, ["verify", certificates, base]).exit_code == 1
    refused = CliRunner().invoke(app, ["audit", adapter])
    assert refused.exit_code == 2
    assert "--base" in refused.output


def in_codes(base: Path, layer: str, packed: bool) -> None:
    """The base's weight of that layer as codes, in its own place or under another name."""
    tensors = load_file(base / "model.safetensors")
    weight = tensors.pop(f"{layer}.weight")
    scale = np.abs(weight).max(axis=1, keepdims=True) / 7
    codes = np.rint(weight / scale).astype(np.int8)
    tensors[f"{layer}.weight_scale"] = scale
    if packed:
        words = (codes + 8).astype(np.uint32).reshape(len(codes), -1, 8)
        shifted = words << np.arange(0, 32, 4, dtype=np.uint32)
        tensors[f"{layer}.weight_packed"] = shifted.sum(axis=2, dtype=np.uint32).view(np.int32)
        tensors[f"{layer}.weight_shape"] = np.array(weight.shape)
    else:
        tensors[f"{layer}.weight"] = codes
    save_file(tensors, base / "model.safetensors")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_change_to_a_head_that_is_stored_as_codes_is_refused(
    tmp_path: Path, tied: bool, packed: bool
) -> None:
    layer = "model.embed_tokens" if tied else "lm_head"
    options = {"save_embedding_layers": False}
    model = peft.get_peft_model(llama(tied=tied), lora(layer.rpartition(".")[2]))
    _shaken(model, every=False).save_pretrained(tmp_path / "adapter", **options)
    llama(tied=tied).save_pretrained(tmp_path / "base")
    in_codes(tmp_path / "base", layer, packed)
    with pytest.raises(UncorkError, match=rf"changes {layer}.*as codes.*--base"):
        merged(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_an_adapter_of_other_layers_leaves_a_head_of_codes_readable(
    tmp_path: Path, packed: bool
) -> None:
    trained(tmp_path, llama(tied=False), lora(INSIDE))
    for layer in ("lm_head", f"model.layers.0.self_attn.{INSIDE}"):
        in_codes(tmp_path / "base", layer, packed)
    found, alone = merged(tmp_path), find(tmp_path / "base")
    assert np.array_equal(found.head.weight, alone.head.weight)
    assert any("dequantised" in text for text in found.head.reading.folded)
    describe(tmp_path / "adapter", base=tmp_path / "base")  # lists the layers it cannot merge too
