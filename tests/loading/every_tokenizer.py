"""Every tokenizer class of transformers, made small and saved; its rows held to the library's own.

`python tests/loading/every_tokenizer.py` compares all of them, in every way people have their
files, and prints a line for each that disagrees.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import json
import pkgutil
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.loading.vocabulary import find_vocabulary
from uncork.loading.vocabulary.token_text import from_byte_level

TEXT = [
    "the quick brown fox jumps over the lazy dog, 1234567890 times!",
    "Привет, мир! Это простая строка для обучения.",
    "东西南北中 日本語のテキスト 한국어 문장",
    "naïve café — “quotes” … emoji 🦊🦊 and tabs",
] * 5
ADDED = ["ñandú", "<|new|>", "two words"]

# Classes that are not built, and why. May only shrink.
NOT_BUILT = {
    "RagTokenizer": "two tokenizers in two folders",
    "Pop2PianoTokenizer": "needs pretty_midi; its tokens are notes",
    "FastSpeech2ConformerTokenizer": "needs g2p-en; its model has no head",
    "Wav2Vec2PhonemeCTCTokenizer": "needs phonemizer and espeak",
    "MistralCommonBackend": "needs mistral-common",
}
# Ways that give no labels, and why. May only shrink.
REFUSED = {
    "CanineTokenizer": "a row for every character there is: its models have no such head",
    "DiaTokenizer": "the text that goes in; the head chooses among sounds",
    "EsmcTokenizer": "no file: its tokens are in its code, and saved with the model",
    "MyT5Tokenizer": "bytes that its code rewrites",
    "MLukeTokenizer": "versions 4 and 5 of transformers number the same file differently",
}
# Rows that differ, and why. May only shrink.
DIFFERING = {
    ("NllbTokenizer", "tokenizer.json alone"): "the library appends 202 language codes unasked",
    ("PegasusTokenizer", "saved, slow files"): "version 5 swaps the two masks; no model has that",
    ("PegasusTokenizer", "added_tokens_decoder"): "the same",
    ("LasrTokenizer", "special_tokens_map.json"): "a class younger than files of that kind",
    ("CpmAntTokenizer", "special_tokens_map.json"): "adds names of tokens that it has replaced",
    ("BartphoTokenizer", "special_tokens_map.json"): "leaves a number out where a token is twice",
}
SETTINGS = {
    "FSMTTokenizer": {"langs": ["en", "de"]},
    "MarkupLMTokenizer": {"tags_dict": {"a": 0, "b": 1}},
}


@functools.cache
def classes() -> dict[str, type]:
    """Every tokenizer class that transformers' model folders define, by name."""
    import transformers.models
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    found: dict[str, type] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = Path(transformers.models.__path__[0]) / package.name
        for file in sorted(folder.glob("tokenization_*.py")):
            try:
                module = importlib.import_module(f"transformers.models.{package.name}.{file.stem}")
            except (ImportError, NameError):  # pop2piano without pretty_midi
                continue
            for name, value in vars(module).items():
                if (
                    isinstance(value, type)
                    and issubclass(value, PreTrainedTokenizerBase)
                    and value.__module__ == module.__name__
                ):
                    found[name] = value
    return found


# -- small vocabularies --------------------------------------------------------------------------

_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "pad_piece": "<pad>",
           "bos_piece": "[CLS]", "eos_piece": "[SEP]", "control_symbols": ["[MASK]"]}  # fmt: skip
_LLAMA = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 500}
_GEMMA = {**_LLAMA, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
_SW3 = {**_GEMMA, "user_defined_symbols": ["<|endoftext|>"]}
_BPE = {"model_type": "bpe"}
PIECES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("T5Tokenizer", "UdopTokenizer", "LasrTokenizer", "VideoPrismTokenizer",
                     "SiglipTokenizer", "ParakeetTokenizer", "PegasusTokenizer"), _T5),
    **dict.fromkeys(("AlbertTokenizer", "FNetTokenizer", "BigBirdTokenizer", "RemBertTokenizer",
                     "DebertaV2Tokenizer"), _ALBERT),
    **dict.fromkeys(("LlamaTokenizer", "CodeLlamaTokenizer"), _LLAMA),
    **dict.fromkeys(("GemmaTokenizer", "Siglip2Tokenizer", "Tipsv2Tokenizer"), _GEMMA),
    "GPTSw3Tokenizer": _SW3,
    **dict.fromkeys(("NllbTokenizer", "SeamlessM4TTokenizer", "ReformerTokenizer"), _BPE),
    "SpeechT5Tokenizer": {"model_type": "char"},
}  # fmt: skip


@functools.cache
def _trained(options: str) -> bytes:
    import sentencepiece

    stream = io.BytesIO()
    given = {"vocab_size": 160, "hard_vocab_limit": False, **json.loads(options)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=stream, minloglevel=2, num_threads=1, **given
    )
    return stream.getvalue()


def sentencepiece_model(name: str = "") -> bytes:
    """A SentencePiece model such as that class has: its special pieces in its order."""
    return _trained(json.dumps(PIECES.get(name, {})))


def special_tokens(kind: type) -> list[str]:
    """The special tokens that a class has unless told otherwise, in the order of its arguments."""
    found: list[str] = []
    for base in kind.__mro__:  # DistilBERT's says it in its parent alone
        for parameter in inspect.signature(base.__init__).parameters.values():
            if parameter.name.endswith("_token") and isinstance(parameter.default, str):
                found.append(parameter.default)
        if found:
            break
    return list(dict.fromkeys(text for text in found if text))


@functools.cache
def _byte_level() -> tuple[tuple[str, ...], str]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.model.save(folder)
        merges = (Path(folder) / "merges.txt").read_text("utf-8")
    return tuple(tokenizer.id_to_token(k) for k in range(tokenizer.get_vocab_size())), merges


WORDS = ("the", "quick", "fox", "##ing", "мир", "日", "naïve", "ñ", "a", "b", "c", "'")
_COUNTED = ("BertweetTokenizer", "PhobertTokenizer", "BartphoTokenizer")


def write_files(kind: type, folder: Path) -> None:
    """The vocabulary files of that class alone, and which class they are for."""
    special = special_tokens(kind)
    tokens, merges = _byte_level()
    for file in kind.vocab_files_names.values():  # type: ignore[attr-defined]
        path = folder / file
        if file.endswith((".model", ".spm")):
            path.write_bytes(sentencepiece_model(kind.__name__))
        elif file in ("vocab.json", "vocab-src.json", "vocab-tgt.json", "target_vocab.json"):
            listed = [*dict.fromkeys([*special, *tokens])]
            path.write_text(json.dumps({token: k for k, token in enumerate(listed)}), "utf-8")
        elif file == "merges.txt":
            path.write_text(merges, "utf-8")
        elif file == "bpe.codes":
            path.write_text("t h 5\n", "utf-8")
        elif file == "dict.txt" or (file == "vocab.txt" and kind.__name__ in _COUNTED):
            path.write_text("".join(f"{word} 7\n" for word in WORDS), "utf-8")
        elif file in ("vocab.txt", "prophetnet.tokenizer"):
            listed = [*dict.fromkeys([*special, *WORDS])]
            path.write_text("".join(f"{word}\n" for word in listed), "utf-8")
        elif file == "entity_vocab.json":
            names = ["[MASK]", "[PAD]", "[UNK]", "[MASK2]"]
            path.write_text(json.dumps({name: k for k, name in enumerate(names)}), "utf-8")
        elif file == "emoji.json":
            path.write_text(json.dumps({"emoji": {}, "emoji_inv": {}}), "utf-8")
        elif file in ("word_shape.json", "word_pronunciation.json"):
            path.write_text(json.dumps({word: k for k, word in enumerate(WORDS)}), "utf-8")
        elif file == "byte_maps.json":
            data = {"decompose_map": {}, "merge_map": {}}
            path.write_text(json.dumps(data), "utf-8")
        elif file == "normalizer.json":
            path.write_text("{}", "utf-8")
    if set(kind.vocab_files_names) == {"tokenizer_file"} and (  # type: ignore[attr-defined]
        kind.__name__ != "EsmcTokenizer"  # it has its tokens in its code
    ):
        _tokenizer_json(kind, folder / "tokenizer.json")
    settings = SETTINGS.get(kind.__name__.removesuffix("Fast"), {})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind.__name__, **settings})


def _tokenizer_json(kind: type, path: Path) -> None:
    """The one file of classes that have no other."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = special_tokens(kind)
    if kind.model.__name__ == "Unigram":  # type: ignore[attr-defined]
        listed = [*special, "▁the", "▁", "a", "日"]
        tokenizer = Tokenizer(models.Unigram([(text, -1.0) for text in listed], unk_id=0))
    else:
        listed = [*dict.fromkeys([*special, "▁the", "▁", "a", "日"])]
        vocab = {text: k for k, text in enumerate(listed)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(path))


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False), "utf-8")


# -- the ways people have their files ----------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A folder of tokenizer files, and what the library makes of it (None: it does not load)."""

    name: str
    folder: Path
    tokenizer: Any
    why: str = ""


def _loaded(kind: type, name: str, folder: Path) -> Way:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Way(name, folder, kind.from_pretrained(folder))  # type: ignore[attr-defined]
    except Exception as error:
        return Way(name, folder, None, f"{type(error).__name__}: {str(error)[:150]}")


def ways(kind: type, root: Path) -> Iterator[Way]:
    """The folders that people have of this class, each as the library loads it back."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    files = root / "files"
    files.mkdir(parents=True)
    write_files(kind, files)
    first = _loaded(kind, "files", files)
    yield first
    if first.tokenizer is None:
        return
    types = [t for t, c in TOKENIZER_MAPPING_NAMES.items() if c == kind.__name__]
    if types:
        typed = root / "model type"
        shutil.copytree(files, typed)
        write_json(typed / "tokenizer_config.json", SETTINGS.get(kind.__name__, {}))
        write_json(typed / "config.json", {"model_type": types[0]})
        yield _loaded(kind, "model type", typed)
    size = _size(first.tokenizer)
    legacy = root / "added_tokens.json"
    shutil.copytree(files, legacy)
    write_json(legacy / "added_tokens.json", {token: size + k for k, token in enumerate(ADDED)})
    yield _loaded(kind, "added_tokens.json", legacy)
    if name_of_files(kind):
        yield _loaded(kind, "special_tokens_map.json", _older(files, root, size))
        yield _loaded(kind, "added_tokens_decoder", _version_4(kind, files, root, size))
    saved = root / "saved"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first.tokenizer.add_tokens(ADDED[:1])
        first.tokenizer.add_special_tokens({"extra_special_tokens": ADDED[1:2]})
        try:
            first.tokenizer.save_pretrained(saved)
        except Exception as error:
            yield Way("saved", saved, None, f"{type(error).__name__}: {str(error)[:150]}")
            return
    yield _loaded(kind, "saved", saved)
    if not name_of_files(kind):
        return
    slow = root / "saved, slow files"
    shutil.copytree(saved, slow)
    (slow / "tokenizer.json").unlink(missing_ok=True)
    for file in files.iterdir():
        if not (slow / file.name).exists():
            shutil.copy(file, slow)
    yield _loaded(kind, "saved, slow files", slow)
    if (saved / "tokenizer.json").exists():
        alone = root / "tokenizer.json alone"
        alone.mkdir()
        shutil.copy(saved / "tokenizer.json", alone)
        settings = SETTINGS.get(kind.__name__.removesuffix("Fast"), {})
        write_json(alone / "tokenizer_config.json", {"tokenizer_class": kind.__name__, **settings})
        yield _loaded(kind, "tokenizer.json alone", alone)


def name_of_files(kind: type) -> set[str]:
    """The files of a class other than tokenizer.json."""
    return set(kind.vocab_files_names) - {"tokenizer_file"}  # type: ignore[attr-defined]


def _older(files: Path, root: Path, size: int) -> Path:
    """As versions 2 and 3 saved: what was added in one file, which are special in another."""
    folder = root / "special_tokens_map.json"
    shutil.copytree(files, folder)
    write_json(folder / "added_tokens.json", {"<|new|>": size, "plain": size + 1, "[X]": size + 2})
    special = {"pad_token": {"content": "[X]", "lstrip": False, "rstrip": False,
                             "normalized": False, "single_word": False},
               "additional_special_tokens": ["<|new|>", "<|unlisted|>"]}  # fmt: skip
    write_json(folder / "special_tokens_map.json", special)
    return folder


def _version_4(kind: type, files: Path, root: Path, size: int) -> Path:
    """As version 4 saved: what was added in tokenizer_config.json, with numbers."""
    folder = root / "added_tokens_decoder"
    shutil.copytree(files, folder)
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {
        str(size + k): {"content": token, "special": k != 1, **flags}
        for k, token in enumerate(("<|new|>", "ñandú", "[X]"))
    }
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    further = {"added_tokens_decoder": added, "additional_special_tokens": ["<|new|>"],
               "mask_token": "[X]"}  # fmt: skip
    write_json(folder / "tokenizer_config.json", {**settings, **further})
    return folder


def _numbers(tokenizer: Any) -> set[int]:
    found = {int(k) for k in tokenizer.get_vocab().values() if k is not None}
    found |= set(getattr(tokenizer, "id_to_lang_token", {}))
    return found | {int(k) for k in tokenizer.added_tokens_decoder}


def _size(tokenizer: Any) -> int:
    return max(_numbers(tokenizer)) + 1


@dataclass(frozen=True)
class Compared:
    """One folder: how many rows were compared, and which differ (row, ours, the library's)."""

    rows: int
    wrong: list[tuple[int, str, str]]
    source: str
    notes: tuple[str, ...]
    refused: bool


def compare(way: Way) -> Compared:
    """Every row of the library's vocabulary, against ours."""
    numbers = _numbers(way.tokenizer)
    count = max(numbers) + 1
    found = find_vocabulary(way.folder, count)
    if found.labels is None:
        return Compared(0, [], found.source, found.notes, True)
    ours = found.labels if found.tokens is None else found.tokens
    wrong = []
    added = way.tokenizer.added_tokens_decoder
    for row in range(count):
        if row not in numbers:
            if ours[row] != f"<row {row}>":
                wrong.append((row, ours[row], "(none)"))
            continue
        expected = way.tokenizer.convert_ids_to_tokens(row)
        if row in added:  # the library shows these as its normaliser leaves them
            expected = str(added[row])
        if ours[row] != expected and not (
            found.tokens is None and found.labels[row] == from_byte_level(str(expected))
            and found.source in ("tokenizer.model", "tekken.json")
        ):  # fmt: skip
            wrong.append((row, ours[row], str(expected)))
    return Compared(count, wrong, found.source, found.notes, False)


@dataclass
class Outcome:
    """All classes: what was built and compared, and what did not come out as the tables say."""

    built: list[str]
    folders: int
    rows: int
    refused: dict[str, str]
    differing: dict[tuple[str, str], str]
    not_built: dict[str, str]


def run(only: set[str] | None = None) -> Outcome:
    """Build every class in every way, and compare."""
    outcome = Outcome([], 0, 0, {}, {}, {})
    for name, kind in classes().items():
        if name in NOT_BUILT or (only and name not in only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for way in ways(kind, Path(folder)):
                if way.tokenizer is None:
                    if way.name == "files":
                        outcome.not_built[name] = way.why
                    continue
                if way.name == "files":
                    outcome.built.append(name)
                result = compare(way)
                if result.refused:
                    outcome.refused[name] = result.source
                    if name == "CanineTokenizer":
                        break  # a million rows each time
                    continue
                outcome.folders += 1
                outcome.rows += result.rows
                if result.wrong:
                    rows = f"{len(result.wrong)} of {result.rows} rows, from {result.source}"
                    outcome.differing[name, way.name] = f"{rows}: {result.wrong[:3]}"
    return outcome


def main() -> int:
    import logging

    logging.disable(logging.CRITICAL)
    outcome = run(set(sys.argv[1:]))
    for name, why in outcome.not_built.items():
        print(f"{name}: not built: {why}")
    for name, why in outcome.refused.items():
        print(f"{name}: no labels: {why or 'no file'} ({REFUSED.get(name, 'NOT EXPECTED')})")
    for key, what in outcome.differing.items():
        print(f"{key[0]}, {key[1]}: {what} ({DIFFERING.get(key, 'NOT EXPECTED')})")
    print(
        f"{len(outcome.built)} classes built, {outcome.folders} folders, {outcome.rows:,} rows "
        f"compared; {len(outcome.refused)} without labels, {len(outcome.differing)} differing"
    )
    return int(not outcome.refused.keys() <= REFUSED.keys() or
               not outcome.differing.keys() <= DIFFERING.keys())  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
