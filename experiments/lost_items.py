"""Which tokens no query finds, on real queries: wordllama's vectors, and a language model's ties.

    python experiments/lost_items.py --out results/lost_items.json

wordllama 0.4.0.post1 has a vector for each of LLaMA's 32,000 tokens, and a text's vector is their
mean. Asked by inner product which token is nearest to a text, 199 tokens never come first. Here the
texts are the sentences that spaCy brings along for its languages, one token each time, and pairs of
tokens: how near the top do the lost ones come? By cosine no token is lost.

SmolLM2-135M loses no token, but 15 rows are equal to another's; they are listed with their groups.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from character_frequency import word_list
from lost_on_data import as_short, lengths, places, print_places
from many_runs import write_json
from shipped_catalogue import CATALOGUE, Shipped, fetch, look, unpack

import uncork
from uncork import Head, UncorkError

TOKENIZER = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"


def named(name: str) -> Shipped:
    return next(one for one in CATALOGUE if one.name == name)


def sentences() -> list[str]:
    """What spaCy has as examples, in all of its languages."""
    try:
        import spacy.lang
    except ImportError:
        raise UncorkError("the sentences are spaCy's: pip install spacy") from None
    found: list[str] = []
    for language in sorted(one.name for one in pkgutil.iter_modules(spacy.lang.__path__)):
        try:
            found += importlib.import_module(f"spacy.lang.{language}.examples").sentences
        except ImportError:  # some languages have none, or want a tokeniser of their own
            continue
    return found


def english_words(packages: Path) -> dict[str, float]:
    """Occurrences of English words in a million."""
    import gzip

    import msgpack

    with gzip.open(word_list("en", packages)) as file:
        _, *steps = msgpack.load(file, raw=False)
    return {word: 10 ** (6 - k / 100) for k, words in enumerate(steps) for word in words}


def kind_of(token: str) -> str:
    """Bytes are LLaMA's last resort for what it has no token for; ▁ marks a word's beginning."""
    if token.startswith("<0x"):
        return "bytes"
    if token.startswith("<"):
        return "control"
    body = token.lstrip("▁")
    if body.isalpha() and token.startswith("▁"):
        return "words and beginnings"
    return "letters inside words" if body.isalpha() else "digits and signs"


def ranks_of(vectors: np.ndarray, queries: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rank by inner product of one wanted item for each query."""
    found = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ vectors.T
        own = np.take_along_axis(scores, wanted[start : start + 256, None], axis=1)
        found.append((scores > own).sum(axis=1) + 1)
    return np.concatenate(found)


def retrieval(packages: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer

    shipped = named("wordllama")
    path = fetch(shipped, packages)
    folder = packages / shipped.folder
    if not (folder / TOKENIZER).is_file():
        unpack(shipped.package, [TOKENIZER], folder)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    _, head = look(shipped, path, "box:100")
    lost = uncork.audit(head, jobs=1, device="cpu").unargmaxable
    vectors = np.asarray(head.weight, dtype=np.float32)
    tokens = [tokenizer.id_to_token(k) for k in range(head.classes)]
    texts = sentences()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    queries = np.stack([vectors[ids].mean(axis=0) for ids in encoded])
    used = np.bincount(np.concatenate([np.array(ids) for ids in encoded]), minlength=head.classes)
    rng = np.random.default_rng(0)
    groups = {
        "lost": lost, "as short": as_short(head, lost),
        "drawn": np.sort(rng.choice(np.setdiff1d(np.arange(head.classes), lost), 2000,
                                    replace=False)),
    }  # fmt: skip
    itself = {}
    for title, ids in groups.items():
        ranks = ranks_of(vectors, vectors[ids], ids)
        itself[title] = {
            "tokens": len(ids), "first": int((ranks == 1).sum()),
            "rank": [int(v) for v in np.quantile(ranks, [0, 0.5, 1])],
        }  # fmt: skip
    frequency = english_words(packages)
    common = sorted(
        (k for k in lost if tokens[k].startswith("▁") and tokens[k][1:] in frequency),
        key=lambda k: -frequency[tokens[k][1:]],
    )
    long = lengths(head)
    return {
        "model": shipped.name, "sentences": len(texts), "tokens_in_them": int(used.sum()),
        "lost_in_them": int(used[lost].sum()),
        "lost_labels": [tokens[k] for k in lost],
        "kinds": {kind: sum(kind_of(tokens[k]) == kind for k in lost)
                  for kind in dict.fromkeys(kind_of(tokens[k]) for k in lost)},
        "common": [[tokens[k], round(frequency[tokens[k][1:]])] for k in common],
        "lengths": [round(float(np.median(part)), 2)
                    for part in (long[lost], np.delete(long, lost))],
        "places": places((queries @ vectors.T).astype(np.float64), head, lost),
        "asked_by_itself": itself,
    }  # fmt: skip


def ties(name: str, packages: Path) -> dict[str, Any]:
    """Rows that are equal value by value, in their groups."""
    _, head = look(named(name), fetch(named(name), packages), "box:100")
    return {"model": name, "groups": equal_rows(head)}


def equal_rows(head: Head) -> list[list[str]]:
    groups: dict[bytes, list[int]] = {}
    for start, rows in head.blocks(4096):
        for k, row in enumerate(rows, start):
            groups.setdefault(row.tobytes() + head.offsets[k].tobytes(), []).append(k)
    return [[head.label(k) for k in ids] for ids in groups.values() if len(ids) > 1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results (.json)")
    parser.add_argument("--packages", type=Path, default=Path("results/shipped_models/packages"))
    asked = parser.parse_args(arguments)
    results = {
        "retrieval": retrieval(asked.packages),
        "ties": [
            ties(name, asked.packages)
            for name in ("SmolLM2 135M", "spaCy Czech, morphology", "spaCy Czech, names")
        ],
    }
    write_json(asked.out, results, lines=True)
    print_places(results["retrieval"]["places"])
    short = {k: v for k, v in results["retrieval"].items() if k not in ("lost_labels", "places")}
    print(json.dumps({**short, "ties": results["ties"]}, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
