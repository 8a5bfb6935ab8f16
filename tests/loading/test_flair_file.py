"""flair's models: files that flair 0.15.1 wrote, held to the scores it computed with them."""

from __future__ import annotations

import sys
import tracemalloc
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from uncork import UncorkError
from uncork.loading import find, load

MADE = Path(__file__).parent / "made" / "flair"
TAGS = tuple(f"tag {n}" for n in range(9))
MODELS = {  # the head's weight, its labels, the layer that precedes it
    "tagger": ("linear.weight", TAGS, "LSTM (rnn)"),
    "tagger-crf": ("linear.weight", (*TAGS, "<START>", "<STOP>"), "LSTM (rnn)"),
    "classifier": ("decoder.weight", TAGS, "GRU (embeddings.rnn)"),
}


@pytest.mark.parametrize("name", MODELS)
def test_heads_labels_and_ranges_are_those_of_flair(name: str) -> None:
    found = find(MADE / f"{name}.pt", domain="auto")
    weight, labels, precedes = MODELS[name]
    assert found.weight_name == weight
    assert found.head.labels == labels
    with np.load(MADE / f"{name}.npz") as expected:
        inputs, scores = expected["x"].astype(np.float64), expected["z"]
    own = inputs @ np.asarray(found.head.weight, np.float64).T + np.asarray(found.head.bias)
    np.testing.assert_allclose(own, scores, atol=1e-5)
    assert precedes in found.domain_from
    assert all(found.head.domain.contains(row) for row in inputs)
    assert found.head.reading is not None
    assert any("CRF" in one for one in found.head.reading.doubts) == (name == "tagger-crf")


def test_a_head_that_is_named_has_the_same_doubts() -> None:
    path = MADE / "tagger-crf.pt"
    by_itself, named = find(path), find(path, weight="linear.weight")
    assert by_itself.head.reading is not None
    assert named.head.reading is not None
    assert named.head.reading.doubts == by_itself.head.reading.doubts
    assert named.head.bias is not None
    assert find(path, weight="rnn.weight_hh_l0").head.reading.doubts == ()  # type: ignore[union-attr]


class _Dictionary:
    """As flair pickles it."""

    def __init__(self, items: list[Any]) -> None:
        self.idx2item = items


def saved(path: Path, items: list[Any], monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
    module = types.ModuleType("flair.data")
    kind = type("Dictionary", (_Dictionary,), {"__module__": "flair.data"})
    module.Dictionary = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flair", types.ModuleType("flair"))
    monkeypatch.setitem(sys.modules, "flair.data", module)
    state = torch.nn.ModuleDict({"decoder": torch.nn.Linear(4, 3)}).state_dict()
    torch.save({"state_dict": state, "label_dictionary": kind(items), **more}, path)


def test_labels_that_do_not_fit_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "m.pt", [b"a", b"b"], monkeypatch)
    assert load(tmp_path / "m.pt").labels is None
    saved(tmp_path / "m.pt", [b"a", b"b", b"\xff"], monkeypatch, multi_label=True)
    head = load(tmp_path / "m.pt")
    assert head.labels == ("a", "b", "\\xff")
    assert head.reading is not None
    assert any("several labels at once" in note for note in head.reading.notes)


def test_a_dictionary_in_a_hostile_file_does_not_help_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Calls:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, ("true",)

    saved(tmp_path / "m.pt", [b"a", b"b", b"c"], monkeypatch, more=Calls())
    with pytest.raises(UncorkError, match="do not trust this file"):
        load(tmp_path / "m.pt")


def test_labels_that_would_be_endless_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested: Any = ()
    for _ in range(24):
        nested = (nested, nested)
    saved(tmp_path / "m.pt", [b"a", "b", nested], monkeypatch)
    tracemalloc.start()
    found = find(tmp_path / "m.pt", weight="decoder.weight")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20
    assert found.head.labels is None
    saved(tmp_path / "m.pt", [b"a", nested, b"b", b"c"], monkeypatch)
    assert load(tmp_path / "m.pt").labels is None
    saved(tmp_path / "m.pt", [b"a", "b", b""], monkeypatch)
    assert load(tmp_path / "m.pt").labels == ("a", "b", "")


def test_an_entity_linker_chooses_among_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "m.pt", [b"a", b"b", b"c"], monkeypatch, candidates={"Ada": ["a", "c"]})
    head = load(tmp_path / "m.pt")
    assert head.reading is not None
    assert any("candidates" in one for one in head.reading.doubts)
    saved(tmp_path / "m.pt", [b"a", b"b", b"c"], monkeypatch, candidates=None)
    head = load(tmp_path / "m.pt")
    assert head.reading is not None
    assert not head.reading.doubts
