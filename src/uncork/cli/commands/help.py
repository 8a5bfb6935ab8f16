"""`uncork help`: short texts on one topic each, and the help of a command."""

from __future__ import annotations

import difflib
from importlib.resources import files
from typing import Annotated

import typer

from uncork.cli.output import console
from uncork.core.errors import UncorkError
from uncork.core.text import printable

# Every topic is a file of that name in `topics/`, but the checks, which their table describes.
TOPICS = (
    "verdicts", "domains", "certificates", "formats", "classes", "checks", "conditions", "status",
)  # fmt: skip


def help(
    topic: Annotated[
        str | None, typer.Argument(help="What to explain: a topic, or a command.", metavar="TOPIC")
    ] = None,
) -> None:
    """Explain verdicts, domains, certificates, formats and more.

    Without a topic, list them all.
    Example: uncork help verdicts
    """
    out = console()
    if topic is None:
        width = max(map(len, TOPICS))
        for name in TOPICS:
            first = topic_text(name).partition("\n")[0]
            out.print(f"{name:{width}}  {first}", soft_wrap=True)
        out.print("\nuncork help TOPIC shows one, uncork COMMAND --help a command's options")
        return
    if topic in TOPICS:
        out.print(topic_text(topic).rstrip("\n"), soft_wrap=True)
        return
    _show_command(topic)


def topic_text(name: str) -> str:
    """The text on one topic; its first line says what it is about."""
    if name == "checks":
        return _checks()
    return (
        files("uncork.cli").joinpath("topics").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    )


def _checks() -> str:
    from uncork.check import CHECKS

    lines = ["What uncork check asks of a model, check by check.", ""]
    for check in CHECKS:
        limits = ", ".join(f"{name} = {value:g}" for name, value in check.limits.items())
        lines.append(f"{check.name} ({check.severity.value}{'; ' if limits else ''}{limits})")
        lines.append(f"    {check.asks}")
    lines += [
        "",
        "In brackets: what a broken condition comes to, and the numbers that can be set",
        "(uncork help conditions). most: how many classes may break it.",
        "",
        "More: docs/how-to/check.md",
    ]
    return "\n".join(lines) + "\n"


def _show_command(name: str) -> None:
    from uncork.cli.program import COMMANDS, app

    commands = [command for names in COMMANDS.values() for command in names]
    if name not in commands:
        near = difflib.get_close_matches(name, [*TOPICS, *commands], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"topics are {', '.join(TOPICS)}"
        raise UncorkError(f"there is no help on {printable(name[:40])!r}: {hint}")
    app([name, "--help"], prog_name="uncork", standalone_mode=False)
