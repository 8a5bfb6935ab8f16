"""Small random models of many architectures, made with transformers itself.

Gains, offsets and biases are random: with those of a new model, all ones and zeros, a wrong one
would go unnoticed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

CLASSES = 211  # a prime, so that no other size is taken for it
_SEQUENCES, _POSITIONS = 16, 7


@dataclass(frozen=True)
class Case:
    """A class of transformers with the options that make it small.

    `before` is the kind of domain that precedes its head. `head` names the module whose input is
    the head's, where get_output_embeddings() does not; with a leading "=", the one whose output is.
    """

    architecture: str
    options: Mapping[str, Any]
    before: str
    inputs: str = "tokens"
    head: str = ""
    config: str = ""
    weight: str = ""  # the tensor of the saved folder that is the head, where that is worth saying


@dataclass(frozen=True)
class Made:
    """A model with what it did: inputs of its head (n, features), the classes it put first (n,)."""

    model: Any
    hidden: np.ndarray
    first: np.ndarray
    logits: np.ndarray  # (n, classes)

    def save(self, folder: Path, **options: Any) -> Path:
        self.model.save_pretrained(folder, **options)
        return folder


_LLAMA = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": CLASSES,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GEMMA = {**_LLAMA, "head_dim": 8}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": CLASSES,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_BERT = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}
_BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
    "max_position_embeddings": 64, "vocab_size": CLASSES, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
       "vocab_size": CLASSES, "pad_token_id": 0, "decoder_start_token_id": 1}  # fmt: skip
_OPT = {"hidden_size": 32, "ffn_dim": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": CLASSES, "word_embed_proj_dim": 32, "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_WAV2VEC2 = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "vocab_size": CLASSES,
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "pad_token_id": 0,
}  # fmt: skip
_WHISPER = {**_BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32,
            "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip
_DEBERTA = {**_BERT, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 8,
            "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"]}  # fmt: skip
_VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
           "num_attention_heads": 4, "image_size": 16, "patch_size": 8}  # fmt: skip
_LABELS = {"num_labels": 29}
_SEQ = "ForSequenceClassification"
_EMBED = "model.embed_tokens.weight"

CASES: dict[str, Case] = {
    "llama": Case("LlamaForCausalLM", _LLAMA, "RMSNorm", weight="lm_head.weight"),
    "llama tied": Case(
        "LlamaForCausalLM", {**_LLAMA, "tie_word_embeddings": True}, "RMSNorm", weight=_EMBED
    ),
    "mistral": Case("MistralForCausalLM", _LLAMA, "RMSNorm"),
    "mixtral": Case("MixtralForCausalLM", {**_LLAMA, "num_local_experts": 2}, "RMSNorm"),
    "qwen2": Case("Qwen2ForCausalLM", _LLAMA, "RMSNorm", weight="lm_head.weight"),
    "qwen2 tied": Case(
        "Qwen2ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}, "RMSNorm", weight=_EMBED
    ),
    "qwen3": Case("Qwen3ForCausalLM", _GEMMA, "RMSNorm"),
    "gemma": Case("GemmaForCausalLM", _GEMMA, "RMSNorm", weight=_EMBED),
    "gemma untied": Case(
        "GemmaForCausalLM", {**_GEMMA, "tie_word_embeddings": False}, "RMSNorm",
        weight="lm_head.weight",
    ),
    "gemma2": Case("Gemma2ForCausalLM", _GEMMA, "RMSNorm"),
    "gemma3": Case("Gemma3ForCausalLM", _GEMMA, "RMSNorm", config="Gemma3TextConfig"),
    "gpt2": Case("GPT2LMHeadModel", _GPT2, "LayerNorm", weight="transformer.wte.weight"),
    "gpt2 untied": Case(
        "GPT2LMHeadModel", {**_GPT2, "tie_word_embeddings": False}, "LayerNorm",
        weight="lm_head.weight",
    ),
    "gptj": Case("GPTJForCausalLM", {**_GPT2, "rotary_dim": 4}, "LayerNorm"),
    "gpt-neox": Case("GPTNeoXForCausalLM", _BERT, "LayerNorm"),
    "gpt-neo": Case(
        "GPTNeoForCausalLM",
        {"hidden_size": 32, "num_layers": 2, "attention_types": [[["global", "local"], 1]],
         "num_heads": 4, "vocab_size": CLASSES, "max_position_embeddings": 64}, "LayerNorm",
    ),
    "opt": Case("OPTForCausalLM", _OPT, "LayerNorm", weight="model.decoder.embed_tokens.weight"),
    "opt projected": Case(
        "OPTForCausalLM",
        {**_OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}, "Image",
    ),
    "opt projected, norm first": Case(
        "OPTForCausalLM", {**_OPT, "word_embed_proj_dim": 16}, "Image"
    ),
    "phi": Case("PhiForCausalLM", _LLAMA, "LayerNorm"),
    "phi3": Case("Phi3ForCausalLM", _LLAMA, "RMSNorm"),
    "falcon": Case("FalconForCausalLM", _BERT, "LayerNorm"),
    "falcon-h1": Case(
        "FalconH1ForCausalLM",
        {**_LLAMA, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
         "mamba_d_state": 8, "mamba_chunk_size": 8, "lm_head_multiplier": 0.3}, "RMSNorm",
    ),
    "bloom": Case("BloomForCausalLM", {**_BERT, "n_layer": 2, "n_head": 4}, "LayerNorm"),
    "mpt": Case(
        "MptForCausalLM",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": CLASSES, "max_seq_len": 64},
        "LayerNorm",
    ),
    "mamba": Case(
        "MambaForCausalLM",
        {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": CLASSES,
         "use_mambapy": False}, "RMSNorm",
    ),
    "rwkv": Case(
        "RwkvForCausalLM",
        {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2,
         "vocab_size": CLASSES, "context_length": 64}, "LayerNorm",
    ),
    "olmo": Case("OlmoForCausalLM", _LLAMA, "LayerNorm"),
    "olmo2": Case("Olmo2ForCausalLM", _LLAMA, "RMSNorm"),
    "cohere": Case("CohereForCausalLM", _LLAMA, "LayerNorm", weight=_EMBED),
    "granite": Case("GraniteForCausalLM", {**_LLAMA, "logits_scaling": 3.0}, "RMSNorm"),
    "nemotron": Case("NemotronForCausalLM", {**_GEMMA, "hidden_act": "relu2"}, "LayerNorm"),
    "stablelm": Case("StableLmForCausalLM", _LLAMA, "LayerNorm"),
    "starcoder2": Case("Starcoder2ForCausalLM", _LLAMA, "LayerNorm"),
    "qwen3-next": Case(
        "Qwen3NextForCausalLM",
        {**_GEMMA, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2,
         "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
         "layer_types": ["linear_attention", "full_attention"]}, "RMSNorm",
    ),
    "t5": Case("T5ForConditionalGeneration", _T5, "RMSNorm", "both", weight="shared.weight"),
    "t5 of version 1.1": Case(
        "T5ForConditionalGeneration", {**_T5, "tie_word_embeddings": False}, "RMSNorm", "both",
    ),
    "mt5": Case("MT5ForConditionalGeneration", _T5, "RMSNorm", "both"),
    "bart": Case(
        "BartForConditionalGeneration", _BART, "LayerNorm", "both", weight="model.shared.weight"
    ),
    "marian": Case("MarianMTModel", _BART, "LayerNorm", "both"),
    "pegasus": Case("PegasusForConditionalGeneration", _BART, "LayerNorm", "both"),
    "mbart": Case("MBartForConditionalGeneration", _BART, "LayerNorm", "both"),
    "m2m100": Case("M2M100ForConditionalGeneration", _BART, "LayerNorm", "both"),
    "blenderbot": Case("BlenderbotForConditionalGeneration", _BART, "LayerNorm", "both"),
    "fsmt": Case(
        "FSMTForConditionalGeneration",
        {**{k: v for k, v in _BART.items() if k != "vocab_size"}, "langs": ["en", "de"],
         "src_vocab_size": 97, "tgt_vocab_size": CLASSES}, "LayerNorm", "both",
        head="model.decoder.output_projection",
    ),
    "bert": Case(
        "BertForMaskedLM", _BERT, "LayerNorm", weight="bert.embeddings.word_embeddings.weight"
    ),
    "bert untied": Case(
        "BertForMaskedLM", {**_BERT, "tie_word_embeddings": False}, "LayerNorm",
        weight="cls.predictions.decoder.weight",
    ),
    "roberta": Case("RobertaForMaskedLM", _BERT, "LayerNorm"),
    "distilbert": Case(
        "DistilBertForMaskedLM",
        {"dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "vocab_size": CLASSES,
         "max_position_embeddings": 64}, "LayerNorm",
    ),
    "albert": Case("AlbertForMaskedLM", {**_BERT, "embedding_size": 24}, "LayerNorm"),
    "electra": Case("ElectraForMaskedLM", {**_BERT, "embedding_size": 24}, "LayerNorm"),
    "deberta-v2": Case("DebertaV2ForMaskedLM", _DEBERTA, "LayerNorm"),
    "deberta-v2, the new head": Case(
        "DebertaV2ForMaskedLM", {**_DEBERTA, "legacy": False}, "LayerNorm",
        head="=lm_predictions.lm_head.LayerNorm",
    ),
    "modernbert": Case(
        "ModernBertForMaskedLM", {**_BERT, "cls_token_id": 3, "sep_token_id": 4}, "LayerNorm"
    ),
    "xlm": Case(
        "XLMWithLMHeadModel",
        {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": CLASSES, "n_langs": 1,
         "pad_index": 0, "max_position_embeddings": 64}, "LayerNorm", head="pred_layer.proj",
    ),
    "whisper": Case("WhisperForConditionalGeneration", _WHISPER, "LayerNorm", "spectrogram"),
    "wav2vec2": Case("Wav2Vec2ForCTC", _WAV2VEC2, "LayerNorm", "audio", "lm_head"),
    "wav2vec2, norm first": Case(
        "Wav2Vec2ForCTC", {**_WAV2VEC2, "do_stable_layer_norm": True}, "LayerNorm", "audio",
        "lm_head",
    ),
    "bert classifier": Case("Bert" + _SEQ, {**_BERT, **_LABELS}, "Box", head="classifier"),
    "roberta classifier": Case(
        "Roberta" + _SEQ, {**_BERT, **_LABELS}, "Box", head="classifier.out_proj"
    ),
    "distilbert classifier": Case(
        "DistilBert" + _SEQ,
        {"dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "vocab_size": CLASSES,
         "max_position_embeddings": 64, **_LABELS}, "Box", head="classifier",
    ),
    "electra classifier": Case(
        "Electra" + _SEQ, {**_BERT, **_LABELS}, "Box", head="classifier.out_proj"
    ),
    "deberta-v2 classifier": Case(
        "DebertaV2" + _SEQ, {**_DEBERTA, **_LABELS}, "Box", head="classifier"
    ),
    "modernbert classifier": Case(
        "ModernBert" + _SEQ, {**_BERT, **_LABELS, "cls_token_id": 3, "sep_token_id": 4},
        "LayerNorm", head="classifier",
    ),
    "bart classifier": Case(
        "Bart" + _SEQ, {**_BART, **_LABELS}, "Box", head="classification_head.out_proj"
    ),
    "gpt2 classifier": Case("GPT2" + _SEQ, {**_GPT2, **_LABELS}, "LayerNorm", head="score"),
    "llama classifier": Case("Llama" + _SEQ, {**_LLAMA, **_LABELS}, "RMSNorm", head="score"),
    "gemma token classifier": Case(
        "GemmaForTokenClassification", {**_GEMMA, **_LABELS}, "RMSNorm", head="score"
    ),
    "bert token classifier": Case(
        "BertForTokenClassification", {**_BERT, **_LABELS}, "LayerNorm", head="classifier"
    ),
    "albert token classifier": Case(
        "AlbertForTokenClassification", {**_BERT, **_LABELS, "embedding_size": 24}, "LayerNorm",
        head="classifier",
    ),
    "vit classifier": Case(
        "ViTForImageClassification", {**_VISION, **_LABELS}, "LayerNorm", "image", "classifier"
    ),
    "resnet classifier": Case(
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
         **_LABELS}, "Box", "image", "classifier.1",
    ),
    "gemma3 with pictures": Case(
        "Gemma3ForConditionalGeneration",
        {"text_config": {**_GEMMA, "model_type": "gemma3_text"},
         "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
         "mm_tokens_per_image": 4, "image_token_index": CLASSES - 1}, "RMSNorm",
    ),
    "llava": Case(
        "LlavaForConditionalGeneration",
        {"text_config": {**_LLAMA, "model_type": "llama"},
         "vision_config": {**_VISION, "model_type": "clip_vision_model"},
         "image_token_index": CLASSES - 1}, "RMSNorm",
    ),
    "encoder-decoder": Case(
        "EncoderDecoderModel",
        {"encoder": {**_BERT, "model_type": "bert"},
         "decoder": {**_BERT, "model_type": "bert", "is_decoder": True,
                     "add_cross_attention": True}}, "LayerNorm", "both",
    ),
}  # fmt: skip


@functools.cache
def make(name: str) -> Made:
    """The model of a case, random, with what it makes of random inputs."""
    case = CASES[name]
    torch.manual_seed(sum(map(ord, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # DeBERTa's use of torch.jit
        architecture = getattr(transformers, case.architecture)
    config_class = getattr(transformers, case.config) if case.config else architecture.config_class
    model = architecture(config_class(**case.options)).eval()
    return observe(model, random_inputs(case.inputs), case.head)


def observe(model: Any, inputs: Mapping[str, torch.Tensor], head: str = "") -> Made:
    """Make a model random, and watch its head (see `Case`) while it runs."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("final_logits_bias"):
                buffer.normal_(0, 0.5)
    caught: dict[str, torch.Tensor] = {}
    module = model.get_submodule(head.removeprefix("=")) if head else model.get_output_embeddings()

    def catch(_: Any, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        caught["hidden"] = output if head.startswith("=") else given[0]
        caught["output"] = output

    handle = module.register_forward_hook(catch)
    with torch.no_grad():
        outputs = model(**inputs)
    handle.remove()
    hidden = caught["hidden"].flatten(0, -2)
    logits = outputs.logits.flatten(0, -2)
    if len(logits) != len(hidden):  # only one position of each sequence counts
        logits = caught["output"].flatten(0, -2)
    return Made(model, hidden.double().numpy(), logits.argmax(-1).numpy(), logits.double().numpy())


def random_inputs(kind: str) -> dict[str, torch.Tensor]:
    """What a model of that kind takes, a batch of it."""
    tokens = torch.randint(5, 90, (_SEQUENCES, _POSITIONS))
    tokens[:, -1] = 2  # classifiers of encoder-decoders look for the end
    if kind == "tokens":
        return {"input_ids": tokens}
    if kind == "both":
        return {
            "input_ids": tokens,
            "decoder_input_ids": torch.randint(5, 90, (_SEQUENCES, _POSITIONS)),
        }
    if kind == "audio":
        return {"input_values": torch.randn(_SEQUENCES, 200)}
    if kind == "spectrogram":
        return {
            "input_features": torch.randn(_SEQUENCES, 8, 32),
            "decoder_input_ids": torch.randint(5, 90, (_SEQUENCES, _POSITIONS)),
        }
    assert kind == "image"
    return {"pixel_values": torch.randn(_SEQUENCES, 3, 16, 16)}
