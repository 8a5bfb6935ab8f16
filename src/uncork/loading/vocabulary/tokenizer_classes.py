"""What transformers' tokenizer classes put around the tokens in their files: a table by class.

A SentencePiece model or a vocab.json does not say by itself which row a token is: classes put
tokens before the pieces, leave some out, and append special tokens and language codes of their
own. The tests hold the table to the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order they are added
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "SentencePieceBackend")
_MOST_EXTRA = 1000

_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART50 = (
    f"{_MBART} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "
    "ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
_LANGUAGES = {
    "MBart": {"": _MBART.split()},
    "MBart50": {"": _MBART50.split()},
    "M2M100": {
        "m2m100": [f"__{code}__" for code in _M2M100.split()],
        "wmt21": ["__en__", "__ha__", "__is__", "__ja__", "__cs__", "__ru__", "__zh__", "__de__"],
    },
    "PLBart": {
        "base": ["__java__", "__python__", "__en_XX__"],
        "multi": ["__java__", "__python__", "__en_XX__", "__javascript__", "__php__", "__ruby__",
                  "__go__"],
    },
}  # fmt: skip
_DEFAULT_CODES = {"M2M100": "m2m100", "PLBart": "base"}

# The special tokens of each class where nothing else is said, by its name without "Tokenizer".
_FAIRSEQ = "bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>"
_BERT = "unk=[UNK] sep=[SEP] pad=[PAD] cls=[CLS] mask=[MASK]"
_T5 = "eos=</s> unk=<unk> pad=<pad>"
_GPT2 = "bos=<|endoftext|> eos=<|endoftext|> unk=<|endoftext|>"
_SPECIAL = {
    _FAIRSEQ: "Barthez Bartpho Bertweet Blenderbot Camembert LayoutLMv3 LayoutXLM LED Luke MBart "
    "MarkupLM MLuke Mvp Nllb PLBart Phobert Roberta XLMRoberta",
    "bos=[CLS] eos=[SEP] unk=<unk> sep=[SEP] pad=<pad> cls=[CLS] mask=[MASK]":
        "Albert FNet RemBert",
    "bos=<s> eos=</s> unk=<unk> sep=<::::> pad=<pad>": "BertGeneration",
    _BERT: "BertJapanese Bert BertTokenizerLegacy ConvBert DistilBert DPRContextEncoder "
    "DPRQuestionEncoder DPRReader Electra LayoutLMv2 Lxmert MobileBert RoCBert RoFormer Splinter "
    "SqueezeBert Tapas",
    "bos=<s> eos=</s> unk=<unk> sep=[SEP] pad=<pad> cls=[CLS] mask=[MASK]": "BigBird",
    "bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad>": "BioGpt M2M100",
    "bos=__start__ eos=__end__ unk=__unk__ pad=__null__": "BlenderbotSmall",
    _T5: "ByT5 Lasr Marian MyT5 T5 VideoPrism",
    "bos=<|startoftext|> eos=<|endoftext|> unk=<|endoftext|> pad=<|endoftext|>":
        "CLIP GPTNeoXJapanese",
    "unk=<unk>": "CTRL OpenAIGPT",
    "bos=<|endoftext|> eos=[STOP] unk=[UNK] pad=[STOP]": "Clvp",
    _GPT2: "CodeGen GPT2 Whisper",
    "bos=<s> eos=</s> unk=<unk>": "CodeLlama Llama",
    "bos=<BOS_TOKEN> eos=<|END_OF_TURN_TOKEN|> unk=<UNK> sep=<SEP> pad=<PAD> cls=<CLS> "
    "mask=<MASK_TOKEN>": "Cohere",
    "bos=<s> eos=</s> unk=<unk> sep=<sep> pad=<pad> cls=<cls> mask=<mask>": "Cpm Funnel XLNet",
    "bos=[CLS] eos=[SEP] unk=[UNK] sep=[SEP] pad=[PAD] cls=[CLS] mask=[MASK]":
        "Deberta DebertaV2",
    "eos=<eos> unk=<unk> pad=<pad> cls=<cls> mask=<mask>": "Esm Esmc",
    "bos=<s> unk=<unk> sep=</s> pad=<pad>": "FSMT",
    "bos=<s> unk=<unk> sep=</s> pad=<pad> cls=</s> mask=<special1>": "Flaubert XLM",
    f"{_GPT2} pad=<|padding|>": "GPTNeoX",
    "bos=<bos> eos=<eos> unk=<unk> pad=<pad> mask=<mask>": "Gemma Siglip2",
    "unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>": "Herbert",
    "eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>": "MBart50",
    "bos=<s> eos=</s> unk=[UNK] sep=</s> pad=<pad> cls=<s> mask=<mask>": "MPNet",
    "bos=[GO] eos=[s] unk=[GO] pad=[GO]": "Mgpstr",
    "bos=<s> eos=</s> unk=<unk> pad=<pad>":
        "CpmAnt Nougat Speech2Text SpeechT5 Wav2Vec2CTC Wav2Vec2PhonemeCTC",
    "eos=</s> unk=<unk> pad=<pad> mask=<mask_2>": "Pegasus",
    "bos=[BOS] eos=[EOS] sep=[SEP] pad=[PAD] cls=[CLS] mask=[MASK]": "Perceiver",
    "unk=[UNK] sep=[SEP] pad=[PAD] mask=[MASK]": "ProphetNet",
    "eos=<|endoftext|> unk=<|endoftext|> pad=<|endoftext|>": "Qwen2 Qwen3_5",
    "eos=</s> unk=<unk>": "Reformer",
    "bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s>": "SeamlessM4T XGLM",
    "eos=</s> unk=<unk> pad=</s>": "Siglip",
    "unk=<unk> pad=<pad>": "Tipsv2 Vits",
    "eos=</s> unk=<unk> sep=</s> pad=<pad>": "Udop",
}  # fmt: skip
# Further special tokens: by the name of their setting, or just as they are.
_FURTHER = {
    "CodeLlama": ("prefix=▁<PRE>", "middle=▁<MID>", "suffix=▁<SUF>", "eot=▁<EOT>",
                  "fill=<FILL_ME>"),
    "Esmc": ("chain_break=|",),
    "Luke": ("entity_1=<ent>", "entity_2=<ent2>"),
    "ProphetNet": ("x_sep=[X_SEP]",),
    "Splinter": ("question=[QUESTION]",),
    "Tapas": ("empty=[EMPTY]",),
    "Wav2Vec2CTC": ("word_delimiter=|",),
}  # fmt: skip
# Classes in Python, which take added tokens' numbers from their files; the others give them the
# next free ones.
_IN_PYTHON = (
    "Bartpho BertGeneration BertJapanese BertTokenizerLegacy Bertweet BioGpt BlenderbotSmall ByT5 "
    "CTRL Canine Clvp Cpm CpmAnt Dia Esm FSMT FastSpeech2Conformer Flaubert GPTNeoXJapanese "
    "GPTSw3 M2M100 Marian Mgpstr MyT5 PLBart Perceiver Phobert ProphetNet RoCBert Siglip "
    "Speech2Text SpeechT5 Tapas Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC XLM"
)
_KEEPING = frozenset(_IN_PYTHON.split())
# Special tokens that a class adds where its settings list none.
_EOP = ("<eop>", "<eod>")
_UNLISTED = {
    "Cpm": _EOP, "XLNet": _EOP,
    "XGLM": tuple(f"<madeupword{k}>" for k in range(7)),
    **dict.fromkeys(("Flaubert", "XLM"), tuple(f"<special{k}>" for k in range(10))),
}  # fmt: skip
_FIXED = ("PLBart", "SeamlessM4T")  # what their settings say changes nothing before the pieces
# Of these, releases of transformers have numbered the same file in two ways.
_DISPUTED = frozenset({"MLuke"})
# Model types and the class that goes with them, where no file names one and it matters.
_BY_MODEL_TYPE = {
    "barthez": "Barthez", "bartpho": "Bartpho", "bert-generation": "BertGeneration",
    "bertweet": "Bertweet", "big_bird": "BigBird", "byt5": "ByT5", "camembert": "Camembert",
    "code_llama": "CodeLlama", "cpm": "Cpm", "cpmant": "CpmAnt",
    "deberta-v2": "DebertaV2", "flaubert": "Flaubert", "gte": "XLMRoberta",
    "jina_embeddings_v3": "XLMRoberta", "lasr_ctc": "Lasr", "lasr_encoder": "Lasr",
    "layoutxlm": "LayoutXLM", "m2m_100": "M2M100", "marian": "Marian", "mbart": "MBart",
    "mbart50": "MBart50", "metaclip_2": "XLMRoberta", "mluke": "MLuke", "mt5": "T5",
    "musicgen": "T5", "musicgen_melody": "T5", "nllb": "Nllb", "nllb-moe": "Nllb",
    "pegasus": "Pegasus", "pegasus_x": "Pegasus", "perceiver": "Perceiver", "phobert": "Phobert",
    "plbart": "PLBart", "prophetnet": "ProphetNet", "qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5",
    "seamless_m4t": "SeamlessM4T", "seamless_m4t_v2": "SeamlessM4T", "speecht5": "SpeechT5",
    "switch_transformers": "T5", "t5": "T5", "trocr": "XLMRoberta", "videoprism": "VideoPrism",
    "whisper": "Whisper", "xglm": "XGLM", "xlm": "XLM", "xlm-roberta": "XLMRoberta",
    "xlm-roberta-xl": "XLMRoberta", "xlnet": "XLNet", "xmod": "XLMRoberta",
}  # fmt: skip


@dataclass(frozen=True)
class TokenizerClass:
    """How one class numbers what its files hold. `name` is "" for none in particular."""

    name: str = ""
    named: tuple[tuple[str, str], ...] = ()  # (setting without "_token", token)
    keeps_numbers: bool = True  # of added tokens; the others give the next free number
    known: bool = False  # whether this is what the library does, not what a stranger's code may

    def tokens(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """The special tokens by the name of their setting, with what the settings say of them."""
        found: dict[str, str] = {}
        for name, default in self.named:
            value = settings.get(f"{name}_token", default)
            if (text := content_of(value)) is not None:
                found[name] = text
        return found


def stated_class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> TokenizerClass:
    """The class that tokenizer_config.json names, or config.json, or that its model type has."""
    for value in (settings.get("tokenizer_class"), config.get("tokenizer_class")):
        if isinstance(value, str) and value:
            name = value.removesuffix("Fast")
            if name in _GENERIC:
                return TokenizerClass(keeps_numbers=False, known=True)
            found = _CLASSES.get(name.removesuffix("Tokenizer"), TokenizerClass(value[:80]))
            return replace(found, keeps_numbers=False) if name != value else found
    kind = config.get("model_type")
    name = _BY_MODEL_TYPE.get(kind, "") if isinstance(kind, str) else ""
    return _CLASSES.get(name, TokenizerClass())


def is_disputed(kind: TokenizerClass) -> bool:
    """Whether releases of the library number this class's SentencePiece model differently."""
    return kind.name in _DISPUTED


def before_and_after(
    kind: TokenizerClass, settings: Mapping[str, Any]
) -> tuple[list[str], int, list[str]]:
    """Around the pieces of a SentencePiece model: tokens before, how many pieces to leave out,
    tokens after."""
    own = kind.tokens({} if kind.name in _FIXED else settings)

    def pick(*names: str) -> list[str]:
        return [own[name] for name in names if name in own]

    after = languages(kind, settings)
    if kind.name in ("XLMRoberta", "LayoutXLM", "MBart", "MBart50", "PLBart"):
        if kind.name == "PLBart" and settings.get("language_codes", "base") != "base":
            return pick("bos", "pad", "eos", "unk"), 3, after
        first = "cls" if kind.name == "MBart50" else "bos"
        return pick(first, "pad", "eos", "unk"), 3, [*after, *pick("mask")]
    if kind.name in ("Nllb", "XGLM"):
        return pick("bos", "pad", "eos", "unk"), 3, list(_UNLISTED.get(kind.name, ()))
    if kind.name == "SeamlessM4T":
        return pick("pad", "unk", "bos", "eos"), 3, []
    if kind.name == "Camembert":
        pad, unknown = own.get("pad", "<pad>"), own.get("unk", "<unk>")
        front = ["<s>NOTUSED", pad, "</s>NOTUSED", unknown, "<unk>NOTUSED"]
        return front, 1, pick("mask")
    if kind.name == "Pegasus":
        return _pegasus(own, settings)
    if kind.name in ("T5", "VideoPrism") or (not kind.name and "extra_ids" in settings):
        return [], 0, extra_ids(settings, 100)[::-1]
    return [], 0, []


def unlisted(kind: TokenizerClass, settings: Mapping[str, Any], from_pieces: bool) -> list[str]:
    """The further special tokens of a class whose settings list none."""
    if kind.name in ("ByT5", "Lasr"):
        return extra_ids(settings, 125 if kind.name == "ByT5" else 100)
    if from_pieces and not kind.keeps_numbers:
        return []  # there the library takes the model's own
    return list(_UNLISTED.get(kind.name, ()))


def _pegasus(
    own: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[list[str], int, list[str]]:
    offset = settings.get("offset", 103)
    if type(offset) is not int or not 2 <= offset <= _MOST_EXTRA:  # 0: BigBird-Pegasus
        return [own.get("pad", "<pad>"), own.get("eos", "</s>")], 2, []
    sentence = content_of(settings.get("mask_token_sent", "<mask_1>"))
    front = [own.get("pad", "<pad>"), own.get("eos", "</s>")]
    if sentence is not None:
        front += [sentence, own.get("mask", "<mask_2>")]
    return [*front, *(f"<unk_{k}>" for k in range(2, offset))], 2, []


def extra_ids(settings: Mapping[str, Any], default: int) -> list[str]:
    """Sentinels: T5 puts them at its vocabulary's end, counted down to 0."""
    extra = settings.get("extra_ids", default)
    count = min(extra, _MOST_EXTRA) if type(extra) is int and extra > 0 else 0
    return [f"<extra_id_{k}>" for k in range(count)]


def languages(kind: TokenizerClass, settings: Mapping[str, Any]) -> list[str]:
    """The language codes that a class puts after its vocabulary."""
    table = _LANGUAGES.get(kind.name, {})
    wanted = settings.get("language_codes", _DEFAULT_CODES.get(kind.name, ""))
    return list(table.get(wanted, ())) if isinstance(wanted, str) else []


def content_of(value: Any) -> str | None:
    """The text of a token in a JSON file: itself, or the content of an added token."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _pairs(items: list[str] | tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, token) for name, _, token in (item.partition("=") for item in items))


_CLASSES = {
    name: TokenizerClass(
        name,
        (*_pairs(special.split()), *_pairs(_FURTHER.get(name, ()))),
        keeps_numbers=name in _KEEPING,
        known=True,
    )
    for special, names in _SPECIAL.items()
    for name in names.split()
}
_CLASSES |= {
    name: TokenizerClass(name, keeps_numbers=name in _KEEPING, known=True)
    for name in ("Canine", "Dia", "FastSpeech2Conformer", "GPTSw3", "Parakeet")
}
