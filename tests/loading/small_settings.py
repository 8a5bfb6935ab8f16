"""What model classes need to be made small, beyond what the names of their settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# The library's tables of classes with an output head: MODEL_FOR_…_MAPPING_NAMES.
REGISTRIES = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC", "RNNT", "TDT",
    "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION",
    "TIME_SERIES_CLASSIFICATION", "TEXT_RECOGNITION", "TABLE_RECOGNITION", "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM", "VISUAL_QUESTION_ANSWERING", "CAUSAL_IMAGE_MODELING", "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM", "NEXT_SENTENCE_PREDICTION", "PRETRAINING",
)  # fmt: skip
# Classes with a head that are in none of them.
EXTRA = {
    "CsmDepthDecoderForCausalLM": "csm_depth_decoder_model",
    "BridgeTowerForMaskedLM": "bridgetower",
    "ViltForMaskedLM": "vilt",
    "ViltForTokenClassification": "vilt",
    "MoshiForConditionalGeneration": "moshi",
}

_MAMBA = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "time_step_rank": 4}
_SQUEEZE = dict.fromkeys(
    ("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups",
     "output_groups"), 1,
)  # fmt: skip


def _axes(*sections: int, **more: Any) -> dict[str, Any]:
    """Rotary embeddings of several axes, which share out half of a head among them."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                "mrope_section": list(sections), **more}}  # fmt: skip


# By model type, or by class.
SETTINGS: dict[str, dict[str, Any]] = {
    "ast": {"max_length": 32, "num_mel_bins": 32, "patch_size": 8, "frequency_stride": 8,
            "time_stride": 8},
    "bamba": {"attn_layer_indices": [1]},
    "bailing_hybrid": {"layer_group_size": 2},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "bit": {"embedding_size": 16, "num_groups": 4, "layer_type": "preactivation"},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 4, "shape_size": 8},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 8},  # half a million by default
    "mamba2": _MAMBA,
    "mra": {"num_block": 2, "initial_prior_first_n_blocks": 0},
    "reformer": {"axial_pos_shape": (8, 8), "axial_pos_embds_dim": (16, 16), "is_decoder": False,
                 "attention_head_size": 8, "feed_forward_size": 40, "num_buckets": 2,
                 "attn_layers": ["local", "local"], "local_attn_chunk_length": 4},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "regnet": {"layer_type": "x", "groups_width": 8},
    "resnet": {"layer_type": "basic"},
    "squeezebert": _SQUEEZE,
    "xmod": {"languages": ["en"], "default_language": "en"},
    "yoso": {"use_expectation": True},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "mamba_headdim": 8,
               "n_mamba_heads": 8, "attention_head_dim": 16, "attention_hidden_size": 64,
               "hybrid_layer_ids": [1]},
    "zaya": {"num_experts_per_tok": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "longcat_flash": {"qk_rope_head_dim": 4, "head_dim": 4},
    "convnext": {"patch_size": 2},
    "convnextv2": {"patch_size": 2},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
             "patch_size": 4},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
               "patch_size": 4},
    "donut-swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
                   "patch_size": 4},
    "pvt": {"image_size": 64, "hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2,
            "num_attention_heads": [2, 2], "patch_sizes": [4, 2], "strides": [4, 2],
            "mlp_ratios": [2, 2], "sequence_reduction_ratios": [2, 1]},
    "levit": {"image_size": 64, "patch_size": 16, "down_ops": [["Subsample", 16, 2, 4, 2, 2],
                                             ["Subsample", 16, 2, 4, 2, 2]]},
    "textnet": {"stem_out_channels": 16},
    "mobilevitv2": {"patch_size": 2, "image_size": 64, "width_multiplier": 0.25},
    "hgnet_v2": {"stem_channels": [3, 16, 24], "stage_in_channels": [24, 32, 48, 64],
                 "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [32, 48, 64, 80],
                 "hidden_sizes": [32, 48, 64, 80], "stage_numb_of_layers": [1, 1, 1, 1],
                 "stage_num_blocks": [1, 1, 1, 1]},
    "cvt": {"embed_dim": [16, 32], "num_heads": [2, 2], "depth": [2, 2],
            "patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1],
            "mlp_ratio": [2.0, 2.0], "attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0],
            "drop_path_rate": [0.0, 0.0, 0.0], "qkv_bias": [True, True], "cls_token": [False, True],
            "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3],
            "padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mimo_v2_flash": {"partial_rotary_factor": 0.5, "swa_head_dim": 8, "swa_v_head_dim": 8,
                      "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4},
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 1,
                  "num_self_attention_heads": 4, "num_cross_attention_heads": 4},
    "PerceiverForImageClassificationFourier": {"image_size": 224},
    "PerceiverForImageClassificationConvProcessing": {"image_size": 224},
    "vjepa2": {"pred_num_attention_heads": 4, "pred_num_hidden_layers": 1, "crop_size": 16,
               "frames_per_clip": 4, "num_pooler_layers": 1},
    "markuplm": {"max_xpath_tag_unit_embeddings": 256, "max_xpath_subs_unit_embeddings": 1024},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
                     "intermediate_size": [40] * 4, "activation_sparsity_pattern": [0.0] * 4,
                     "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8},
    "nystromformer": {"num_landmarks": 64, "segment_means_seq_len": 64, "conv_kernel_size": 3},
    "cohere_compass_text": {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "bridgetower": {"hidden_size": 64, "num_attention_heads": 4,
                    "text_config": {"hidden_size": 64}, "vision_config": {"hidden_size": 64}},
    "chameleon": {"vocabulary_map": {"<image>": 200, **{f"IMGIMG{c}A": 100 + k
                                                       for k, c in enumerate("BCDEFGHI")}}},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 199, "<image>": 200,
                                **{f"<|visual token {k:06d}|>": 100 + k for k in range(8)}}},
    "dbrx": {"!attn_config": {"rope_theta": 1e4, "kv_n_heads": 4, "clip_qkv": 8.0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "mimi": {"hidden_size": 32, "upsample_groups": 32, "codebook_size": 16, "codebook_dim": 8,
             "vector_quantization_hidden_dimension": 8},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 16},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "t5": {"decoder_start_token_id": 1},
    "videomae": {"decoder_num_attention_heads": 4, "decoder_hidden_size": 32,
                 "decoder_num_hidden_layers": 1, "decoder_intermediate_size": 40},
    "zamba": {"num_hidden_layers": 5, "attention_head_dim": 16, "attention_hidden_size": 64,
              "layers_block_type": ["linear_attention", "linear_attention", "hybrid",
                                    "linear_attention", "hybrid"], "mamba_dt_rank": 4},
    "blt": {"patch_in_forward": False},
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text", "qwen2_5_omni_text",
         "paddleocr_vl_text", "cosmos3_edge_text", "glm46v_text"), _axes(2, 1, 1),
    ),
    "glm4v_moe_text": _axes(1, 1, 0, partial_rotary_factor=0.5),
    "hunyuan_vl_text": _axes(1, 1, 1, 1),
    "ernie4_5_vl_moe_text": {**_axes(1, 1, 2), "moe_intermediate_size": [16, 16]},
    "audio-spectrogram-transformer": {
        "max_length": 32, "num_mel_bins": 32, "frequency_stride": 8, "time_stride": 8},
    "bros": {"hidden_size": 64},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 1.0, "image_size": 64,
                     "hidden_dim": 320, "in_channels": [32, 16], "out_channels": [16, 24],
                     "kernel_sizes": [3, 3], "strides": [1, 2], "num_block_repeats": [1, 1],
                     "expand_ratios": [1, 2]},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 32}},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "poolformer": {"num_encoder_blocks": 4},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]]},
    "hiera": {"decoder_hidden_size": 32, "decoder_depth": 1, "decoder_num_heads": 2},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 32},
    "mobilebert": {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16,
                   "classifier_activation": True},
    "segformer": {"num_encoder_blocks": 4}, "pvt_v2": {"num_encoder_blocks": 4},
    "patchtst": {"num_targets": 29}, "patchtsmixer": {"num_targets": 29},
    "instructblip": {"num_query_tokens": 4, "image_token_id": 200},
    "blip-2": {"num_query_tokens": 4, "image_token_id": 200},
    "kosmos-2": {"latent_query_num": 4},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"],
                    "mlp_layer_types": ["dense", "sparse"], "num_experts_per_token": 2},
}  # fmt: skip


# What a class takes, where that does not follow from the name of its main input.
def _tokens(positions: int = 8) -> torch.Tensor:
    tokens = torch.randint(5, 90, (6, positions))
    tokens[:, -1] = 2
    return tokens


def _with(tokens: torch.Tensor, special: int, count: int) -> torch.Tensor:
    """Tokens, and in front of them as many places for parts of a picture."""
    return torch.cat([torch.full((len(tokens), count), special), tokens], dim=1)


def _boxes(positions: int = 8) -> torch.Tensor:
    return torch.randint(0, 4, (6, positions, 4)).sort(dim=-1).values


def _codes(books: int) -> torch.Tensor:
    return torch.randint(5, 90, (6 * books, 8))


def _perceived(config: Any) -> torch.Tensor:
    if config.architectures[0].startswith("PerceiverForImage"):
        return torch.randn(6, 3, config.image_size, config.image_size)
    return _tokens()


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "audio-spectrogram-transformer": lambda _: {"input_values": torch.randn(6, 32, 32)},
    "blip": lambda c: {
        "input_ids": _tokens(), "decoder_input_ids": _tokens(),
        "pixel_values": torch.randn(6, 3, c.vision_config.image_size, c.vision_config.image_size),
    },
    "blip-2": lambda c: {
        "input_ids": _with(_tokens(), c.image_token_id, c.num_query_tokens),
        "pixel_values": torch.randn(6, 3, 32, 32),
    },
    "bros": lambda _: {"input_ids": _tokens(), "bbox": _boxes().float()},
    "instructblip": lambda c: {
        "input_ids": _with(_tokens(), c.image_token_id, c.num_query_tokens),
        "qformer_input_ids": _tokens(), "pixel_values": torch.randn(6, 3, 32, 32),
    },
    "kosmos-2": lambda c: {
        "input_ids": _with(_tokens(), 5, c.latent_query_num),
        "pixel_values": torch.randn(6, 3, 32, 32),
        "image_embeds_position_mask": torch.tensor([[1] * c.latent_query_num + [0] * 8] * 6),
    },
    "lxmert": lambda c: {
        "input_ids": _tokens(), "visual_feats": torch.randn(6, 4, c.visual_feat_dim),
        "visual_pos": torch.rand(6, 4, c.visual_pos_dim),
    },
    "moshi": lambda c: {
        "input_ids": _tokens(),
        **dict.fromkeys(("user_audio_codes", "moshi_audio_codes"),
                        torch.randint(5, 90, (6, c.num_codebooks, 8))),
    },
    "MoshiForCausalLM": lambda _: {"input_ids": _tokens()},
    "musicgen": lambda c: {"input_ids": _codes(4)},
    "MusicgenForCausalLM": lambda c: {"input_ids": _codes(c.num_codebooks)},
    "MusicgenMelodyForCausalLM": lambda c: {"input_ids": _codes(c.num_codebooks)},
    "patchtst": lambda c: {"past_values": torch.randn(6, c.context_length, c.num_input_channels)},
    "patchtsmixer": lambda c: {
        "past_values": torch.randn(6, c.context_length, c.num_input_channels)
    },
    "pix2struct": lambda c: {
        "flattened_patches": torch.rand(6, 4, c.vision_config.patch_embed_hidden_size + 2),
        "decoder_input_ids": _tokens(),
    },
    "moonshine": lambda _: {"input_values": torch.randn(6, 2000), "decoder_input_ids": _tokens()},
    "siglip2": lambda c: {
        "pixel_values": torch.randn(6, 16, 3 * c.vision_config.patch_size**2),
        "pixel_attention_mask": torch.ones(6, 16, dtype=torch.long),
        "spatial_shapes": torch.full((6, 2), 4),
    },
    "speech-encoder-decoder": lambda _: {
        "inputs": torch.randn(6, 200), "decoder_input_ids": _tokens()
    },
    "udop": lambda _: {
        "input_ids": _tokens(), "bbox": _boxes() / 4.0, "decoder_input_ids": _tokens()
    },
    "videoprism": lambda c: {"pixel_values_videos": torch.randn(2, 4, 3, 32, 32)},
    "vjepa2": lambda c: {"pixel_values_videos": torch.randn(2, 4, 3, 16, 16)},
    **dict.fromkeys(
        ("pp_ocrv5_mobile_rec", "pp_ocrv5_server_rec", "pp_ocrv6_small_rec", "pp_ocrv6_tiny_rec"),
        lambda _: {"pixel_values": torch.randn(2, 3, 48, 96)},
    ),
    "perceiver": lambda c: {"inputs": _perceived(c)},
    "idefics": lambda _: {
        "input_ids": _tokens(), "pixel_values": torch.randn(6, 1, 3, 32, 32),
        "image_attention_mask": torch.ones(6, 8, 1),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A class with settings that make a difference to its head.

    `before` is the kind of domain that precedes it, "" where none is known; `weight` the tensor of
    the saved folder that is the head, where that is worth saying.
    """

    architecture: str
    before: str
    options: Mapping[str, Any] = field(default_factory=dict)
    weight: str = ""


_EMBED = "model.embed_tokens.weight"
_PROJECTED = {"word_embed_proj_dim": 16}
_SEQ = "ForSequenceClassification"
VARIANTS: dict[str, Variant] = {
    "llama": Variant("LlamaForCausalLM", "RMSNorm", weight="lm_head.weight"),
    "llama tied": Variant(
        "LlamaForCausalLM", "RMSNorm", {"tie_word_embeddings": True}, weight=_EMBED
    ),
    "qwen2 tied": Variant(
        "Qwen2ForCausalLM", "RMSNorm", {"tie_word_embeddings": True}, weight=_EMBED
    ),
    "gemma": Variant("GemmaForCausalLM", "RMSNorm", weight=_EMBED),
    "gemma untied": Variant(
        "GemmaForCausalLM", "RMSNorm", {"tie_word_embeddings": False}, weight="lm_head.weight"
    ),
    "gemma2": Variant("Gemma2ForCausalLM", "RMSNorm"),
    "gpt2": Variant("GPT2LMHeadModel", "LayerNorm", weight="transformer.wte.weight"),
    "gpt2 untied": Variant(
        "GPT2LMHeadModel", "LayerNorm", {"tie_word_embeddings": False}, weight="lm_head.weight"
    ),
    "opt": Variant("OPTForCausalLM", "LayerNorm", weight="model.decoder.embed_tokens.weight"),
    "opt projected": Variant(
        "OPTForCausalLM", "Image", {**_PROJECTED, "do_layer_norm_before": False}
    ),
    "opt projected, norm first": Variant("OPTForCausalLM", "Image", _PROJECTED),
    "falcon-h1": Variant("FalconH1ForCausalLM", "RMSNorm", {"lm_head_multiplier": 0.3}),
    "cohere": Variant("CohereForCausalLM", "LayerNorm", weight=_EMBED),
    "granite": Variant("GraniteForCausalLM", "RMSNorm", {"logits_scaling": 3.0}),
    "minicpm3": Variant("MiniCPM3ForCausalLM", "RMSNorm", {"dim_model_base": 8}),
    "nemotron": Variant("NemotronForCausalLM", "LayerNorm", {"hidden_act": "relu2"}),
    "t5": Variant("T5ForConditionalGeneration", "RMSNorm", weight="shared.weight"),
    "t5 of version 1.1": Variant(
        "T5ForConditionalGeneration", "RMSNorm", {"tie_word_embeddings": False}
    ),
    "bart": Variant("BartForConditionalGeneration", "LayerNorm", weight="model.shared.weight"),
    "fsmt": Variant(
        "FSMTForConditionalGeneration", "LayerNorm",
        {"langs": ["en", "de"], "src_vocab_size": 97, "tgt_vocab_size": 211},
    ),
    "bert": Variant(
        "BertForMaskedLM", "LayerNorm", weight="bert.embeddings.word_embeddings.weight"
    ),
    "bert untied": Variant(
        "BertForMaskedLM", "LayerNorm", {"tie_word_embeddings": False},
        weight="cls.predictions.decoder.weight",
    ),
    "deberta-v2, the new head": Variant("DebertaV2ForMaskedLM", "LayerNorm", {"legacy": False}),
    "wav2vec2, norm first": Variant(
        "Wav2Vec2ForCTC", "LayerNorm", {"do_stable_layer_norm": True}
    ),
    "bert classifier": Variant("Bert" + _SEQ, "Box"),
    "deberta-v2 classifier": Variant("DebertaV2" + _SEQ, "Box"),
    "gpt2 classifier": Variant("GPT2" + _SEQ, "LayerNorm"),
    "gemma2 classifier": Variant("Gemma2" + _SEQ, "RMSNorm"),
    "layoutlmv3, few labels": Variant(
        "LayoutLMv3ForTokenClassification", "", {"num_labels": 5}
    ),
    "encoder-decoder": Variant("EncoderDecoderModel", "LayerNorm"),
    "pix2struct": Variant(
        "Pix2StructForConditionalGeneration", "RMSNorm", weight="decoder.lm_head.weight"
    ),
}  # fmt: skip
