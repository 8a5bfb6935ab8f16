"""The table of classifiers: for each model type and task, the head and what precedes it.

As in `architectures`. A decoder's `score` follows the norm that precedes its language model head;
only what differs from that is written out here.
"""

from __future__ import annotations

from uncork.load.hugging_face.architectures import LANGUAGE, Activation, Layout, Norm, replace_head

# The names of classifier heads, the more particular first: RoBERTa's `classifier` has layers.
CLASSIFIERS = (
    "classifier.out_proj", "classification_head.out_proj", "classifier", "score", "logits_proj",
    "classifier.1", "head", "fc",
)  # fmt: skip


def _named(head: str, *before: Norm | Activation) -> Layout:
    return Layout((head,), before=before)


def _pooled(base: str) -> Layout:
    return _named("classifier", Activation("tanh", f"{base}.pooler.dense"))


def _last(at: str) -> Layout:
    return _named("classifier", Norm("LayerNorm", at))


# Encoders that normalise after each block, by the name of the inner model.
_POST_NORM = {
    "bert": "bert", "big_bird": "bert", "ernie": "ernie", "fnet": "fnet", "layoutlm": "layoutlm",
    "luke": "luke", "markuplm": "markuplm", "mra": "mra", "nystromformer": "nystromformer",
    "rembert": "rembert", "roc_bert": "roc_bert", "roformer": "roformer", "yoso": "yoso",
    "electra": "electra", "convbert": "convbert", "deberta": "deberta", "deberta-v2": "deberta",
    "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta",
    "data2vec-text": "data2vec_text", "longformer": "longformer", "mpnet": "mpnet",
}  # fmt: skip
_PRE_NORM = {
    "megatron-bert": "bert.encoder.ln", "xlm-roberta-xl": "roberta.encoder.LayerNorm",
    "roberta-prelayernorm": "roberta_prelayernorm.LayerNorm",
}  # fmt: skip
_TANH = _named("classifier.out_proj", Activation("tanh", "classifier.dense"))
_CONFIGURED = _named(
    "classifier.out_proj", Activation("config:hidden_act=gelu_new", "classifier.dense")
)
_ENCODER_DECODER = _named(
    "classification_head.out_proj", Activation("tanh", "classification_head.dense")
)
_MODERN = _named("classifier", Norm("LayerNorm", "head.norm"))

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
         "ibert", "data2vec-text", "roberta-prelayernorm", "esm", "layoutlmv3", "lilt"),
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
    "modernbert": _MODERN,
    "modernbert-decoder": _MODERN,
}  # fmt: skip

_TOKEN: dict[str, Layout] = {
    **{
        kind: _last(f"{base}.encoder.layer.{{last}}.output.LayerNorm")
        for kind, base in _POST_NORM.items()
    },
    **{kind: _last(at) for kind, at in _PRE_NORM.items()},
    **{kind: _last(f"{kind}.layers.{{last}}.post_mlp_layernorm") for kind in ("gte", "nomic_bert")},
    "albert": _last(
        "albert.encoder.albert_layer_groups.{last}.albert_layers.{last}.full_layer_layer_norm"
    ),
    "canine": _last("canine.final_char_encoder.layer.{last}.output.LayerNorm"),
    "distilbert": _last("distilbert.transformer.layer.{last}.output_layer_norm"),
    "modernbert": _MODERN,
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

# By the end of the class name in config.json's `architectures`.
TASKS = {
    "ForSequenceClassification": _SEQUENCE,
    "ForTokenClassification": _TOKEN,
    "ForImageClassification": _IMAGE,
    "ForAudioClassification": {},
    "ForVideoClassification": {},
}
# Classes whose scores are compared over positions or answers, not over the head's rows.
NO_CLASSES = ("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")


def classifier(architecture: str, kind: str) -> Layout | None:
    """The layout of the classifier that a class of transformers is; None where it is none."""
    for task, table in TASKS.items():
        if architecture.endswith(task):
            if kind in table:
                return table[kind]
            plain = Layout(CLASSIFIERS)
            # An encoder-only model has layers between its last norm and a classifier.
            if task in ("ForSequenceClassification", "ForTokenClassification") and kind in DECODERS:
                return replace_head(LANGUAGE[kind], ("score", "classifier"))
            return plain
    return None


# Types whose `score` takes what their language model head takes.
DECODERS = frozenset(
    kind
    for kind, layout in LANGUAGE.items()
    if layout.head in (("lm_head",), ("lm_head", "embed_out"))
    and layout.tied
    and not layout.bias
    and not layout.shrink
    and kind not in ("eurobert", "mt5", "ctrl", "speech_to_text")
)
