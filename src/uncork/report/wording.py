"""What a report says in words: the answer in a sentence, the domain, the command that checks it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from uncork.domain import Domain


def answer(counts: Mapping[str, int], whole: int, some: bool, approximate: bool) -> str:
    """What came of an audit of `whole` classes, which are `some` of the head's or all of them."""
    lost, tied, unknown = counts["unargmaxable"], counts["tied"], counts["undecided"]
    asked = " asked about" if some else ""
    if lost:
        text = (
            f"{lost:,} of the {whole:,} classes{asked} can never be the argmax, whatever the input."
        )
    elif unknown:
        text = f"No class{asked} was proven unreachable, but not every class was decided."
    elif tied:
        text = f"Every one of the {whole:,} classes{asked} can come first, some only in a tie."
    else:
        text = f"Every one of the {whole:,} classes{asked} can be the argmax."
    if tied:
        text += f" {tied:,} {'is' if tied == 1 else 'are'} equal to another: first only in a tie."
    if unknown and approximate:
        text += f" {unknown:,} more may be unargmaxable: screening found no witness."
    elif unknown:
        text += f" {unknown:,} {'is' if unknown == 1 else 'are'} undecided."
    return text


def on_the_command_line(domain: Domain) -> str:
    """What `--domain` takes: the text of a plain domain, `auto` for what only the model holds."""
    return domain.spec() if domain.forms else "auto"


@dataclass(frozen=True)
class Asked:
    """What a command line said about the head and its inputs: without it, the same file may show
    another head."""

    head: tuple[str, ...] = ()  # such as ("--weight", "proj.weight", "--transpose")
    domain: str | None = None
    origin: str = ""  # where the domain comes from, and what of it is assumed


def checking_commands(source: str, domain: str, has_bias: bool, asked: Asked | None = None) -> str:
    """Two lines for a shell: write the proofs, and check them with no solver."""
    asked = asked or Asked()
    drop = () if has_bias else ("--drop-bias",)
    model = shlex.join([source or "model.onnx", *asked.head, *drop])
    # A domain file is short to name and long to spell out.
    inputs = asked.domain if asked.domain and asked.domain.startswith("@") else domain
    return (
        f"uncork audit {model} --domain {shlex.quote(inputs)} --certificates proofs.npz\n"
        f"uncork verify proofs.npz {model}"
    )
