"""The table of architectures, held to the library row by row: names, defaults, conventions.

The models are skeletons: modules of full size on the meta device, without values.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from uncork.domain import LayerNorm, RMSNorm
from uncork.load.contents import Tensor
from uncork.load.hugging_face.architectures import LANGUAGE, Norm
from uncork.load.hugging_face.locate import Located, locate
from uncork.load.hugging_face.tied_by_default import TIED_BY_DEFAULT
from uncork.load.preceding import found_domain

_MAPPINGS = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "MASKED_LM", "CTC")
# Types that are parts of larger models, and the class that puts a head on them.
_WHOLES = {
    "mllama_text_model": "MllamaForConditionalGeneration",
    "qwen2_vl_text": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl_text": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl_text": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration",
    "glm4v_text": "Glm4vForConditionalGeneration",
    "glm4v_moe_text": "Glm4vMoeForConditionalGeneration",
}
# Settings without which the library's own defaults make no model.
_SETTINGS: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2}},
    "dots1": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
              "moe_intermediate_size": 8},
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}  # fmt: skip
_FEW_LAYERS = {"num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
               "encoder_layers": 2, "decoder_layers": 2}  # fmt: skip
# Types that check the number of layers against other settings, or whose layers are named blocks.
_ALL_LAYERS = {"zamba", "zamba2", "gpt_neo", "gemma3n_text", "mamba2"}
# get_output_embeddings() is something else than what computes the logits.
_MISNAMED = {"fsmt"}


def _architecture(kind: str) -> Any:
    if kind in _WHOLES:
        return getattr(transformers, _WHOLES[kind])
    for mapping in _MAPPINGS:
        found = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").get(kind)
        if found is not None:
            return getattr(transformers, found if isinstance(found, str) else found[0])
    raise AssertionError(f"the library has no class with a head for {kind}")


def _skeleton(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit, in one or two of them
        architecture = _architecture(kind)
    config_class = architecture.config_class if kind in _WHOLES else CONFIG_MAPPING[kind]
    known = () if kind in _ALL_LAYERS else getattr(config_class, "__annotations__", {})
    few = {key: value for key, value in _FEW_LAYERS.items() if key in known}
    with torch.device("meta"):
        return architecture(config_class(**few, **_SETTINGS.get(kind, {})))


def _config(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def _locate(model: Any) -> Located:
    found = locate(_config(model), model.state_dict())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", sorted(LANGUAGE))
def test_every_row_names_modules_of_the_library_and_says_what_its_norm_does(kind: str) -> None:
    model = _skeleton(kind)
    found = _locate(model)
    head = model.get_output_embeddings()
    if head is not None and kind not in _MISNAMED:
        names = [f"{name}.weight" for name, module in model.named_modules() if module is head]
        assert names == [found.weight]
    if LANGUAGE[kind].tied:
        without = {name for name in model.state_dict() if name != found.weight}
        tied = locate({**_config(model), "tie_word_embeddings": True}, without)
        assert tied is not None
        assert model.get_parameter(tied.weight).shape == model.get_parameter(found.weight).shape
    assert isinstance(found.before, Norm)
    norm = model.get_submodule((found.gain or "model.norm.weight").removesuffix(".weight"))
    features = model.get_parameter(found.weight).shape[1]
    width = features if found.project is None else model.get_parameter(found.project).shape[1]
    norm = norm.to_empty(device="cpu").float()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
        inputs = torch.randn(5, width) * 3 + 1
        outputs = norm(inputs).double().numpy()
    tensors = {
        name: Tensor(name, (), "", lambda value=value: value.detach().numpy())
        for name, value in model.state_dict().items()
        if not value.is_meta
    }
    domain = found_domain(found, tensors, features)
    assert domain is not None
    assert isinstance(domain.domain, LayerNorm | RMSNorm)
    scale = features**-0.5 if "factor" in domain.why else 1.0
    assert domain.domain.contains(outputs * scale, tolerance=1e-5).all()
    assert not domain.domain.contains(outputs * scale * 1.01, tolerance=1e-5).any()


@pytest.mark.parametrize("kind", sorted(LANGUAGE))
def test_whether_heads_are_tied_by_default_is_what_the_library_has(kind: str) -> None:
    config = CONFIG_MAPPING[kind]()
    assert (kind in TIED_BY_DEFAULT) == bool(getattr(config, "tie_word_embeddings", False))
