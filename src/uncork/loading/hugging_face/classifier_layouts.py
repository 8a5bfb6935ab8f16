"""The table of classifiers: for each model type and task, the head and what precedes it.

As in `architectures`. A decoder's `score` follows the norm that precedes its language model head;
only what differs from that is written out here.
"""

from __future__ import annotations

from dataclasses import replace

from uncork.loading.hugging_face.architectures import (
    LANGUAGE,
    ONE_PLUS_FLOAT32,
    Activation,
    Condition,
    Layout,
    Norm,
    replace_head,
)

# The names of classifier heads, the more particular first: RoBERTa's `classifier` has layers.
CLASSIFIERS = (
    "classifier.out_proj", "classification_head.out_proj", "classifier", "score", "logits_proj",
    "classifier.1", "head", "fc", "classifier.dense", "sequence_summary.summary", "score.out_proj",
    "classifier.linear_out", "classifier.linear", "classifier.3", "head.linear", "head.projection",
    "perceiver.decoder.decoder.final_layer", "last_linear",
)  # fmt: skip


def _named(head: str, *before: Norm | Activation) -> Layout:
    return Layout((head,), before=before)


def _pooled(base: str) -> Layout:
    return _named("classifier", Activation("tanh", f"{base}.pooler.dense"))


def _last(at: str) -> Layout:
    return _named("classifier", Norm("LayerNorm", at))


# Speech encoders: a linear map of what their last norm gives, averaged over time.
_SPEECH = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio",
           "wav2vec2-bert", "wav2vec2-conformer")  # fmt: skip
_PLAIN_SUM: Condition = ("use_weighted_layer_sum", False, False)


def _projected(kind: str) -> Layout:
    norms = (
        (Norm("LayerNorm", "encoder.layer_norm"),) if kind == "whisper" else LANGUAGE[kind].before
    )
    return Layout(
        ("classifier",), project="projector",
        before=tuple(
            replace(norm, when=(*norm.when, _PLAIN_SUM))
            for norm in norms if isinstance(norm, Norm)
        ),
    )  # fmt: skip


# Encoders that normalise after each block, by the name of the inner model.
_POST_NORM = {
    "bert": "bert", "big_bird": "bert", "ernie": "ernie", "fnet": "fnet", "layoutlm": "layoutlm",
    "luke": "luke", "markuplm": "markuplm", "mra": "mra", "nystromformer": "nystromformer",
    "rembert": "rembert", "roc_bert": "roc_bert", "roformer": "roformer", "yoso": "yoso",
    "electra": "electra", "convbert": "convbert", "deberta": "deberta", "deberta-v2": "deberta",
    "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta",
    "data2vec-text": "data2vec_text", "longformer": "longformer", "mpnet": "mpnet",
    "bros": "bros", "lilt": "lilt", "xmod": "roberta",
}  # fmt: skip
_PRE_NORM = {
    "megatron-bert": "bert.encoder.ln", "xlm-roberta-xl": "roberta.encoder.LayerNorm",
    "roberta-prelayernorm": "roberta_prelayernorm.LayerNorm",
    "esm": "esm.encoder.emb_layer_norm_after", "vilt": "vilt.layernorm",
    "squeezebert": "transformer.encoder.layers.{last}.output.layernorm",
    "funnel": "funnel.decoder.layers.{last}.ffn.layer_norm",
    "xlnet": "transformer.layer.{last}.ff.layer_norm",
    "biogpt": "biogpt.layer_norm",
}  # fmt: skip
_TANH = _named("classifier.out_proj", Activation("tanh", "classifier.dense"))
_CONFIGURED = _named(
    "classifier.out_proj", Activation("config:hidden_act=gelu_new", "classifier.dense")
)
_ENCODER_DECODER = _named(
    "classification_head.out_proj", Activation("tanh", "classification_head.dense")
)
_MODERN = _named("classifier", Norm("LayerNorm", "head.norm"))
_T5GEMMA = _named("score.out_proj", Norm("RMSNorm", "model.decoder.norm", ONE_PLUS_FLOAT32))
_ULTRA = _named(
    "classifier",
    Norm("RMSNorm", "model.norm"), Norm("RMSNorm", "ultrabert.norm"),
    Norm("RMSNorm", "model.text_model.norm"),
)  # fmt: skip
_XLM_SUMMARY = replace(
    replace_head(LANGUAGE["xlm"], ("sequence_summary.summary",)),
    before=(
        Norm("LayerNorm", "transformer.layer_norm2.{last}",
             when=(("summary_use_proj", True, True), ("summary_type", "first", "first"))),
    ),
)  # fmt: skip

_SEQUENCE: dict[str, Layout] = {
    **{
        kind: _pooled(base)
        for kind, base in {
            "bert": "bert", "canine": "canine", "ernie": "ernie", "fnet": "fnet", "gte": "gte",
            "layoutlm": "layoutlm", "luke": "luke", "markuplm": "markuplm",
            "megatron-bert": "bert", "nomic_bert": "nomic_bert", "rembert": "rembert",
            "roc_bert": "roc_bert", "squeezebert": "transformer", "tapas": "tapas",
        }.items()
    },
    "albert": _named("classifier", Activation("tanh", "albert.pooler")),
    "mobilebert": _named(
        "classifier",
        Activation("tanh", "mobilebert.pooler.dense", (("classifier_activation", True, True),)),
    ),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "xmod", "longformer", "mpnet",
         "ibert", "data2vec-text", "roberta-prelayernorm", "esm", "layoutlmv3", "lilt", "esmc",
         "reformer"),
        _TANH,
    ),
    **dict.fromkeys(
        ("big_bird", "convbert", "mra", "nystromformer", "roformer", "yoso"), _CONFIGURED
    ),
    "electra": _named("classifier.out_proj", Activation("gelu", "classifier.dense")),
    **dict.fromkeys(
        ("bart", "mbart", "plbart", "mvp", "bigbird_pegasus", "t5", "mt5", "umt5"),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("deberta", "deberta-v2"),
        _named("classifier", Activation("config:pooler_hidden_act=gelu", "pooler.dense")),
    ),
    "distilbert": _named("classifier", Activation("relu", "pre_classifier")),
    **dict.fromkeys(("modernbert", "modernbert-decoder", "modernvbert"), _MODERN),
    **dict.fromkeys(("ultrabert", "ultravbert"), _ULTRA),
    **dict.fromkeys(("t5gemma", "t5gemma2"), _T5GEMMA),
    **dict.fromkeys(("xlm", "flaubert"), _XLM_SUMMARY),
    "biogpt": _named("score", Norm("LayerNorm", "biogpt.layer_norm")),
    "ctrl": _named("classifier", Norm("LayerNorm", "transformer.layernorm")),
    "eurobert": _named("classifier", Activation("gelu", "dense")),
    "funnel": _named("classifier.linear_out", Activation("tanh", "classifier.linear_hidden")),
    "jina_embeddings_v3": _TANH,
    "xlnet": _named(
        "logits_proj",
        Activation("tanh", "sequence_summary.summary", (("summary_activation", "tanh", "tanh"),)),
    ),
    **{kind: _projected(kind) for kind in _SPEECH},
}  # fmt: skip

_TOKEN: dict[str, Layout] = {
    **{
        kind: _last(f"{base}.encoder.layer.{{last}}.output.LayerNorm")
        for kind, base in _POST_NORM.items()
    },
    **{kind: _last(at) for kind, at in _PRE_NORM.items()},
    "gte": _named(
        "classifier",
        Norm("LayerNorm", "gte.layers.{last}.post_mlp_layernorm"),
        Norm("LayerNorm", "gte.encoder.layer.{last}.mlp_ln"),
    ),
    "nomic_bert": _named(
        "classifier",
        Norm("LayerNorm", "nomic_bert.layers.{last}.post_mlp_layernorm"),
        Norm("LayerNorm", "nomic_bert.encoder.layers.{last}.norm2"),
    ),
    "albert": _last(
        "albert.encoder.albert_layer_groups.{last}.albert_layers.{last}.full_layer_layer_norm"
    ),
    "canine": _last("canine.final_char_encoder.layer.{last}.output.LayerNorm"),
    "distilbert": _last("distilbert.transformer.layer.{last}.output_layer_norm"),
    **dict.fromkeys(("modernbert", "modernvbert"), _MODERN),
    **dict.fromkeys(("ultrabert", "ultravbert"), _ULTRA),
    **dict.fromkeys(("t5gemma", "t5gemma2"), _T5GEMMA),
    **dict.fromkeys(("xlm", "flaubert"), replace_head(LANGUAGE["xlm"], ("classifier",))),
    "eurobert": replace_head(LANGUAGE["eurobert"], ("classifier",)),
    "esmc": _named("score", Norm("LayerNorm", "esmc.norm")),
    "ibert": _named(
        "classifier",
        Norm(
            "LayerNorm",
            "ibert.encoder.layer.{last}.output.LayerNorm",
            when=(("quant_mode", False, False),),
        ),
    ),
    "jina_embeddings_v3": _named(
        "classifier",
        Norm("LayerNorm", "roberta.layers.{last}.post_mlp_layernorm"),
        Norm("LayerNorm", "roberta.encoder.layers.{last}.norm2"),
    ),
    # One layer more where there are ten labels or more.
    "layoutlmv3": Layout(
        ("classifier.out_proj", "classifier"), before=(Activation("tanh", "classifier.dense"),)
    ),
    **dict.fromkeys(
        ("t5", "mt5", "umt5"),
        _named("classifier", Norm("RMSNorm", "transformer.encoder.final_layer_norm")),
    ),
}

# Average pooling keeps to the convex set that a norm or an activation leaves.
_IMAGE: dict[str, Layout] = {
    **{kind: _last(f"{kind}.layernorm") for kind in ("vit", "swin", "swinv2", "convnext",
                                                     "convnextv2", "deit")},
    "vit_msn": _last("vit.layernorm"),
    **{
        kind: _last(at)
        for kind, at in {
            "cvt": "layernorm", "focalnet": "focalnet.layernorm", "hiera": "hiera.pooler.layernorm",
            "ijepa": "ijepa.layernorm", "pvt": "pvt.encoder.layer_norm",
            "siglip": "vision_model.post_layernorm", "siglip2": "vision_model.post_layernorm",
        }.items()
    },
    # What is pooled stands beside the class token: each of the two leaves the same norm.
    **{
        kind: _named("classifier", Norm("LayerNorm", f"{kind}.layernorm", times=2))
        for kind in ("dinov2", "dinov2_with_registers")
    },
    "segformer": _named(
        "classifier",
        Norm("LayerNorm", "segformer.stages.{last}.layer_norm"),
        Norm("LayerNorm", "segformer.encoder.layer_norm.{last}"),
    ),
    "pvt_v2": _last("pvt_v2.encoder.layers.{last}.layer_norm"),
    "textnet": _named(
        "fc", Activation("relu", "textnet.encoder.stages.{last}.stage.{last}.main_conv")
    ),
    "swiftformer": Layout(("head",), partner="dist_head"),
    "data2vec-vision": _named(
        "classifier",
        Norm("LayerNorm", "data2vec_vision.pooler.layernorm",
             when=(("use_mean_pooling", True, True),)),
    ),
    "imagegpt": _named("score", Norm("RMSNorm", "transformer.ln_f")),
    "bit": _named("classifier.1", Activation("config:hidden_act=relu", "bit.norm")),
    "mobilenet_v1": _named(
        "classifier", Activation("config:hidden_act=relu6", "mobilenet_v1.layer.{last}.convolution")
    ),
    "mobilenet_v2": _named(
        "classifier", Activation("config:hidden_act=relu6", "mobilenet_v2.conv_1x1.convolution")
    ),
    "efficientnet": _named(
        "classifier", Activation("config:hidden_act=swish", "efficientnet.encoder.top_conv")
    ),
    "mobilevit": _named(
        "classifier", Activation("config:hidden_act=silu", "mobilevit.conv_1x1_exp.convolution")
    ),
    "regnet": _named(
        "classifier.1",
        Activation(
            "config:hidden_act=relu",
            "regnet.encoder.stages.{last}.layers.{last}.layer.{last}.convolution",
        ),
    ),
    "beit": _named(
        "classifier",
        Norm("LayerNorm", "beit.pooler.layernorm", when=(("use_mean_pooling", True, True),)),
    ),
    "resnet": _named(
        "classifier.1",
        Activation(
            "config:hidden_act=relu",
            "resnet.encoder.stages.{last}.layers.{last}.layer.{last}.convolution",
        ),
    ),
}  # fmt: skip

_TEACHER: dict[str, Layout] = {
    "deit": Layout(
        ("cls_classifier",), before=(Norm("LayerNorm", "deit.layernorm", times=2),),
        partner="distillation_classifier", beside=True,
    ),
    "levit": Layout((), refused=((
        ("model_type", "levit", ""),
        "it averages two heads, each behind a batch normalisation of its own, so that no single "
        "matrix is the head",
    ),)),
}  # fmt: skip
_AUDIO: dict[str, Layout] = {
    "audio-spectrogram-transformer": _named(
        "classifier.dense", Norm("LayerNorm", "classifier.layernorm")
    ),
    "whisper": _projected("whisper"),
    **{kind: _projected(kind) for kind in _SPEECH},
}
_FRAME: dict[str, Layout] = {
    kind: replace(
        replace_head(LANGUAGE[kind], ("classifier",)),
        before=tuple(
            replace(norm, when=(*norm.when, _PLAIN_SUM)) for norm in LANGUAGE[kind].before
        ),
    )
    for kind in _SPEECH
}
_VIDEO: dict[str, Layout] = {
    "timesformer": _last("timesformer.layernorm"),
    "videomae": _named(
        "classifier", Norm("LayerNorm", "fc_norm", when=(("use_mean_pooling", True, True),)),
        Norm("LayerNorm", "videomae.layernorm", when=(("use_mean_pooling", True, False),)),
    ),
    "vivit": _last("vivit.layernorm"),
}  # fmt: skip
_ANSWERS: dict[str, Layout] = {"vilt": _named("classifier.3", Activation("gelu", "classifier.0"))}

# By the end of the class name in config.json's `architectures`.
TASKS = {
    "ForSequenceClassification": _SEQUENCE,
    "ForTokenClassification": _TOKEN,
    "ForImageClassification": _IMAGE,
    "ForImageClassificationWithTeacher": _TEACHER,
    "ForImageClassificationLearned": {},
    "ForImageClassificationFourier": {},
    "ForImageClassificationConvProcessing": {},
    "ForAudioClassification": _AUDIO,
    "ForAudioFrameClassification": _FRAME,
    "ForVideoClassification": _VIDEO,
    "ForTimeSeriesClassification": {},
    "ForClassification": {},
    "ForTextRecognition": {},
}
# Classes whose scores are compared over positions or answers, not over the head's rows.
NO_CLASSES = ("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")


def task_of(architecture: str) -> str:
    """The task of a class of transformers that is a classifier; "" where it is none."""
    return next((task for task in TASKS if architecture.endswith(task)), "")


def compares_classes(architecture: str, kind: str) -> bool:
    """Whether a class scores the rows of a head, and not positions or answers."""
    if architecture in ("ElectraForPreTraining", "FunnelForPreTraining"):
        return False  # which positions hold replaced tokens
    return not architecture.endswith(NO_CLASSES) or kind in _ANSWERS


def classifier(architecture: str, kind: str) -> Layout | None:
    """The layout of the classifier of that class and type; None where the table has none."""
    if architecture.endswith(NO_CLASSES):
        return _ANSWERS.get(kind)
    task = task_of(architecture)
    if not task or kind in TASKS[task]:
        return TASKS[task][kind] if task else None
    # An encoder-only model has layers between its last norm and a classifier.
    if task in ("ForSequenceClassification", "ForTokenClassification") and kind in DECODERS:
        return replace_head(LANGUAGE[kind], ("score", "classifier"))
    return None


# Types whose `score` takes what their language model head takes.
DECODERS = frozenset(
    kind
    for kind, layout in LANGUAGE.items()
    if layout.head in (("lm_head",), ("lm_head", "embed_out"))
    and layout.tied
    and not layout.bias
    and not layout.shrink
    and not layout.books
    and kind not in ("eurobert", "mt5", "ctrl", "speech_to_text", "funnel", "ultrabert")
)
