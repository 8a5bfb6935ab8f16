"""A class is called what the model's own library calls it, or nothing: cases that went wrong."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import every_tokenizer
import numpy as np
import pytest
from every_tokenizer import sentencepiece_model, write_json

from uncork import UncorkError
from uncork.core.text import visible
from uncork.loading.contents import Vocabulary
from uncork.loading.source import find
from uncork.loading.vocabulary import find_vocabulary, read_vocabulary
from uncork.loading.vocabulary.labels import labels_from_metadata
from uncork.loading.vocabulary.sentencepiece_file import pieces_of
from uncork.loading.vocabulary.token_text import from_byte_level


def library_class(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def library_rows(name: str, folder: Path) -> tuple[str, ...]:
    """All rows as that class of transformers names them."""
    tokenizer = library_class(name).from_pretrained(folder)
    return tuple(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))


# -- the tokenizer class that the files state ----------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "name", "file", "pieces"),
    [
        ("mbart", "AlbertTokenizer", "spiece.model", "AlbertTokenizer"),  # IndicBART
        ("mbart", "BarthezTokenizer", "sentencepiece.bpe.model", ""),
        ("xlm-roberta", "T5Tokenizer", "spiece.model", "T5Tokenizer"),
        ("t5", "XLMRobertaTokenizer", "sentencepiece.bpe.model", ""),
    ],
)
def test_a_stated_class_goes_before_the_model_type(
    model_type: str, name: str, file: str, pieces: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(sentencepiece_model(pieces))
    write_json(tmp_path / "config.json", {"model_type": model_type})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": name})
    expected = library_rows(name, tmp_path)
    assert find_vocabulary(tmp_path, len(expected)).labels == expected


def test_bigbird_pegasus_has_no_offset(tmp_path: Path) -> None:
    data = sentencepiece_model("T5Tokenizer")
    (tmp_path / "spiece.model").write_bytes(data)
    write_json(tmp_path / "config.json", {"model_type": "bigbird_pegasus"})
    settings = {"tokenizer_class": "PegasusTokenizer", "offset": 0, "mask_token_sent": None,
                "mask_token": None}  # fmt: skip
    write_json(tmp_path / "tokenizer_config.json", settings)
    expected = tuple(text for text, _ in pieces_of(data))
    assert find_vocabulary(tmp_path, len(expected)).labels == expected


@pytest.mark.parametrize("name", ["SeamlessM4TTokenizer", "PLBartTokenizer"])
def test_sentencepiece_alone_is_numbered_as_its_class_does(name: str, tmp_path: Path) -> None:
    kind = library_class(name)
    every_tokenizer.write_files(kind, tmp_path)
    expected = library_rows(name, tmp_path)
    assert find_vocabulary(tmp_path, len(expected)).labels == expected


# -- classifiers -------------------------------------------------------------------------------


def esm(folder: Path, labels: int) -> None:
    from transformers import EsmConfig, EsmForSequenceClassification, EsmTokenizer

    words = [
        "<cls>",
        "<pad>",
        "<eos>",
        "<unk>",
        *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
        "<null_1>",
        "<mask>",
    ]
    (folder / "vocab.txt").write_text("\n".join(words), "utf-8")
    EsmTokenizer.from_pretrained(folder).save_pretrained(folder)
    sizes: dict[str, Any] = {
        "vocab_size": 33, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "pad_token_id": 1, "mask_token_id": 32,
    }  # fmt: skip
    EsmForSequenceClassification(EsmConfig(**sizes, num_labels=labels)).save_pretrained(folder)


def without_names(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key in ("id2label", "label2id"):
        config.pop(key, None)
    write_json(folder / "config.json", config)


def test_a_protein_classifiers_classes_are_not_called_amino_acids(tmp_path: Path) -> None:
    esm(tmp_path, 40)
    assert find(tmp_path).head.label(0) == "LABEL_0"
    without_names(tmp_path)
    found = find(tmp_path)
    assert found.head.labels is None
    assert found.vocabulary.source == (
        "config.json is a classifier's and does not name its 40 classes"
    )
    assert any("no labels: config.json is a classifier's" in note for note in found.notes)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForCTC"])
def test_a_speech_models_letters_name_the_rows_of_its_transcriber_alone(
    head: str, tmp_path: Path
) -> None:
    import transformers

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLU"]
    write_json(tmp_path / "vocab.json", {text: k for k, text in enumerate(letters)})
    transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters), num_labels=20, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=8, conv_dim=(8, 8), conv_stride=(2, 2),
        conv_kernel=(3, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=4,
    )  # fmt: skip
    getattr(transformers, f"Wav2Vec2{head}")(config).save_pretrained(tmp_path)
    without_names(tmp_path)
    found = find(tmp_path)
    if head == "ForCTC":
        assert found.head.labels == tuple(letters)
    else:
        assert found.head.labels is None


def test_a_small_bert_classifier_is_not_labelled_with_words(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), "utf-8")
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    write_json(tmp_path / "config.json", {**config, "vocab_size": 5})
    assert find_vocabulary(tmp_path, 6).labels is None
    assert find_vocabulary(tmp_path, 5).labels == tuple(words)  # the embedding, named by hand
    write_json(tmp_path / "config.json", {"num_labels": 6, "vocab_size": 5})
    assert find_vocabulary(tmp_path, 6).labels is None
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\ne\nf\n")
    assert find_vocabulary(tmp_path, 6).labels == tuple("abcdef")


# -- a SentencePiece model given by hand --------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["XLMRobertaTokenizer", "MBartTokenizer", "CamembertTokenizer", "PegasusTokenizer",
     "T5Tokenizer", "SeamlessM4TTokenizer"],
)  # fmt: skip
def test_a_model_file_given_by_hand_is_numbered_by_what_lies_beside_it(
    name: str, tmp_path: Path
) -> None:
    kind = library_class(name)
    every_tokenizer.write_files(kind, tmp_path)
    expected = library_rows(name, tmp_path)
    file = tmp_path / kind.vocab_files_names["vocab_file"]
    found = read_vocabulary(file, len(expected))
    assert found.labels == expected
    assert not any("nothing beside it" in note for note in found.notes)


def test_a_model_file_with_nothing_beside_it_is_said_to_be_taken_as_it_is(tmp_path: Path) -> None:
    data = sentencepiece_model()
    (tmp_path / "x.model").write_bytes(data)
    found = read_vocabulary(tmp_path / "x.model", len(pieces_of(data)))
    assert found.labels == tuple(text for text, _ in pieces_of(data))
    assert found.notes[0].startswith("nothing beside it says which tokenizer numbers these pieces")


# -- two files that disagree ------------------------------------------------------------------


def bert(folder: Path, words: list[str], name: str = "tokenizer.json") -> None:
    from tokenizers import Tokenizer, models

    vocab = {word: k for k, word in enumerate(words)}
    Tokenizer(models.WordPiece(vocab, unk_token=words[0])).save(str(folder / name))


WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "ant", "bee", "cat"]


def test_a_tokenizer_that_does_not_fit_is_not_replaced_by_one_that_differs(tmp_path: Path) -> None:
    bert(tmp_path, [*WORDS[:5], "zebra", *WORDS[5:], "more"])
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    found = find_vocabulary(tmp_path, 8)
    assert found.labels is None
    assert "tokenizer.json has 10 entries" in found.source
    assert "vocab.txt fits, but names 3 of the rows otherwise" in found.source
    bert(tmp_path, [*WORDS, "more"])
    found = find_vocabulary(tmp_path, 8)
    assert found.labels == tuple(WORDS)
    assert any("tokenizer.json has 9 entries" in note for note in found.notes)


def test_a_damaged_tokenizer_is_said_where_another_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    found = find_vocabulary(tmp_path, 8)
    assert (found.labels, found.source) == (tuple(WORDS), "vocab.txt")
    assert any("tokenizer.json is not valid JSON" in note for note in found.notes)


def test_files_that_disagree_are_counted(tmp_path: Path) -> None:
    bert(tmp_path, WORDS)
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS[:6], "cat", "bee"]), "utf-8")
    found = find_vocabulary(tmp_path, 8)
    assert found.labels == tuple(WORDS)
    assert found.notes == ("vocab.txt names 2 rows otherwise: tokenizer.json was taken",)


# -- added tokens ------------------------------------------------------------------------------


def test_added_tokens_have_the_numbers_that_the_library_gives_them(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    bert(tmp_path, WORDS)
    data = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True}  # fmt: skip
    data["added_tokens"] = [
        {"id": 20, "content": "<one>", **common}, {"id": 30, "content": "<two>", **common}
    ]  # fmt: skip
    write_json(tmp_path / "tokenizer.json", data)
    library = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert library.convert_ids_to_tokens([8, 9]) == ["<one>", "<two>"]
    found = find_vocabulary(tmp_path, 32)
    assert found.labels is not None
    assert found.labels[:10] == (*WORDS, "<one>", "<two>")
    assert found.padding == tuple(range(10, 32))
    assert any("2 added tokens that the library gives another number" in n for n in found.notes)


def test_added_tokens_of_a_byte_level_vocabulary_are_text(tmp_path: Path) -> None:
    kind = library_class("GPT2Tokenizer")
    every_tokenizer.write_files(kind, tmp_path)
    tokenizer = kind.from_pretrained(tmp_path)
    tokenizer.add_tokens(["ñandú"])
    tokenizer.save_pretrained(tmp_path)
    assert "ñandú" in (find_vocabulary(tmp_path, len(tokenizer)).labels or ())


def test_user_defined_tokens_of_a_gguf_file_are_text(tmp_path: Path) -> None:
    import gguf

    tokens = ["Ġword", "Ã©", "ñandú", "<|im_end|>"]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1, 1, 4, 3])
    writer.add_tensor("output.weight", np.eye(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = find(tmp_path / "m.gguf")
    assert found.head.labels == (" word", "é", "ñandú", "<|im_end|>")


def test_tiktokens_ranks_keep_the_numbers_of_what_is_added(tmp_path: Path) -> None:
    import base64

    from transformers import PreTrainedTokenizerFast

    ranks = [bytes([k]) for k in range(256)] + [b" the", "é".encode()]
    text = "".join(f"{base64.b64encode(t).decode()} {k}\n" for k, t in enumerate(ranks))
    (tmp_path / "tokenizer.model").write_text(text)
    added = {str(k): {"content": f"<|{k}|>", "special": True} for k in (258, 261)}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added}
    write_json(tmp_path / "tokenizer_config.json", settings)
    library = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert len(library) >= 262
    expected = [library.convert_ids_to_tokens(k) for k in range(len(library))]
    found = find_vocabulary(tmp_path, len(library))
    assert found.labels is not None
    assert [from_byte_level(token) for token in expected[:258]] == list(found.labels[:258])
    assert expected[258:] == list(found.labels[258:])


def test_a_class_that_is_not_the_librarys_is_said(tmp_path: Path) -> None:
    data = sentencepiece_model()
    (tmp_path / "tokenizer.model").write_bytes(data)
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "OurOwnTokenizer"})
    found = find_vocabulary(tmp_path, len(pieces_of(data)))
    assert found.labels is not None
    assert "OurOwnTokenizer is not a class of transformers" in found.notes[0]


# -- rows that are no padding ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["T5Tokenizer", "MBartTokenizer", "MBart50Tokenizer"])
def test_sentinels_and_languages_are_no_padding(name: str, tmp_path: Path) -> None:
    kind = library_class(name)
    every_tokenizer.write_files(kind, tmp_path)
    expected = library_rows(name, tmp_path)
    found = find_vocabulary(tmp_path, len(expected) + 3)
    assert found.labels is not None
    assert found.labels[: len(expected)] == expected
    assert found.padding == tuple(range(len(expected), len(expected) + 3))
    last = expected.index("<extra_id_0>") if name == "T5Tokenizer" else expected.index("zh_CN")
    assert last in (found.unused if name == "T5Tokenizer" else found.special)


def test_whispers_times_are_no_padding(tmp_path: Path) -> None:
    tokens = ["a", "b", "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    write_json(tmp_path / "vocab.json", {token: k for k, token in enumerate(tokens)})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer"})
    found = find_vocabulary(tmp_path, 5 + 1501)
    assert found.labels is not None
    assert (found.labels[5], found.labels[6], found.labels[-1]) == (
        "<|0.00|>", "<|0.02|>", "<|30.00|>")  # fmt: skip
    assert found.padding == ()
    assert set(range(5, 1506)) <= set(found.special)


def test_many_languages_of_m2m100_are_no_padding(tmp_path: Path) -> None:
    kind = library_class("M2M100Tokenizer")
    every_tokenizer.write_files(kind, tmp_path)
    tokenizer = kind.from_pretrained(tmp_path)
    first = min(tokenizer.id_to_lang_token)
    found = find_vocabulary(tmp_path, first + 108)
    assert found.labels is not None
    assert found.labels[first : first + 100] == tuple(
        tokenizer.convert_ids_to_tokens(list(range(first, first + 100)))
    )
    assert found.padding == tuple(range(first + 100, first + 108))


def test_a_tokenizer_of_bytes_needs_no_file(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})
    found = find_vocabulary(tmp_path, 384)
    assert found.tokens == library_rows("ByT5Tokenizer", tmp_path)
    assert found.labels is not None
    assert found.labels[3 + ord("a")] == "a"
    assert found.labels[3 + 0xC3] == "<0xC3>"


# -- files of labels -------------------------------------------------------------------------


def labels_of(path: Path, text: str, classes: int = 3) -> tuple[str, ...] | None:
    path.write_bytes(text.encode())
    return read_vocabulary(path, classes).labels


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.csv", "2,bird\n0,ant\n1,bee\n", ("ant", "bee", "bird")),
        ("l.csv", "id,name\n2,bird\n0,ant\n1,bee\n", ("ant", "bee", "bird")),
        ("l.csv", "name,id\nbird,2\nant,0\nbee,1\n", ("ant", "bee", "bird")),
        ("l.csv", 'label\n"ant, red"\nbee\ncat\n', ("ant, red", "bee", "cat")),
        ("l.csv", '0,"ant, red"\n1,"bee ""b"""\n2,cat\n', ("ant, red", 'bee "b"', "cat")),
        ("l.csv", "id;label\r\n0;ant\r\n1;bee\r\n2;cat\r\n", ("ant", "bee", "cat")),
        ("l.csv", "\ufeffid,wnid,label\n1,n1,bee\n0,n0,ant\n2,n2,cat\n", ("ant", "bee", "cat")),
        ("l.tsv", "1\tbee\n0\tant\n2\tcat\n", ("ant", "bee", "cat")),
        ("l.txt", "2,bird\n0,ant\n1,bee\n", ("ant", "bee", "bird")),
        ("l.txt", "0  person\n1  bicycle\n2  car\n", ("person", "bicycle", "car")),
        ("l.txt", "0 stars\n1 star\n2 stars\n", ("0 stars", "1 star", "2 stars")),
        ("tokens.txt", "<blk> 0\nb 2\na 1\n", ("<blk>", "a", "b")),
        ("l.json", '[{"id":2,"name":"bird"},{"id":0,"name":"ant"},{"id":1,"name":"bee"}]',
         ("ant", "bee", "bird")),
        ("l.json", '[{"name":"ant"},{"name":"bee"},{"name":"cat"}]', ("ant", "bee", "cat")),
        ("l.json", '{"categories":[{"id":1,"name":"b"},{"id":0,"name":"a"},{"id":2,"name":"c"}]}',
         ("a", "b", "c")),
    ],
)  # fmt: skip
def test_class_numbers_in_a_file_of_labels_are_believed(
    name: str, text: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert labels_of(tmp_path / name, text) == expected


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("l.csv", "1,ant\n2,bee\n3,cat\n", "numbers from 1 to 3 for 3 classes"),
        ("l.csv", "0,ant\n0,bee\n2,cat\n", "each once"),
        ("l.csv", "background\nant\nbee\ncat\n", "has 4 labels for 3 classes"),
        ("l.csv", "0,ant,red\n1,bee,black\n2,cat,grey\n", "which one has the labels"),
        ("l.csv", "0,ant\n1,bee, striped\n2,cat\n", "rows of 2 and of 3 columns"),
        ("l.csv", "", "has 0 labels for 3 classes"),
        ("l.json", '[{"id":1,"name":"a"},{"id":2,"name":"b"},{"id":3,"name":"c"}]', "0 to 2"),
    ],
)
def test_a_table_that_does_not_say_which_class_is_refused(
    name: str, text: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UncorkError, match=why):
        labels_of(tmp_path / name, text)


@pytest.mark.parametrize(
    "text", ["ant\r\nbee\r\ncat\r\n", "\ufeffant\nbee\ncat", "ant\nbee\ncat\n"]
)
def test_labels_packed_into_a_tflite_file_in_any_line_ends(text: str, tmp_path: Path) -> None:
    from uncork.loading.tflite.file import _vocabulary

    with zipfile.ZipFile(tmp_path / "m.tflite", "w") as archive:
        archive.writestr("labels.txt", text.encode())
    assert _vocabulary(tmp_path / "m.tflite", 3).labels == ("ant", "bee", "cat")


def test_a_count_in_the_metadata_does_not_hide_the_names() -> None:
    found = labels_from_metadata({"classes": "3", "names": "{0: 'a', 1: 'b', 2: 'c'}"}, 3)
    assert (found.labels, found.source) == (("a", "b", "c"), "metadata 'names'")
    differing = labels_from_metadata({"classes": "a,b,d", "names": '["a", "b", "c"]'}, 3)
    assert differing.labels == ("a", "b", "d")
    assert differing.notes == (
        "metadata 'names' names 1 of the classes otherwise: 'classes' was taken",
    )
    assert labels_from_metadata({"classes": "3"}, 3) == Vocabulary(
        None, "metadata 'classes' has 1 entries for 3 classes: not used"
    )


# -- what people see ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "seen"),
    [
        ("", "(empty)"),
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("two words ", "two words␣"),
        ("\u3164", r"\u3164"),
        ("a\u115f", r"a\u115f"),
        ("\u200b", r"\u200b"),
        ("\u202etxt", r"\u202etxt"),
        ("\ue000", r"\ue000"),
        ("\u2800", r"\u2800"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\ufe0f", r"\ufe0f"),
        ("❤\ufe0f", "❤\ufe0f"),
        ("\n", r"\n"),
        ("▁the", "▁the"),
        ("x" * 50, "x" * 19 + "…"),
    ],
)
def test_a_label_that_would_not_show_is_made_visible(label: str, seen: str) -> None:
    assert visible(label, 20) == seen
