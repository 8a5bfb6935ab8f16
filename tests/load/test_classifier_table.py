"""The table of classifiers, row by row: small random models, watched while they run."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_transformers import observe, random_inputs
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from uncork.load import find
from uncork.load.hugging_face.classifier_layouts import DECODERS, TASKS, classifier

# Settings that make models small, as far as a configuration knows them.
_SMALL: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embedding_size": 32,
    "intermediate_size": 40, "hidden_dim": 40, "d_ff": 40, "ffn_dim": 40, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "num_hidden_layers": 2, "n_layers": 2, "n_layer": 2, "num_layers": 2,
    "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4, "n_heads": 4, "n_head": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 97, "max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 4, "d_kv": 8,
    "decoder_start_token_id": 1, "image_size": 16, "patch_size": 8, "word_embed_proj_dim": 32,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
             "patch_size": 4},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
               "layer_type": "basic"},
    "convnext": {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "longformer": {"attention_window": 4},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "gptj": {"rotary_dim": 4},
    "squeezebert": {"q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1,
                    "intermediate_groups": 1, "output_groups": 1},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 8},  # half a million by default
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4},
    "t5": {"decoder_start_token_id": 1},
    "xmod": {"languages": ["en"], "default_language": "en"},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 4, "shape_size": 8},
    "mobilebert": {"classifier_activation": True, "true_hidden_size": 16,
                   "intra_bottleneck_size": 16, "embedding_size": 16},
    "mra": {"num_block": 2, "initial_prior_first_n_blocks": 0},
    "nystromformer": {"num_landmarks": 64, "segment_means_seq_len": 64},
    "canine": {"downsampling_rate": 2, "local_transformer_stride": 4, "num_hash_buckets": 16},
    "yoso": {"use_expectation": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_heads": 4},
}  # fmt: skip
for _name in ("swinv2", "convnextv2"):
    _OWN[_name] = _OWN[_name.removesuffix("v2")]
_MAPPINGS = {
    "ForSequenceClassification": "SEQUENCE_CLASSIFICATION",
    "ForTokenClassification": "TOKEN_CLASSIFICATION",
    "ForImageClassification": "IMAGE_CLASSIFICATION",
}
_DECODERS = ("gpt2", "gptj", "gpt_neo", "phi", "mistral", "qwen2", "gemma2", "opt", "bloom", "olmo")
_ROWS = [
    (task, kind)
    for task, table in TASKS.items()
    for kind in sorted((table.keys() | set(_DECODERS)) if "Image" not in task else table.keys())
    if task in _MAPPINGS
    and kind in getattr(modeling_auto, f"MODEL_FOR_{_MAPPINGS[task]}_MAPPING_NAMES")
]


@pytest.mark.parametrize(("task", "kind"), _ROWS)
def test_every_input_of_the_classifier_lies_in_the_domain_of_its_row(task: str, kind: str) -> None:
    torch.manual_seed(0)
    mapping = getattr(modeling_auto, f"MODEL_FOR_{_MAPPINGS[task]}_MAPPING_NAMES")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit, in one or two of them
        name = mapping[kind] if isinstance(mapping[kind], str) else mapping[kind][0]
        architecture = getattr(transformers, name)
    config_class = CONFIG_MAPPING[kind]
    known = {name for base in config_class.__mro__ for name in getattr(base, "__annotations__", {})}
    options = {key: value for key, value in _SMALL.items() if key in known}
    model = architecture(config_class(**options | _OWN.get(kind, {}), num_labels=5)).eval()
    layout = classifier(task, kind)
    assert layout is not None
    head = next(name for name in layout.head if f"{name}.weight" in model.state_dict())
    made = observe(model, random_inputs("image" if "Image" in task else "tokens"), head)
    found = find(model, domain="auto")
    assert found.weight_name == f"{head}.weight"
    assert found.shown_domain is not None
    assert found.head.domain.contains(made.hidden, tolerance=1e-4).all()
    assert not found.head.domain.contains(made.hidden * -20 - 3, tolerance=1e-4).any()


def test_decoders_are_those_whose_classifiers_follow_the_norm() -> None:
    assert set(_DECODERS) <= DECODERS
    assert np.isin(["bert", "bart", "t5", "whisper"], sorted(DECODERS)).sum() == 0
