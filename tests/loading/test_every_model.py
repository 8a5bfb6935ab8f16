"""Model classes of transformers: the right head, and every real input inside the found domain.

A sample of the classes, and the settings that make a difference to one; `make models` takes all.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import numpy as np
import pytest
from every_model import compare, expected, listed
from small_models import make, registry, variant
from small_settings import VARIANTS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from uncork.loading import find
from uncork.loading.hugging_face.tied_by_default import TIED_BY_DEFAULT
from uncork.loading.source import Found

# Of each kind of head and of what precedes it, one or two.
SAMPLE = [
    "ASTForAudioClassification", "AlbertForMaskedLM", "BertForTokenClassification",
    "BioGptForCausalLM", "BridgeTowerForMaskedLM", "CanaryForConditionalGeneration",
    "ChameleonForConditionalGeneration", "CsmDepthDecoderForCausalLM", "DeepseekV4ForCausalLM",
    "DeiTForImageClassificationWithTeacher", "Dinov2ForImageClassification",
    "DistilBertForSequenceClassification", "ElectraForPreTraining",
    "Gemma3ForConditionalGeneration", "Gemma3ForSequenceClassification",
    "GlmAsrForConditionalGeneration", "GraniteSpeechForConditionalGeneration", "GteForMaskedLM",
    "GteForTokenClassification", "LlavaForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration", "MobileBertForMaskedLM",
    "ModernVBertForMaskedLM", "MoshiForCausalLM", "MusicFlamingoForConditionalGeneration",
    "NemotronHForCausalLM", "NomicBertForTokenClassification", "ParakeetForCTC",
    "Phi4MultimodalForCausalLM", "Qwen2AudioForConditionalGeneration", "ReformerForMaskedLM",
    "ResNetForImageClassification", "SiglipForImageClassification",
    "SwiftFormerForImageClassification", "T5GemmaForSequenceClassification",
    "ViltForQuestionAnswering", "VoxtralForConditionalGeneration",
    "Wav2Vec2ForSequenceClassification", "WhisperForConditionalGeneration",
    "XLMForSequenceClassification",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_the_head_and_its_domain_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    made = make(name)
    made.save(tmp_path)
    found = compare(made, tmp_path)
    assert found.kind == expected(name), found.why


def test_what_is_listed_is_in_the_registry_and_listed_once() -> None:
    names = [name for names in listed().values() for name in names]
    assert len(names) == len(set(names))
    assert set(listed()) == {"not built", "refused", "no domain"}
    assert set(names) <= set(registry())


@functools.cache
def _saved(name: str, folder: Path) -> Found:
    return find(variant(name).save(folder), domain="auto")


@pytest.fixture(params=VARIANTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def found(name: str, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What is found in the folder that the library saved."""
    return _saved(name, tmp_path_factory.getbasetemp() / name.replace(" ", "-").replace(",", ""))


def test_settings_that_change_the_head_are_understood(
    name: str, found: Found, tmp_path: Path
) -> None:
    made = variant(name)
    result = compare(made, made.save(tmp_path))
    assert result.kind == ("no domain" if not VARIANTS[name].before else "agrees"), result.why
    assert type(found.head.domain).__name__ == (VARIANTS[name].before or "Box")
    assert VARIANTS[name].weight in (found.weight_name, "")


def test_the_domain_is_no_larger_than_it_must_be(name: str, found: Found) -> None:
    hidden = variant(name).hidden
    if not VARIANTS[name].before:
        return
    if VARIANTS[name].before == "Box":  # activations leave room
        outside = ~found.head.domain.contains(hidden - 1.5)
    else:
        # A projection maps a sphere onto a whole ball, of which most points are well inside.
        factor = 20 if VARIANTS[name].before == "Image" else 1.5
        outside = ~found.head.domain.contains(hidden * factor, tolerance=1e-5)
    assert outside.mean() > 0.9


def test_the_live_model_gives_the_same_as_its_folder(name: str, found: Found) -> None:
    live = find(variant(name).model, domain="auto")
    np.testing.assert_array_equal(live.head.weight, found.head.weight)
    np.testing.assert_array_equal(live.head.offsets, found.head.offsets)
    assert live.head.domain == found.head.domain
    assert live.notes == found.notes


def test_whether_heads_are_tied_by_default_is_what_the_library_has() -> None:
    tied = set()
    for kind in CONFIG_MAPPING:
        with contextlib.suppress(Exception):  # one or two have no default
            if CONFIG_MAPPING[kind]().tie_word_embeddings:
                tied.add(kind)
    assert tied | {"gemma4_assistant"} == TIED_BY_DEFAULT
