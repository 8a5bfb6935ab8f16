"""What a report says in words: the answer in a sentence, the domain, the command that checks it.

Items that are compared by another metric than inner products are first at their own vectors, by a
theorem: what is said of them is another text, never the one about dot products.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from uncork.auditing.own_rows import WHY
from uncork.core.items import METRICS
from uncork.domain import Domain

FORMULAS = {
    "cosine": "w·x / (‖w‖ ‖x‖), the cosine of an item w and the query x",
    "euclidean": "−‖w − x‖, so that the item w nearest to the query x comes first",
}
_SAME = {
    "cosine": "Its vector is a positive multiple of another's, exactly: by cosine they are level "
    "at every query, and it is first only together with it.",
    "euclidean": "Its vector equals another's, value for value: they are level at every query, "
    "and it is first only together with it.",
}
_OWN = {
    "cosine": "First when the query is its own vector: no other direction has a cosine of one "
    "with it.",
    "euclidean": "First when the query is its own vector: it is at distance zero, and no other "
    "item is.",
}
MEANINGS = {
    "argmaxable": "Has a <b>witness</b>: an input that puts it strictly first. Its <b>margin</b> "
    "is its proven lead there.",
    "unargmaxable": "A <b>mixture</b> of other classes has a weighted mean at or above it at every "
    "input, so one of them always is. Its <b>slack</b> is a proven lower bound on how far behind "
    "that mean it stays.",
    "tied": "Equal, weight for weight, to another class: first only together with it.",
    "undecided": "Nothing is claimed.",
}


def meanings(metric: str) -> dict[str, str]:
    """What each verdict says and how it is proven, as markup of ours."""
    if metric == "inner":
        return MEANINGS
    never = f"There is none: by {METRICS[metric]} {WHY[metric]}."
    return {**MEANINGS, "argmaxable": _OWN[metric], "unargmaxable": never, "tied": _SAME[metric]}


def about_items(metric: str) -> dict[str, str] | None:
    """The same as plain text, for the page's script; None where its own text is the right one."""
    if metric == "inner":
        return None
    said = {**meanings(metric), "undecided": "Nothing is claimed about these."}
    return {**said, "all": f"By {METRICS[metric]} {WHY[metric]}."}


def answer(
    counts: Mapping[str, int], whole: int, some: bool, approximate: bool, metric: str = "inner"
) -> str:
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
    if tied and metric == "cosine":
        shared = "has the direction" if tied == 1 else "have the direction"
        text += f" {tied:,} {shared} of another: first only in a tie."
    elif tied:
        text += f" {tied:,} {'is' if tied == 1 else 'are'} equal to another: first only in a tie."
    if unknown and approximate:
        text += f" {unknown:,} more may be unargmaxable: screening found no witness."
    elif unknown:
        text += f" {unknown:,} {'is' if unknown == 1 else 'are'} undecided."
    if metric != "inner":
        text += f" They are compared by {METRICS[metric]}."
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


def checking_commands(
    source: str, domain: str, has_bias: bool, asked: Asked | None = None, metric: str = "inner"
) -> str:
    """Two lines for a shell: write the proofs, and check them with no solver."""
    asked = asked or Asked()
    more: tuple[str, ...] = () if has_bias else ("--drop-bias",)
    if metric != "inner":
        more = () if "--metric" in asked.head else ("--metric", metric)
    model = shlex.join([source or "model.onnx", *asked.head, *more])
    # A domain file is short to name and long to spell out.
    inputs = asked.domain if asked.domain and asked.domain.startswith("@") else domain
    return (
        f"uncork audit {model} --domain {shlex.quote(inputs)} --certificates proofs.npz\n"
        f"uncork verify proofs.npz {model}"
    )
