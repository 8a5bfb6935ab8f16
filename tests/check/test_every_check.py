"""A made model for each check that breaks its condition, and one that does not."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from made import MIDDLE, SQUARE, circle, result, subject

from uncork import Box, audit
from uncork.check import CHECKS, Given, Outcome, Severity, Subject
from uncork.check.baseline import Baseline
from uncork.check.lists import Frequency
from uncork.core.reading import Reading
from uncork.loading.contents import Vocabulary

FIVE = np.vstack([SQUARE, MIDDLE])
NAMES = ("a", "b", "c", "d")
WORDS = Vocabulary(("a", "b", "c", "d", "e"), "made")
GREEK = ("Α", "α", "Ε", "έ", "Έ", "ε", "Ό", "Ό")
SCRIPTS = tuple("abcdefghijklmnopqrst") + tuple("абвгдежзий")
INSIDE = 0.1 * circle(10)  # inside a circle of radius one: lost


def unsettled() -> Subject:
    """Of which one class was not decided."""
    made = subject(SQUARE)
    made.audit.proofs.verdicts[2] = 0
    made.audit.proofs.reasons[2] = "the time limit of 1 s was reached"
    return made


def kinds(**rows: tuple[int, ...]) -> Vocabulary:
    labels = list("abcd")
    for kind, ids in rows.items():
        for t in ids:
            labels[t] = {"special": "<pad>", "unused": "[unused1]"}.get(kind, f"<row {t}>")
    return Vocabulary(tuple(labels), "made", **rows)


def low_rank() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((12, 2)) @ rng.standard_normal((2, 4))).astype(np.float32)


def frequent(*labels: str) -> Given:
    ranks = {label: place for place, label in enumerate(labels, 1)}
    return Given(frequency=Frequency("list.txt", ranks, dict.fromkeys(labels, 1 / len(labels))))


def known(*ids: int) -> Given:
    return Given(baseline=Baseline("earlier.json", 5, frozenset(ids), None))


def fragile_in_bfloat16() -> Subject:
    """z = 256 + x₁, 256 − x₁ and 256 + x₀/512: class 2 leads by 0.2 at most, and bfloat16 tells
    256 from 258 and nothing between."""
    weight = np.array([[0, 1], [0, -1], [2.0**-9, 0]], dtype=ml_dtypes.bfloat16)
    return subject(weight, np.full(3, 256, dtype=ml_dtypes.bfloat16))


# Check → a subject that breaks its condition, one that does not.
CASES: dict[str, tuple[Callable[[], Subject], Callable[[], Subject]]] = {
    "source": (
        lambda: subject(SQUARE, reading=Reading("weight", doubts=("rows or columns?",))),
        lambda: subject(SQUARE),
    ),
    "lost": (lambda: subject(FIVE, vocabulary=WORDS), lambda: subject(SQUARE)),
    "lost-scripts": (
        lambda: subject(np.vstack([circle(20), INSIDE]), labels=SCRIPTS),
        lambda: subject(circle(30), labels=SCRIPTS),
    ),
    "lost-frequent": (
        lambda: subject(FIVE, vocabulary=WORDS, given=frequent("e", "a")),
        lambda: subject(FIVE, vocabulary=WORDS, given=frequent("a", "b")),
    ),
    "tied": (lambda: subject(np.vstack([SQUARE, SQUARE[:1]])), lambda: subject(SQUARE)),
    "undecided": (unsettled, lambda: subject(SQUARE)),
    "padding": (
        lambda: subject(SQUARE, vocabulary=kinds(padding=(3,))),
        lambda: subject(SQUARE, [0, 0, 0, -900], vocabulary=kinds(padding=(3,))),
    ),
    "reserved": (
        lambda: subject(SQUARE, vocabulary=kinds(unused=(1, 2))),
        lambda: subject(SQUARE, [0, -900, 0, 0], vocabulary=kinds(unused=(1,))),
    ),
    "special": (
        lambda: subject(SQUARE, vocabulary=kinds(special=(0,))),
        lambda: subject(SQUARE, [-900, 0, 0, 0], vocabulary=kinds(special=(0,))),
    ),
    "forbidden": (
        lambda: subject(SQUARE, given=Given(must_not=(1,))),
        lambda: subject(FIVE, given=Given(must_not=(4,))),
    ),
    "precision": (fragile_in_bfloat16, lambda: subject(SQUARE.astype(ml_dtypes.bfloat16))),
    "real-domain": (
        lambda: subject(SQUARE, shown=Box(0, np.inf)),  # what leaves a ReLU
        lambda: subject(SQUARE, shown=Box(1)),
    ),
    "label-count": (
        lambda: subject(SQUARE, given=Given(labels_refused="there are 3 labels for 4 classes")),
        lambda: subject(SQUARE, labels=NAMES),
    ),
    "label-repeated": (
        lambda: subject(SQUARE, labels=("a", "b", "a", "c")),
        lambda: subject(SQUARE, labels=NAMES),
    ),
    "label-missing": (
        lambda: subject(circle(8), labels=GREEK),
        lambda: subject(circle(8), labels=(*GREEK[:-1], "ό")),
    ),
    "label-text": (
        lambda: subject(circle(5), labels=("", "\x07", "caf\ufffd", "Ã©", "é")),
        lambda: subject(SQUARE, labels=("é", "\n", "œuvre", "мир")),
    ),
    "label-forms": (
        lambda: subject(SQUARE, labels=("é", "e\u0301", "郎", "\uf92c")),
        lambda: subject(SQUARE, labels=("é", "e", "Ａ", "A")),
    ),
    "row-zero": (
        lambda: subject(np.vstack([SQUARE, np.zeros((1, 2), np.float32)])),
        lambda: subject(SQUARE),
    ),
    "row-equal": (
        lambda: subject(np.vstack([SQUARE, SQUARE[:1]]), [0, 0, 0, 0, 1]),
        lambda: subject(SQUARE),
    ),
    "row-near": (
        lambda: subject(np.vstack([SQUARE, SQUARE[:1] * np.float32(1 + 2**-10)])),
        lambda: subject(SQUARE),
    ),
    "row-length": (
        lambda: subject(np.vstack([circle(20), [[50, 0]]]).astype(np.float32)),
        lambda: subject(circle(20)),
    ),
    "row-rank": (lambda: subject(low_rank()), lambda: subject(circle(12))),
    "codes": (
        lambda: subject(SQUARE, reading=Reading("w", folded=("dequantised: int8 codes times s",))),
        lambda: subject(SQUARE),
    ),
    "regressions": (lambda: subject(FIVE, given=known()), lambda: subject(FIVE, given=known(4))),
}  # fmt: skip


def test_every_check_has_a_model_that_breaks_it() -> None:
    assert list(CASES) == [check.name for check in CHECKS]


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_breaks_the_condition_warns_or_fails(name: str) -> None:
    found = result(name, CASES[name][0]())
    assert found.outcome.value == found.check.severity.value
    assert found.why
    assert "\n" not in found.why


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_keeps_the_condition_passes(name: str) -> None:
    found = result(name, CASES[name][1]())
    assert (found.outcome, found.classes) == (Outcome.PASS, ())


BARE = subject(SQUARE)


@pytest.mark.parametrize(
    "name",
    ["lost-scripts", "lost-frequent", "padding", "reserved", "special", "forbidden", "real-domain",
     "label-count", "label-repeated", "label-missing", "label-text", "label-forms", "row-length",
     "regressions"],
)  # fmt: skip
def test_what_cannot_be_looked_at_does_not_apply(name: str) -> None:
    assert result(name, BARE).outcome is Outcome.NOT_APPLICABLE


def ids(name: str) -> list[int]:
    return [one.class_id for one in result(name, CASES[name][0]()).classes]


def test_the_classes_concerned_are_named() -> None:
    assert ids("lost") == [4]
    assert ids("lost-scripts") == list(range(20, 30))
    assert ids("tied") == [0, 4]
    assert ids("undecided") == [2]
    assert ids("padding") == [3]
    assert ids("precision") == [2]
    assert ids("label-repeated") == [2]
    assert ids("label-text") == [0, 1, 2, 3]
    assert ids("row-length") == [20]


def test_a_greek_dictionary_with_one_letter_twice_and_its_neighbour_never() -> None:
    found = result("label-missing", CASES["label-missing"][0]())
    assert found.why == "the labels have Ό (U+038C) twice and ό (U+03CC) never"
    assert found.classes[0].class_id == 7


def test_a_gap_in_the_order_of_characters_shows_which_one_was_meant() -> None:
    found = result("label-missing", subject(circle(5), labels=("一", "丁", "丁", "丂", "七")))
    assert found.outcome is Outcome.PASS  # nothing is missing between
    found = result("label-missing", subject(circle(6), labels=("b", "a", "b", "b", "d", "x")))
    assert found.classes[0].note == "perhaps c (U+0063) was meant"


def test_a_class_that_may_be_said_by_mistake_comes_with_witness_and_probability() -> None:
    found = result("padding", CASES["padding"][0]())
    assert found.why == (
        "1 of 1 rows past the vocabulary's end can be first, with a probability of up to 100% "
        "(class 3 <row 3>)"
    )
    assert found.classes[0].note.startswith("leads by ")


def test_tokens_that_end_a_text_may_be_said() -> None:
    for label in ("</s>", "[SEP]", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<blank>"):
        made = Vocabulary(("a", "b", "c", label), "made", special=(3,))
        assert result("special", subject(SQUARE, vocabulary=made)).outcome is not Outcome.WARN
    for label in ("<s>", "[PAD]", "<unk>", "<|im_start|>", "[MASK]"):
        made = Vocabulary(("a", "b", "c", label), "made", special=(3,))
        assert result("special", subject(SQUARE, vocabulary=made)).outcome is Outcome.WARN


def test_an_undecided_padding_row_is_no_pass() -> None:
    made = subject(SQUARE, vocabulary=kinds(padding=(3,)))
    made.audit.proofs.verdicts[3] = 0
    assert result("padding", made).outcome is Outcome.FAIL


def test_padding_is_not_an_ordinary_class() -> None:
    labels = Vocabulary(("a", "b", "c", "d", "<row 4>"), "made", padding=(4,))
    assert result("lost", subject(FIVE, vocabulary=labels)).outcome is Outcome.PASS


def test_lost_classes_are_counted_by_script() -> None:
    weight = np.vstack([circle(20), INSIDE])
    assert "(10 CYRILLIC)" in result("lost", subject(weight, labels=SCRIPTS)).why
    found = result("lost-scripts", subject(weight, labels=SCRIPTS))
    assert found.why == "more than 5% of a script is lost: CYRILLIC 10 of 10"


def test_frequency_gives_rank_and_share() -> None:
    found = result("lost-frequent", CASES["lost-frequent"][0]())
    assert "50.000% of what was counted" in found.why
    assert found.classes[0].note == "number 1 by frequency"
    assert result("lost-frequent", CASES["lost-frequent"][0](), top=0).outcome is Outcome.PASS


def test_no_condition_is_broken_by_classes_that_are_allowed() -> None:
    made = subject(FIVE, vocabulary=WORDS)
    assert result("lost", made, allow=[4]).outcome is Outcome.PASS
    assert result("lost", made, allow=["e"]).outcome is Outcome.PASS
    assert result("lost", made, allow=["a", 3]).outcome is Outcome.FAIL
    assert result("lost", made, most=1).outcome is Outcome.PASS


def test_a_byte_level_vocabulary_may_hold_controls_and_halves_of_characters() -> None:
    made = Vocabulary(("\x07", "<0xE2>", "Ã©", "a"), "made", tokens=("ć", "â", "Ã©", "a"))
    assert result("label-text", subject(SQUARE, vocabulary=made)).outcome is Outcome.PASS


def test_a_rank_that_rounding_hides_is_seen() -> None:
    """A product of narrow matrices, once stored in float32, has full rank by its last bits."""
    weight = low_rank()
    assert np.linalg.matrix_rank(weight.astype(np.float64) - weight.mean(axis=0)) == 4
    assert "rank 2 of 4" in result("row-rank", subject(weight)).why


def test_the_real_domain_is_not_asked_for_twice() -> None:
    made = subject(SQUARE, domain=Box(1), shown=Box(1))
    assert result("real-domain", made).outcome is Outcome.NOT_APPLICABLE


def test_what_is_lost_on_the_real_domain_is_proven_there() -> None:
    made = CASES["real-domain"][0]()
    found = result("real-domain", made)
    lost = audit(made.head, domain=Box(0, np.inf), device="cpu", jobs=1).unargmaxable
    assert [one.class_id for one in found.classes] == lost.tolist()


def test_severities_are_only_warn_and_fail_by_default() -> None:
    assert {check.severity for check in CHECKS} == {Severity.WARN, Severity.FAIL}
    for check in CHECKS:
        assert check.asks.endswith(".")
        assert check.advice.endswith(".")
