"""Audits that several files look at, made once."""

from __future__ import annotations

import pytest

from models import PP_OCR_V4
from uncork import Audit, Head, audit, load


@pytest.fixture(scope="session")
def pp_ocr_v4() -> Head:
    return load(PP_OCR_V4)


@pytest.fixture(scope="session")
def pp_ocr_v4_audit(pp_ocr_v4: Head) -> Audit:
    return audit(pp_ocr_v4, device="cpu")
