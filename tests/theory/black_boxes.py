"""Small models of the real library, given as black boxes: contexts in, float32 logits out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BlackBox:
    """A model by its classes in transformers, and the width that an estimate must find."""

    name: str
    width: int
    norm: str  # "layernorm" or "other": what precedes the head
    config: dict[str, Any]
    model: str
    trained: bool = False  # offsets and gains as a trained model has them, not 0 and 1


_SMALL: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _small(**changes: Any) -> dict[str, Any]:
    return {**_SMALL, **changes}


BOXES = [
    BlackBox("Llama", 40, "other", _small(), "LlamaForCausalLM"),
    BlackBox("Qwen2", 48, "other", _small(hidden_size=48), "Qwen2ForCausalLM"),
    BlackBox("Mistral", 24, "other", _small(hidden_size=24), "MistralForCausalLM", True),
    BlackBox(
        "GPT2", 32, "layernorm",
        {"vocab_size": 211, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "bos_token_id": 1, "eos_token_id": 2},
        "GPT2LMHeadModel",
    ),
    BlackBox(
        "GPT2", 32, "layernorm",
        {"vocab_size": 211, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "bos_token_id": 1, "eos_token_id": 2},
        "GPT2LMHeadModel", True,
    ),
    BlackBox(
        "Phi", 48, "layernorm", _small(hidden_size=48, num_attention_heads=2),
        "PhiForCausalLM", True,
    ),
    BlackBox(
        "GPTNeoX", 48, "layernorm", _small(hidden_size=48, num_attention_heads=2),
        "GPTNeoXForCausalLM",
    ),
    BlackBox(
        "OPT", 36, "layernorm",
        _small(hidden_size=36, ffn_dim=48, word_embed_proj_dim=36), "OPTForCausalLM", True,
    ),
    BlackBox(
        "Mamba", 28, "other",
        {"vocab_size": 211, "hidden_size": 28, "state_size": 4, "num_hidden_layers": 2},
        "MambaForCausalLM",
    ),
    BlackBox(
        "Gemma2", 32, "other",
        _small(hidden_size=32, head_dim=8, final_logit_softcapping=30.0), "Gemma2ForCausalLM",
    ),
    BlackBox("Bert", 40, "layernorm", _small(), "BertForMaskedLM", True),
    BlackBox(
        "T5", 40, "other",
        {"vocab_size": 211, "d_model": 40, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
         "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        "T5ForConditionalGeneration",
    ),
]  # fmt: skip


def logits_of(box: BlackBox, contexts: int = 180) -> np.ndarray:
    """(contexts, classes) float32 logits on random tokens."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{box.name}Config")(**box.config)
    model = getattr(transformers, box.model)(config).eval()
    if box.trained:  # every bias and gain becomes an ordinary number
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
    tokens = torch.randint(3, 200, (contexts // 20, 20))
    with torch.no_grad():
        given = {"decoder_input_ids": tokens} if box.name == "T5" else {}
        logits = model(input_ids=tokens, **given).logits
    assert logits.dtype == torch.float32
    return logits.reshape(-1, logits.shape[-1]).numpy()
