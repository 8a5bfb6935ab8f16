"""The table of architectures: for each model type, where head, bias and what precedes it live.

Names are those of modules in transformers; `locate` looks for them in a file, also where a wrapper
(a multimodal model, a training framework) put something in front, or where the name of the inner
model was left out. `{last}` stands for the highest number found in its place. Nothing is guessed:
a type that is not here has no known domain. The tests hold every row to the library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# How the gain of a norm comes from the stored numbers.
STORED = "stored"
ONE_PLUS = "1 + stored"  # added in the stored type
ONE_PLUS_FLOAT32 = "1 + stored, in float32"
NO_PARAMETERS = "none"

# Only under these settings: (key of config.json, what it is when absent, what it must be).
Condition = tuple[str, Any, Any]


@dataclass(frozen=True)
class Norm:
    """The last operation before the head: a normalisation, with its parameters in module `at`."""

    kind: str  # "LayerNorm" or "RMSNorm"
    at: str
    gain: str = STORED
    when: tuple[Condition, ...] = ()
    times: int = 1  # how many of its outputs stand side by side in the head's input


@dataclass(frozen=True)
class Activation:
    """The last operation before the head: an activation of what module `of` gives.

    `name` is the activation's, or "config:KEY=DEFAULT" where the configuration names it.
    """

    name: str
    of: str
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Where one kind of model keeps its head. Of several names, the first that is there counts."""

    head: tuple[str, ...]
    tied: tuple[str, ...] = ()  # the embedding that is the head where they are tied
    bias: tuple[str, ...] = ()  # tensors, beside the head's own `bias`
    before: tuple[Norm | Activation, ...] = ()  # the first that is there and whose conditions hold
    project: str = ""  # a linear map between norm and head, where there is one
    shrink: str = ""  # setting under which the head's input is divided by √d_model
    divisor: tuple[str, ...] = ()  # a setting, or the ratio of two, that divides the head's input
    always_tied: bool = False  # whatever `tie_word_embeddings` says
    padding: bool = False  # inputs at padded positions are zeroed after the norm
    partner: str = ""  # a second head: the logits are the mean of both
    beside: bool = False  # the partner has an input of its own, beside that of the head
    continued: str = ""  # a matrix, features × classes, with the features past the head's own
    books: tuple[str, ...] = ()  # heads of codebooks, of which none is the head by itself
    refused: tuple[tuple[Condition, str], ...] = ()  # settings under which no matrix is the head


def _layer(at: str, *when: Condition, gain: str = STORED) -> Norm:
    return Norm("LayerNorm", at, gain, when)


def _rms(at: str, *when: Condition, gain: str = STORED) -> Norm:
    return Norm("RMSNorm", at, gain, when)


def _language(before: Norm, embedding: str, *head: str) -> Layout:
    return Layout(head or ("lm_head",), (embedding,), before=(before,))


_LLAMA = _language(_rms("model.norm"), "model.embed_tokens")
_GEMMA = _language(_rms("model.norm", gain=ONE_PLUS_FLOAT32), "model.embed_tokens")
_STARCODER = _language(_layer("model.norm"), "model.embed_tokens")
_PHI = _language(_layer("model.final_layernorm"), "model.embed_tokens")
_JAMBA = _language(_rms("model.final_layernorm"), "model.embed_tokens")
_GPT2 = _language(_layer("transformer.ln_f"), "transformer.wte")
_BLOOM = _language(_layer("transformer.ln_f"), "transformer.word_embeddings")
_MPT = _language(_layer("transformer.norm_f"), "transformer.wte")
_MAMBA = _language(_rms("backbone.norm_f"), "backbone.embeddings")
_LFM2 = _language(_rms("model.embedding_norm"), "model.embed_tokens")
_DECODER = Layout(
    ("proj_out",), ("model.decoder.embed_tokens",), before=(_layer("model.decoder.norm"),)
)
_NEOX = _language(
    _layer("gpt_neox.final_layer_norm"), "gpt_neox.embed_in", "lm_head", "embed_out"
)  # fmt: skip

# Encoder-decoders. Those that normalise after each block end in the last block's norm.
_LOGIT_BIAS = ("final_logits_bias", "model.final_logits_bias")
_SHARED = ("model.shared", "model.decoder.embed_tokens")
_POST_NORM = Layout(
    ("lm_head",), _SHARED, _LOGIT_BIAS, (_layer("model.decoder.layers.{last}.final_layer_norm"),)
)
_PRE_NORM = Layout(("lm_head",), _SHARED, _LOGIT_BIAS, (_layer("model.decoder.layer_norm"),))
_T5 = Layout(
    ("lm_head",), ("shared", "decoder.embed_tokens"), before=(_rms("decoder.final_layer_norm"),),
    shrink="scale_decoder_outputs", always_tied=True,
)  # fmt: skip
_OPT = Layout(
    ("lm_head",), ("model.decoder.embed_tokens",),
    before=(
        _layer("model.decoder.final_layer_norm", ("do_layer_norm_before", True, True),
               ("_remove_final_layer_norm", False, False)),
        _layer("model.decoder.layers.{last}.final_layer_norm",
               ("do_layer_norm_before", True, False)),
    ),
    project="model.decoder.project_out",
)  # fmt: skip


# Masked language models: the head's own dense layer, an activation, a norm.
def _bert(base: str, norm: str = "LayerNorm") -> Layout:
    return Layout(
        ("cls.predictions.decoder",), (f"{base}.embeddings.word_embeddings",),
        ("cls.predictions.bias",), (_layer(f"cls.predictions.transform.{norm}"),),
    )  # fmt: skip


def _roberta(base: str) -> Layout:
    return Layout(
        ("lm_head.decoder",), (f"{base}.embeddings.word_embeddings",), ("lm_head.bias",),
        (_layer("lm_head.layer_norm"),),
    )  # fmt: skip


def _electra(base: str) -> Layout:
    return Layout(
        ("generator_lm_head",), (f"{base}.embeddings.word_embeddings",),
        before=(_layer("generator_predictions.LayerNorm"),),
    )  # fmt: skip


_XLM = Layout(
    ("pred_layer.proj",), ("transformer.embeddings",),
    before=(_layer("transformer.layer_norm2.{last}"),), padding=True,
    refused=((
        ("asm", False, False),
        "its adaptive softmax spreads the classes over several matrices, so that no single one is "
        "the head",
    ),),
)  # fmt: skip


def _ctc(base: str) -> Layout:
    plain: Condition = ("add_adapter", False, False)
    return Layout(
        ("lm_head",),
        before=(
            _layer(f"{base}.encoder.layer_norm", ("do_stable_layer_norm", False, True), plain),
            _layer(f"{base}.encoder.layers.{{last}}.final_layer_norm",
                   ("do_stable_layer_norm", False, False), plain),
        ),
    )  # fmt: skip


_FRAMES = (_layer("encoder.layers.{last}.norm_out"),)


def _ctc_of(before: Norm) -> Layout:
    return Layout(("lm_head",), before=(replace(before, when=(("add_adapter", False, False),)),))


def _each(types: str, layout: Layout) -> dict[str, Layout]:
    return dict.fromkeys(types.split(), layout)


# Model type → the layout of its language model (or transcription) head.
LANGUAGE: dict[str, Layout] = {
    **_each(
        "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe phi3 olmo2 olmo3 olmoe smollm3 "
        "granite granitemoe granitemoeshared granitemoehybrid granite_swa granitemoe_swa gpt_oss "
        "glm glm4 glm4_moe glm4_moe_lite deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 "
        "exaone_moe helium seed_oss arcee afmoe apertus aria_text bitnet cwm diffllama doge "
        "flex_olmo hy_v3 hyperclovax jetmoe minimax minimax_m2 ministral ministral3 "
        "hunyuan_v1_dense hunyuan_v1_moe dots1 llama4_text olmo_hybrid "
        "solar_open mimo_v2_flash youtu zaya gemma3n_text gemma4_text qwen2_vl_text "
        "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text glm4v_text glm4v_moe_text eurobert "
        "axk1 axk2 beam chameleon deepseek_v32 emu3_text_model flint glm_moe_dsa hy_v4 kolibri1 "
        "laguna mellum mistral4 phi4_multimodal deepseek_ocr2_text "
        "gemma4_unified_text glm_ocr_text idefics kimi_linear longcat_flash "
        "muse_glimmer_text openai_privacy_filter paddleocr_vl_text qwen2_5_omni_text "
        "qwen3_omni_moe_text step3p7_text unlimited_ocr_text cosmos3_edge_text "
        "ernie4_5_vl_moe_text hunyuan_vl_text",
        _LLAMA,
    ),
    **_each(
        "gemma gemma2 gemma3_text vaultgemma qwen3_next qwen3_5_text qwen3_5_moe_text "
        "minimax_m3_vl_text step3p5",
        _GEMMA,
    ),
    **_each(
        "starcoder2 stablelm phimoe jais2 cohere cohere2 cohere2_moe cohere_compass_text",
        _STARCODER,
    ),
    **_each("phi persimmon", _PHI),
    **_each("jamba bamba zamba zamba2 falcon_h1", _JAMBA),
    **_each("gpt2 gpt-sw3 gpt_bigcode gpt_neo gptj codegen", _GPT2),
    **_each("bloom falcon", _BLOOM),
    **_each("mamba mamba2 falcon_mamba", _MAMBA),
    **_each("lfm2 lfm2_moe", _LFM2),
    "mllama_text_model": replace(_LLAMA, tied=()),  # its embedding has rows of its own
    "xlstm": _language(_rms("backbone.out_norm"), "backbone.embeddings"),
    "mpt": _MPT,
    "dbrx": _MPT,
    "gpt_neox": _NEOX,
    "nemotron": _language(_layer("model.norm", gain=ONE_PLUS), "model.embed_tokens"),
    "nemotron_h": Layout(
        ("lm_head",), ("model.embeddings", "backbone.embeddings"),
        before=(_rms("model.norm_f"), _rms("backbone.norm_f")),
    ),
    "deepseek_v4": _language(_rms("model.norm"), "model.embed_tokens", "lm_head", "head"),
    "bailing_hybrid": _language(_rms("model.norm"), "model.word_embeddings"),
    "moshi": replace(_LLAMA, tied=()),  # its embedding has a row more
    "minicpm3": replace(_LLAMA, divisor=("hidden_size", "dim_model_base")),
    "inkling_text": Layout(
        ("lm_head", "model.llm.unembed"), divisor=("logits_mup_width_multiplier",),
        before=(_rms("model.norm"), _rms("model.llm.norm")),
    ),
    "mistral_large4_text": _language(
        _rms("model.norm"), "model.embed_tokens", "lm_head", "output"
    ),
    "hrm_text": _language(_rms("", gain=NO_PARAMETERS), "model.embed_tokens"),
    "imagegpt": Layout(("lm_head",), before=(_rms("transformer.ln_f"),)),
    "cpmant": _language(_rms("cpmant.encoder.output_layernorm"), "cpmant.input_embedding"),
    "git": Layout(("output",), before=(_layer("git.encoder.layer.{last}.output.LayerNorm"),)),
    "csm": Layout(("lm_head",), before=(_rms("backbone_model.norm"),)),
    "bert-generation": Layout(
        ("lm_head.decoder",), ("bert.embeddings.word_embeddings",), ("lm_head.bias",),
        (_layer("bert.encoder.layer.{last}.output.LayerNorm"),),
    ),
    # The bias that lies beside its head is added to nothing.
    "reformer": Layout(("lm_head.decoder",), before=(_layer("reformer.encoder.layer_norm"),)),
    "xlnet": Layout(
        ("lm_loss",), ("transformer.word_embedding",),
        before=(_layer("transformer.layer.{last}.ff.layer_norm"),),
    ),
    "csm_depth_decoder_model": Layout(
        (), before=(_rms("model.norm"),), books=("codebooks_head.weight[{last}]",)
    ),
    "musicgen_decoder": Layout(
        (), before=(_layer("model.decoder.layer_norm"),), books=("lm_heads.{last}.weight",)
    ),
    "musicgen_melody_decoder": Layout(
        (), before=(_layer("model.decoder.layer_norm"),), books=("lm_heads.{last}.weight",)
    ),
    "dia": Layout((), before=(_rms("model.decoder.norm"),), books=("logits_dense.weight[{last}]",)),
    "higgs_audio_v2": Layout(
        (), before=(_rms("model.norm"),), books=("audio_lm_head.weight[{last}]",)
    ),
    "olmo": _language(_layer("", gain=NO_PARAMETERS), "model.embed_tokens"),
    "nanochat": _language(_rms("", gain=NO_PARAMETERS), "model.embed_tokens"),
    "recurrent_gemma": _language(
        _rms("model.final_norm", gain=ONE_PLUS_FLOAT32), "model.embed_tokens"
    ),
    "gpt_neox_japanese": _language(
        _layer("gpt_neox_japanese.final_layer_norm"), "gpt_neox_japanese.embed_in", "embed_out"
    ),
    "rwkv": _language(_layer("rwkv.ln_out"), "rwkv.embeddings", "head"),
    "ctrl": _language(_layer("transformer.layernorm"), "transformer.w"),
    "openai-gpt": _language(_layer("transformer.h.{last}.ln_2"), "transformer.tokens_embed"),
    "biogpt": _language(_layer("biogpt.layer_norm"), "biogpt.embed_tokens", "output_projection"),
    "xglm": _language(_layer("model.layer_norm"), "model.embed_tokens"),
    "opt": _OPT,
    **_each("bart marian blenderbot-small plbart mvp", _POST_NORM),
    **_each("mbart pegasus pegasus_x blenderbot m2m_100 nllb-moe", _PRE_NORM),
    "bigbird_pegasus": replace(_PRE_NORM, before=(_layer("model.decoder.layernorm_embedding"),)),
    "led": Layout(
        ("lm_head",), ("led.shared", "led.decoder.embed_tokens"), _LOGIT_BIAS,
        (_layer("led.decoder.layers.{last}.final_layer_norm"),),
    ),
    "trocr": Layout(
        ("output_projection",), ("model.decoder.embed_tokens",),
        before=(_layer("model.decoder.layers.{last}.final_layer_norm"),),
    ),
    **_each("canary moonshine moonshine_streaming", _DECODER),
    "cohere_asr": Layout(
        ("proj_out", "log_softmax.mlp.layer0"),
        before=(
            _layer("model.decoder.norm"), _layer("model.transf_decoder._decoder.final_layer_norm"),
        ),
    ),
    "pp_formulanet": Layout(("lm_head",), before=(_layer("model.decoder.layer_norm"),)),
    **_each(
        "seamless_m4t seamless_m4t_v2",
        Layout(("lm_head",), ("shared", "text_decoder.embed_tokens"),
               before=(_layer("text_decoder.layer_norm"),)),
    ),
    "speecht5": Layout(
        ("text_decoder_postnet.lm_head",), ("speecht5.decoder.prenet.embed_tokens",),
        before=(_layer("speecht5.decoder.wrapped_decoder.layers.{last}.final_layer_norm"),),
    ),
    "prophetnet": Layout(
        ("lm_head",), ("prophetnet.word_embeddings", "prophetnet.decoder.word_embeddings"),
        before=(_layer("prophetnet.decoder.layers.{last}.feed_forward_layer_norm"),),
    ),
    "t5gemma": Layout(
        ("lm_head.out_proj",), ("model.decoder.embed_tokens",),
        before=(_rms("model.decoder.norm", gain=ONE_PLUS_FLOAT32),),
    ),
    "t5gemma2": Layout(
        ("lm_head.out_proj",), ("model.encoder.embed_tokens", "model.decoder.embed_tokens"),
        before=(_rms("model.decoder.norm", gain=ONE_PLUS_FLOAT32),),
    ),
    "pix2struct": Layout(
        ("decoder.lm_head",), ("decoder.embed_tokens",), before=(_rms("decoder.final_layer_norm"),)
    ),
    "udop": replace(_T5, shrink="tie_word_embeddings", always_tied=False),
    **_each(
        "kosmos-2 kosmos-2.5",
        Layout(("text_model.lm_head",), ("text_model.model.embed_tokens",),
               before=(_layer("text_model.model.layer_norm"),)),
    ),
    "blip": Layout(
        ("text_decoder.cls.predictions.decoder",),
        ("text_decoder.bert.embeddings.word_embeddings",), ("text_decoder.cls.predictions.bias",),
        (_layer("text_decoder.cls.predictions.transform.LayerNorm"),),
    ),
    "whisper": Layout(
        ("proj_out",), ("model.decoder.embed_tokens",), before=(_layer("model.decoder.layer_norm"),)
    ),
    "speech_to_text": Layout(
        ("lm_head",), ("model.decoder.embed_tokens",), before=(_layer("model.decoder.layer_norm"),)
    ),
    "fsmt": Layout(
        ("model.decoder.output_projection",), ("model.decoder.embed_tokens",),
        before=(_layer("model.decoder.layers.{last}.final_layer_norm"),),
    ),
    "t5": _T5,
    "longt5": _T5,
    "pop2piano": _T5,
    "umt5": replace(_T5, shrink="tie_word_embeddings"),
    "switch_transformers": replace(_T5, shrink="tie_word_embeddings", always_tied=False),
    "mt5": replace(_T5, shrink=""),
    **{
        kind: _bert(base)
        for kind, base in {
            "bert": "bert", "big_bird": "bert", "megatron-bert": "bert", "ernie": "ernie",
            "fnet": "fnet", "layoutlm": "layoutlm", "mra": "mra", "nystromformer": "nystromformer",
            "roc_bert": "roc_bert", "roformer": "roformer", "tapas": "tapas", "yoso": "yoso",
            "squeezebert": "transformer", "lxmert": "lxmert", "visual_bert": "visual_bert",
        }.items()
    },
    **{
        kind: Layout(
            ("mlm_score.decoder",), (embedding,), ("mlm_score.bias",),
            (_layer("mlm_score.transform.LayerNorm"),),
        )
        for kind, embedding in {
            "vilt": "vilt.embeddings.text_embeddings.word_embeddings",
            "bridgetower": "bridgetower.text_model.embeddings.word_embeddings",
        }.items()
    },
    "flava": Layout(
        ("mlm_head.decoder",), ("flava.text_model.embeddings.word_embeddings",),
        ("mlm_head.bias",), (_layer("mlm_head.transform.LayerNorm"),),
    ),
    "mobilebert": replace(_bert("mobilebert"), continued="cls.predictions.dense"),
    "perceiver": Layout(
        (), ("perceiver.input_preprocessor.embeddings",), ("embedding_decoder.bias",),
        always_tied=True,
    ),
    "funnel": Layout(
        ("lm_head",), ("funnel.embeddings.word_embeddings",),
        before=(_layer("funnel.decoder.layers.{last}.ffn.layer_norm"),),
    ),
    "nomic_bert": _bert("nomic_bert", "layer_norm"),
    "rembert": replace(_bert("rembert"), tied=(), before=(_layer("cls.predictions.LayerNorm"),)),
    **{
        kind: _roberta(base)
        for kind, base in {
            "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta",
            "xlm-roberta-xl": "roberta", "xmod": "roberta", "longformer": "longformer",
            "mpnet": "mpnet", "ibert": "ibert", "data2vec-text": "data2vec_text", "esm": "esm",
            "roberta-prelayernorm": "roberta_prelayernorm", "luke": "luke",
            "jina_embeddings_v3": "roberta", "esmc": "esmc",
        }.items()
    },
    # Saved as its authors have it, the norm goes by another name.
    "gte": replace(
        _roberta("gte"), before=(_layer("lm_head.layer_norm"), _layer("lm_head.norm"))
    ),
    "modernvbert": Layout(
        ("lm_head",), ("model.text_model.embeddings.tok_embeddings",),
        before=(_layer("projection_head.norm"),),
    ),
    "ultrabert": Layout(
        ("decoder", "cls", "head.decoder"),
        before=(Activation("gelu_pytorch_tanh", "head.linear2"),),
    ),
    "ultravbert": Layout(
        ("lm_head", "head.decoder"),
        before=(
            Activation("gelu_pytorch_tanh", "projection_head.linear2"),
            Activation("gelu_pytorch_tanh", "head.linear2"),
        ),
    ),
    "electra": _electra("electra"),
    "convbert": _electra("convbert"),
    "albert": Layout(
        ("predictions.decoder",), ("albert.embeddings.word_embeddings",), ("predictions.bias",),
        (_layer("predictions.LayerNorm"),),
    ),
    "distilbert": Layout(
        ("vocab_projector",), ("distilbert.embeddings.word_embeddings",),
        before=(_layer("vocab_layer_norm"),),
    ),
    # DeBERTa's two heads: the usual one of BERT, and `lm_head` of the original code.
    **{
        kind: Layout(
            ("cls.predictions.decoder",), ("deberta.embeddings.word_embeddings",),
            ("cls.predictions.bias", "lm_predictions.lm_head.bias"),
            (
                _layer("cls.predictions.transform.LayerNorm"),
                _layer("lm_predictions.lm_head.LayerNorm"),
            ),
        )
        for kind in ("deberta", "deberta-v2")
    },
    "modernbert": Layout(
        ("decoder",), ("model.embeddings.tok_embeddings",), before=(_layer("head.norm"),)
    ),
    "modernbert-decoder": Layout(
        ("decoder",), ("model.embeddings.tok_embeddings",), before=(_layer("lm_head.norm"),)
    ),
    "xlm": _XLM,
    "flaubert": _XLM,
    **{
        kind: _ctc(kind.replace("-", "_"))
        for kind in ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat")
    },
    "data2vec-audio": _ctc_of(_layer("data2vec_audio.encoder.layers.{last}.final_layer_norm")),
    "wav2vec2-bert": _ctc_of(_layer("wav2vec2_bert.encoder.layers.{last}.final_layer_norm")),
    "wav2vec2-conformer": _ctc_of(_layer("wav2vec2_conformer.encoder.layer_norm")),
    **{
        kind: Layout(("lm_head",), before=(
            Activation(
                "config:feat_extract_activation=gelu", f"{base}.encoder.upsample.projection"
            ),
        ))
        for kind, base in {"sew": "sew", "sew-d": "sew_d"}.items()
    },
    "parakeet_ctc": Layout(("ctc_head",), before=_FRAMES),
    "lasr_ctc": Layout(("ctc_head",), before=(_layer("encoder.out_norm"),)),
    "granite_speech5_ctc": Layout(("ctc_head", "encoder.out"), before=_FRAMES),
    # Transducers: encoder and predictor meet in a ReLU.
    **_each(
        "parakeet_rnnt parakeet_tdt nemotron_asr_streaming nemotron3_5_asr",
        Layout(
            ("joint.head",), before=(Activation("config:hidden_act=relu", "encoder_projector"),)
        ),
    ),
}  # fmt: skip

# Factors on the logits: type → (key of the configuration, its default). Positive, they leave the
# argmax as it is; Granite and its relatives divide, which comes to the same.
SCALES: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), ("logit_scale", 0.0625)),
    **dict.fromkeys(
        ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "granite_swa",
         "granitemoe_swa", "hyperclovax"),
        ("logits_scaling", 1.0),
    ),
    "falcon_h1": ("lm_head_multiplier", 1.0),
}  # fmt: skip
# Settings that cap the logits with a tanh, which is monotone.
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


def replace_head(layout: Layout, head: tuple[str, ...]) -> Layout:
    """The same model with another layer on top, and nothing tied to it."""
    return replace(layout, head=head, tied=(), bias=(), shrink="", always_tied=False)
