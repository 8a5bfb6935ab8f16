"""What a report says in words: the answer in a sentence, and the commands that check it."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from uncork import Ball, Box, LayerNorm, Unbounded
from uncork.report.wording import Asked, answer, checking_commands, on_the_command_line


def counts(lost: int = 0, tied: int = 0, unknown: int = 0) -> dict[str, int]:
    return {"argmaxable": 5, "unargmaxable": lost, "tied": tied, "undecided": unknown}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (counts(), "Every one of the 1,200 classes can be the argmax."),
        (counts(lost=3), "3 of the 1,200 classes can never be the argmax, whatever the input."),
        (counts(tied=1), "can come first, some only in a tie. 1 is equal to another"),
        (counts(unknown=1), "but not every class was decided. 1 is undecided."),
        (
            counts(lost=1, unknown=2),
            "can never be the argmax, whatever the input. 2 are undecided.",
        ),
    ],
)
def test_the_answer_says_no_more_than_was_decided(found: dict[str, int], said: str) -> None:
    assert said in answer(found, 1200, some=False, approximate=False)


def test_screening_alone_never_says_undecided() -> None:
    said = answer(counts(unknown=2), 9, some=True, approximate=True)
    assert "undecided" not in said
    assert "2 more may be unargmaxable" in said
    assert "No class asked about" in said


def test_a_domain_is_named_as_an_option_only_where_text_can_hold_it() -> None:
    assert on_the_command_line(Box(-1, 2)) == "box:-1,2"
    assert on_the_command_line(Ball(3)) == "ball:3"
    assert on_the_command_line(Unbounded()) == "unbounded"
    assert on_the_command_line(LayerNorm(np.ones(4), np.zeros(4))) == "auto"


def test_commands_survive_a_shell_whatever_the_file_is_called() -> None:
    name = "a 'b' $(c).npz"
    asked = Asked(("--weight", "x y"), "@my domain.npz")
    lines = checking_commands(name, "box:100", has_bias=False, asked=asked).splitlines()
    audited, verified = map(shlex.split, lines)
    assert audited == ["uncork", "audit", name, "--weight", "x y", "--drop-bias", "--domain",
                       "@my domain.npz", "--certificates", "proofs.npz"]  # fmt: skip
    assert verified == [
        "uncork", "verify", "proofs.npz", name, "--weight", "x y", "--drop-bias",
    ]  # fmt: skip
