"""Writes the models of flair's that tests read: `python make_flair.py`, flair 0.15.1.

A tagger with a CRF, a tagger without one and a classifier, beside the inputs that flair itself gave
to the last layer for a sentence (x) and the scores that came out (z). flair asks for an older
transformers than the tests do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flair
import numpy as np
import torch
from flair.data import Dictionary, Sentence
from flair.embeddings import DocumentRNNEmbeddings, OneHotEmbeddings
from flair.models import SequenceTagger, TextClassifier

HERE = Path(__file__).parent / "flair"
WORDS = "the cat sat on a mat today"


def dictionary(*items: str, add_unk: bool = False) -> Any:
    made = Dictionary(add_unk=add_unk)
    for item in items:
        made.add_item(item)
    return made


def write(name: str, model: Any, head: Any) -> None:
    model.save(HERE / f"{name}.pt")
    model.eval()  # as it is once loaded
    seen: list[tuple[Any, Any]] = []
    handle = head.register_forward_hook(lambda m, args, out: seen.append((args[0], out)))
    model.predict(Sentence(WORDS + " unknown"))
    handle.remove()
    x, z = (one.detach().reshape(-1, one.shape[-1]).numpy() for one in seen[0])
    np.savez(HERE / f"{name}.npz", x=x, z=z)


def main() -> None:
    torch.manual_seed(0)
    flair.device = torch.device("cpu")
    HERE.mkdir(exist_ok=True)
    words = OneHotEmbeddings(dictionary(*WORDS.split(), add_unk=True), embedding_length=5)
    tags = [f"tag {n}" for n in range(9)]
    for name, crf in (("tagger", False), ("tagger-crf", True)):
        tagger = SequenceTagger(words, dictionary(*tags), "pos", hidden_size=4, use_crf=crf,
                                use_rnn=True, reproject_embeddings=False)  # fmt: skip
        write(name, tagger, tagger.linear)
    read = DocumentRNNEmbeddings([words], hidden_size=3, bidirectional=True, rnn_type="GRU")
    classifier = TextClassifier(read, label_dictionary=dictionary(*tags), label_type="topic")
    write("classifier", classifier, classifier.decoder)


if __name__ == "__main__":
    main()
