"""What model classes need to be made small, beyond what the names of their settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The library's tables of classes with an output head: MODEL_FOR_…_MAPPING_NAMES.
REGISTRIES = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC", "RNNT", "TDT",
    "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION",
    "TIME_SERIES_CLASSIFICATION", "TEXT_RECOGNITION", "TABLE_RECOGNITION", "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM", "VISUAL_QUESTION_ANSWERING", "CAUSAL_IMAGE_MODELING", "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM", "NEXT_SENTENCE_PREDICTION", "PRETRAINING",
)  # fmt: skip
# Classes with a head that are in none of them.
EXTRA = {
    "CsmDepthDecoderForCausalLM": "csm_depth_decoder_model",
    "BridgeTowerForMaskedLM": "bridgetower",
    "ViltForMaskedLM": "vilt",
    "ViltForTokenClassification": "vilt",
    "MoshiForConditionalGeneration": "moshi",
}

SETTINGS: dict[str, dict[str, Any]] = {}
INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {}
