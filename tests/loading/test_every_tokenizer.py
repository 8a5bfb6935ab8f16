"""Every tokenizer class of transformers that can be made small gives the library's own labels."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import every_tokenizer
import pytest

from uncork.loading.vocabulary import tokenizer_classes as table

_FEWEST = (107, 749, 140_000)  # classes, folders, rows: what the builder reached may only grow


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_class_in_every_way_it_is_saved_names_the_librarys_rows() -> None:
    outcome = every_tokenizer.run()
    assert outcome.not_built == {}
    assert outcome.refused.keys() == every_tokenizer.REFUSED.keys()
    unexpected = {k: v for k, v in outcome.differing.items() if k not in every_tokenizer.DIFFERING}
    assert unexpected == {}
    assert outcome.differing.keys() == every_tokenizer.DIFFERING.keys()
    reached = (len(outcome.built), outcome.folders, outcome.rows)
    assert all(here >= least for here, least in zip(reached, _FEWEST, strict=True)), reached


def _defaults(kind: type) -> dict[str, str]:
    for base in kind.__mro__:
        parameters = inspect.signature(base.__init__).parameters.values()
        found = {
            p.name.removesuffix("_token"): p.default
            for p in parameters
            if p.name.endswith("_token") and isinstance(p.default, str)
        }
        if found:
            return found
    return {}


def test_the_special_tokens_in_the_table_are_the_librarys_defaults() -> None:
    checked = 0
    for name, kind in every_tokenizer.classes().items():
        stated = table.stated_class({"tokenizer_class": name}, {})
        if name in every_tokenizer.NOT_BUILT or not stated.named:
            continue
        defaults = _defaults(kind)
        for key, token in stated.named:
            assert defaults[key] == token, (name, key)
        named = [key for key in defaults if key in table.NAMED]
        assert {key for key, _ in stated.named} >= set(named), name
        assert [k for k, _ in stated.named if k in table.NAMED] == [
            k for k in table.NAMED if k in named
        ], name
        checked += 1
    assert checked >= 95


def test_a_model_type_has_the_class_that_the_library_gives_it() -> None:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES as mapping

    older = {"pegasus_x", "xlm-roberta-xl", "cpm"}  # version 5 has no class of their own for these
    for model_type, name in table._BY_MODEL_TYPE.items():
        stated: Any = mapping.get(model_type)
        assert model_type in older or stated == f"{name}Tokenizer", model_type


def test_language_codes_are_the_librarys() -> None:
    from transformers.models.m2m_100 import tokenization_m2m_100 as m2m
    from transformers.models.mbart import tokenization_mbart as mbart
    from transformers.models.mbart50 import tokenization_mbart50 as mbart50
    from transformers.models.plbart import tokenization_plbart as plbart

    def ours(name: str, **settings: str) -> list[str]:
        return table.languages(table.stated_class({"tokenizer_class": name}, {}), settings)

    assert ours("MBartTokenizer") == mbart.FAIRSEQ_LANGUAGE_CODES
    assert ours("MBart50Tokenizer") == mbart50.FAIRSEQ_LANGUAGE_CODES
    for codes, listed in m2m.FAIRSEQ_LANGUAGE_CODES.items():
        expected = [f"__{code}__" for code in listed]
        assert ours("M2M100Tokenizer", language_codes=codes) == expected
    for codes, listed in plbart.FAIRSEQ_LANGUAGE_CODES.items():
        assert ours("PLBartTokenizer", language_codes=codes) == listed
