"""Tokenizer files, written by the libraries themselves, give each class the library's own name."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

import uncork
from uncork import UncorkError
from uncork.loading.contents import Vocabulary
from uncork.loading.source import find
from uncork.loading.vocabulary import (
    find_vocabulary,
    read_vocabulary,
    sentencepiece_file,
    vocabulary_of,
)
from uncork.loading.vocabulary.token_text import (
    BYTE_ALPHABET,
    from_byte_level,
    named_special,
    named_unused,
)

TEXT = [
    "the quick brown fox jumps over the lazy dog, 1234567890 times!",
    "Привет, мир! Это простая строка для обучения.",
    "东西南北中 日本語のテキスト 한국어 문장",
    "naïve café — “quotes” … emoji 🦊🦊 and\ttabs",
] * 20


def spelled(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Tokens as the tokenizer spells them."""
    found = vocabulary.labels if vocabulary.tokens is None else vocabulary.tokens
    assert found is not None
    return found


def trained(kind: str) -> Tokenizer:
    """A tokenizer of the real library, trained on a few lines, with tokens added to it."""
    marks = ["<s>", "</s>"]
    if kind == "byte-level BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=400, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "BPE in a sequence":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=350, special_tokens=marks, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    elif kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        marks = ["[PAD]", "[UNK]", "[CLS]", "[unused1]", "[unused2]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=200, special_tokens=marks, show_progress=False
        )
    elif kind == "WordLevel":
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=160, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("plain Ġaddition", normalized=False)])
    tokenizer.add_special_tokens(["<|im_start|>", "<|reserved_special_token_0|>"])
    return tokenizer


KINDS = ["byte-level BPE", "BPE in a sequence", "WordPiece", "WordLevel", "Unigram"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_the_one_the_tokenizer_gives_that_id(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    found = find_vocabulary(tmp_path, size)
    assert found.source == "tokenizer.json"
    assert spelled(found) == tuple(tokenizer.id_to_token(k) for k in range(size))
    assert found.padding == ()
    names = [spelled(found)[k] for k in found.unused]
    assert "<|reserved_special_token_0|>" in names
    assert set(names) <= {"<|reserved_special_token_0|>", "[unused1]", "[unused2]"}
    assert "<|im_start|>" in [spelled(found)[k] for k in found.special]
    assert not set(found.special) & set(found.unused)


def test_byte_level_tokens_read_as_the_library_decodes_them(tmp_path: Path) -> None:
    tokenizer = trained("byte-level BPE")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    found = find_vocabulary(tmp_path, size)
    assert found.labels is not None
    compared = 0
    for k in range(size):
        decoded = tokenizer.decoder.decode([tokenizer.id_to_token(k)])
        added = "Ġaddition" in found.labels[k]  # text, not bytes
        if "\ufffd" not in decoded and not added and k not in found.special + found.unused:
            assert found.labels[k] == decoded
            compared += 1
    assert compared > 200
    assert " the" in found.labels
    assert "plain Ġaddition" in found.labels
    assert "<0xE2>" in found.labels


@given(st.binary(min_size=1, max_size=12))
def test_byte_level_text_keeps_every_byte(data: bytes) -> None:
    alphabet = {byte: character for character, byte in BYTE_ALPHABET.items()}
    assert len(alphabet) == len(BYTE_ALPHABET) == 256
    text = from_byte_level("".join(alphabet[byte] for byte in data))
    try:
        assert text == data.decode("utf-8")
    except UnicodeDecodeError:
        assert "<0x" in text


def test_rows_past_the_end_are_padding_and_added_tokens_may_lie_beyond(tmp_path: Path) -> None:
    tokenizer = trained("WordLevel")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    wide = find_vocabulary(tmp_path, size + 5)
    assert wide.padding == tuple(range(size, size + 5))
    assert wide.labels is not None
    assert wide.labels[-1] == f"<row {size + 4}>"
    narrow = find_vocabulary(tmp_path, size - 2)
    assert narrow.labels is not None
    assert narrow.notes == ("2 added tokens beyond the head's last row",)
    too_narrow = find_vocabulary(tmp_path, size - 10)
    assert too_narrow.labels is None
    assert "not used" in too_narrow.source


def test_gpt2_files_without_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = trained("byte-level BPE")
    tokenizer.model.save(str(tmp_path))
    size = len(json.loads((tmp_path / "vocab.json").read_text("utf-8")))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|pad|>": size}), "utf-8")
    found = find_vocabulary(tmp_path, size + 1)
    assert found.source == "vocab.json"
    assert spelled(found)[:size] == tuple(tokenizer.id_to_token(k) for k in range(size))
    assert found.labels is not None
    assert found.labels[size] == "<|pad|>"
    assert " the" in found.labels
    assert size in found.special


def test_bert_files_as_transformers_writes_them(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    words = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing", "мир"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    alone = find_vocabulary(tmp_path, 9)
    assert alone.labels == tuple(words)
    assert (alone.special, alone.unused) == ((0, 2, 3, 4, 5), (1,))
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = find_vocabulary(tmp_path / "saved", 12)
    assert saved.labels is not None
    assert saved.labels[:10] == tuple(tokenizer.convert_ids_to_tokens(list(range(10))))
    assert saved.special == (0, 2, 3, 4, 5)
    assert saved.padding == (10, 11)


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    import sentencepiece

    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=stream, vocab_size=400, byte_fallback=True,
        user_defined_symbols=["<custom>"], pad_id=3, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return stream.getvalue()


def test_sentencepiece_pieces_are_the_librarys(sentencepiece_model: bytes, tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    size = library.get_piece_size()
    found = find_vocabulary(tmp_path, size + 3)
    assert found.labels is not None
    assert found.labels[:size] == tuple(library.id_to_piece(k) for k in range(size))
    control = tuple(k for k in range(size) if library.is_control(k) or library.is_unknown(k))
    assert found.special == control
    assert found.padding == (size, size + 1, size + 2)
    assert "<0x0A>" in found.labels
    kinds = [kind for _, kind in sentencepiece_file.pieces_of(sentencepiece_model)]
    assert [kind == sentencepiece_file.BYTE for kind in kinds] == [
        library.is_byte(k) for k in range(size)
    ]


@pytest.mark.parametrize(
    ("family", "converter"),
    [
        ("XLMRobertaTokenizer", "XLMRobertaConverter"),
        ("NllbTokenizer", "NllbConverter"),
        ("CamembertTokenizer", "CamembertConverter"),
        ("XGLMTokenizer", "XGLMConverter"),
        ("PegasusTokenizer", "PegasusConverter"),
    ],
)
def test_families_that_number_their_pieces_anew(
    family: str, converter: str, sentencepiece_model: bytes, tmp_path: Path
) -> None:
    import importlib
    from types import SimpleNamespace

    # By its full name: transformers has a function that is called the same.
    convert_slow_tokenizer = importlib.import_module("transformers.convert_slow_tokenizer")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": family}))
    pieces = [
        SimpleNamespace(piece=text, score=0.0)
        for text, _ in sentencepiece_file.pieces_of(sentencepiece_model)
    ]
    slow = SimpleNamespace(
        original_tokenizer=SimpleNamespace(
            pad_token="<pad>", eos_token="</s>", mask_token_sent="<mask_1>", mask_token="<mask_2>",
            mask_token_id=3, offset=103,
        )
    )  # fmt: skip
    numbering = getattr(convert_slow_tokenizer, converter).vocab
    expected = [text for text, _ in numbering(slow, SimpleNamespace(pieces=pieces))]
    found = find_vocabulary(tmp_path, len(expected))
    assert found.labels == tuple(expected)


def test_t5_counts_its_sentinels_from_the_end(sentencepiece_model: bytes, tmp_path: Path) -> None:
    size = len(sentencepiece_file.pieces_of(sentencepiece_model))
    (tmp_path / "spiece.model").write_bytes(sentencepiece_model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10}))
    found = find_vocabulary(tmp_path, size + 12)
    assert found.labels is not None
    assert found.labels[size : size + 10] == tuple(f"<extra_id_{k}>" for k in range(9, -1, -1))
    assert found.unused == tuple(range(size, size + 10))
    assert found.padding == (size + 10, size + 11)


def test_marian_yaml_fairseq_dictionary_tiktoken_and_tekken(tmp_path: Path) -> None:
    folder = tmp_path / "marian"
    folder.mkdir()
    lines = ["</s>: 0", "<unk>: 1", '"\\"": 2', "'it''s': 3", '"a: b": 4', "▁der: 5", '"\\x41": 6']
    (folder / "vocab.src.yml").write_text("x: 0\ny: 1\n", "utf-8")
    (folder / "vocab.trg.yml").write_text("\n".join(lines) + "\n", "utf-8")
    found = find_vocabulary(folder, 7)
    assert found.labels is not None
    assert found.labels[:6] == ("</s>", "<unk>", '"', "it's", "a: b", "▁der")
    assert found.source == "vocab.trg.yml"
    folder = tmp_path / "fairseq"
    folder.mkdir()
    (folder / "dict.de.txt").write_text("der 10\n, 9\nmadeupword0000 0\n", "utf-8")
    found = find_vocabulary(folder, 7)
    assert found.labels == ("<s>", "<pad>", "</s>", "<unk>", "der", ",", "madeupword0000")
    assert (found.special, found.unused) == ((0, 1, 2, 3), (6,))
    folder = tmp_path / "tiktoken"
    folder.mkdir()
    tokens = [b"a", b" the", b"\xe2\x80", "мир".encode()]
    text = "".join(f"{base64.b64encode(t).decode()} {k}\n" for k, t in enumerate(tokens))
    (folder / "tokenizer.model").write_text(text)
    assert find_vocabulary(folder, 4).labels == ("a", " the", "<0xE2><0x80>", "мир")
    folder = tmp_path / "tekken"
    folder.mkdir()
    ranked = [
        {"rank": k, "token_bytes": base64.b64encode(t).decode()} for k, t in enumerate(tokens)
    ]
    data = {
        "config": {"default_vocab_size": 7, "default_num_special_tokens": 3},
        "vocab": ranked,
        "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": True}],
    }
    (folder / "tekken.json").write_text(json.dumps(data))
    found = find_vocabulary(folder, 7)
    assert found.labels == ("<SPECIAL_0>", "<s>", "<SPECIAL_2>", "a", " the", "<0xE2><0x80>", "мир")
    assert (found.special, found.unused) == ((1,), (0, 2))


def test_a_classifiers_labels_come_from_its_config(tmp_path: Path) -> None:
    trained("WordLevel").save(str(tmp_path / "tokenizer.json"))
    config: dict[str, Any] = {"id2label": {"0": "cat", "1": "dog", "2": "fox"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_vocabulary(tmp_path, 3).labels == ("cat", "dog", "fox")
    config = {"id2label": {str(k): f"LABEL_{k}" for k in range(3)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = find_vocabulary(tmp_path, 3)
    assert found.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "by default" in found.source


def test_one_vocabulary_among_several_languages(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"a": 0, "b": 1}, "deu": {"ä": 0}}))
    assert "2 vocabularies" in find_vocabulary(tmp_path, 2).source
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"target_lang": "eng"}))
    assert find_vocabulary(tmp_path, 2).labels == ("a", "b")


_KEYS = st.sampled_from(
    ["model", "vocab", "added_tokens", "id", "content", "special", "config", "rank", "token_bytes",
     "special_tokens", "default_num_special_tokens", "default_vocab_size", "id2label", "type",
     "added_tokens_decoder", "extra_ids", "target_lang", "pre_tokenizer", "decoder", "0", "1", "a"]
)  # fmt: skip
NAMES = ["tokenizer.json", "vocab.json", "tekken.json", "config.json", "added_tokens.json"]
HOSTILE: dict[str, tuple[str, bytes]] = {
    "not JSON": ("tokenizer.json", b"{"),
    "deep": ("tokenizer.json", b"[" * 200_000),
    "a list": ("tokenizer.json", b"[]"),
    "no vocabulary": ("tokenizer.json", b'{"model": {"vocab": 3}}'),
    "odd entries": ("tokenizer.json", b'{"model": {"vocab": [[], 3, {}, null]}}'),
    "huge id": ("tokenizer.json", b'{"model": {"vocab": {"a": 1000000000000000000000}}}'),
    "only beyond": ("vocab.json", b'{"a": 99999999}'),
    "only negative": ("vocab.json", b'{"a": -1}'),
    "floats": ("vocab.json", b'{"a": 0.5, "b": true, "c": NaN}'),
    "no protobuf": ("tokenizer.model", b"\xff" * 100),
    "past the end": ("tokenizer.model", b"\x0a\xff\xff\xff\xff\x7fabc"),
    "not UTF-8": ("vocab.txt", b"\xff\xfe"),
    "empty": ("vocab.txt", b""),
    "no yaml": ("vocab.yml", b"- - -\n"),
    "no dictionary": ("dict.txt", b"word\n"),
    "tekken": ("tekken.json", b'{"config": {"default_num_special_tokens": 9}, "vocab": []}'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_vocabulary_gives_no_labels_and_says_so(case: str, tmp_path: Path) -> None:
    name, data = HOSTILE[case]
    (tmp_path / name).write_bytes(data)
    found = find_vocabulary(tmp_path, 8)
    assert found.labels is None
    assert name in found.source
    assert len(found.source) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), json_values, json_values)
def test_no_json_makes_it_raise(name: str, data: Any, beside: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / name).write_text(json.dumps(data))
        (path / "tokenizer_config.json").write_text(json.dumps(beside))
        found = find_vocabulary(path, 5)
    assert found.labels is None or len(found.labels) == 5


def test_an_oversized_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)
    assert "too many for a vocabulary" in find_vocabulary(tmp_path, 8).source


def test_a_plain_list_must_name_every_class(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n", "utf-8")
    assert find_vocabulary(tmp_path, 2).labels == ("cat", "dog")
    assert find_vocabulary(tmp_path, 3).source == "labels.txt has 2 entries for 3 classes: not used"


def test_no_files_say_nothing(tmp_path: Path) -> None:
    assert find_vocabulary(tmp_path, 8) == Vocabulary()
    assert find_vocabulary(tmp_path / "nowhere", 8) == Vocabulary()


def test_gaps_duplicates_and_negative_ids_are_said(tmp_path: Path) -> None:
    table = {"a": 0, "b": 3, "c": -2, "\ud800": 1, "\x00": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(table))
    found = find_vocabulary(tmp_path, 6)
    assert found.labels == ("a", "\ud800", "<row 2>", "b", "\x00", "<row 5>")
    assert (found.unused, found.padding) == ((2,), (5,))
    assert found.notes == (
        "1 row below the last token without one of their own",
        "1 token with a negative number, left out",
    )


@settings(max_examples=40)
@given(
    st.dictionaries(st.text(max_size=5), st.integers(-5, 40), max_size=30),
    st.integers(2, 30),
)
def test_any_table_gives_a_label_to_every_class_or_none(
    table: dict[str, int], classes: int
) -> None:
    tokens = {number: token for token, number in table.items()}
    found = vocabulary_of(tokens, classes, "here")
    if found.labels is None:
        assert found.source
        return
    assert len(found.labels) == classes
    kinds = [*found.special, *found.unused, *found.padding]
    assert len(kinds) == len(set(kinds))
    assert all(0 <= k < classes for k in kinds)


@pytest.mark.parametrize(
    "token",
    ["[unused12]", "<unused7>", "<extra_id_3>", "<reserved_5>", "<|reserved_special_token_17|>",
     "madeupword0001", "<|extra_204|>", "<SPECIAL_31>", "<|placeholder4|>", "<|dummy_3|>",
     "<|reserved_200001|>", "[reserved 9]"],
)  # fmt: skip
def test_reserved_names_are_known(token: str) -> None:
    assert named_unused(token)


@pytest.mark.parametrize("token", ["unused", "<0x0A>", "special1", "extra", "<s>", "▁reserved"])
def test_ordinary_words_are_not_taken_for_reserved(token: str) -> None:
    assert not named_unused(token)
    assert named_special(token) == (token == "<s>")


def test_labels_can_be_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizer = trained("WordPiece")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal((size + 2, 4)))
    found = find(tmp_path / "w.npy", labels=tmp_path / "tokenizer.json")
    assert found.head.label(2) == "[CLS]"
    assert found.vocabulary.padding == (size, size + 1)
    assert uncork.load(tmp_path / "w.npy", labels=tmp_path / "tokenizer.json").labels is not None
    np.save(tmp_path / "small.npy", np.eye(3))
    with pytest.raises(UncorkError, match=r"tokenizer\.json has .* for 3 classes"):
        read_vocabulary(tmp_path / "tokenizer.json", 3)
