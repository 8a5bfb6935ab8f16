"""Where models live: the section of a model card, and an evaluation result of the hub.

Cards are read and made by huggingface_hub's own tools. Of a card that is there, only the section
between two marks changes: metadata, comments and the rest of the text stay as they are, byte by
byte.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uncork import __version__
from uncork.check.formats import markdown
from uncork.check.run import Checked
from uncork.check.words import short_source
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.core.whole_file import whole_file

BEGIN, END = "<!-- uncork check: begin -->", "<!-- uncork check: end -->"
RESULTS = ".eval_results/uncork.yaml"
TASK = "argmaxable"  # the task of a benchmark that the result is of
_HOME = "https://github.com/uncork-authors/uncork"
_NEW = "# Model card\n"
_MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Card:
    """A card as it was found, or a new one, and where it belongs."""

    path: Path
    content: str

    def written(self, checked: Checked) -> str:
        """The card with its section added, or put in place of the one that was there."""
        text = f"{BEGIN}\n{section(checked)}{END}"
        before, begin, rest = self.content.partition(BEGIN)
        if not begin:
            gap = "" if self.content.endswith("\n\n") else "\n" * (2 - self.content.endswith("\n"))
            return f"{self.content}{gap}{text}\n"
        _, end, after = rest.partition(END)
        if not end:
            raise UncorkError(
                f"--card {self.path} has {BEGIN} without {END}: add it, or remove both"
            )
        return f"{before}{text}{after}"

    def save(self, checked: Checked) -> None:
        written = self.written(checked)
        with whole_file(self.path) as target:
            target.write_bytes(written.encode("utf-8"))


def read_card(path: str, repository: str | None = None) -> Card:
    """The card at a path. Where there is none, that of the hub's repository if one is named, and
    else a new one."""
    hub = _hub()
    file = Path(path)
    try:
        if file.exists():
            if not file.is_file():
                raise UncorkError(f"--card {path} is not a regular file")
            if file.stat().st_size > _MOST_BYTES:
                raise UncorkError(f"--card {path} is too large for a model card")
            content = file.read_bytes().decode("utf-8-sig")
        else:
            content = (None if repository is None else _remote(hub, repository)) or _NEW
        with _quiet():
            hub.ModelCard(content)  # its metadata must be readable
    except UnicodeDecodeError:
        raise UncorkError(f"--card {path} is not UTF-8 text") from None
    except OSError as error:
        raise UncorkError(f"--card {path} cannot be read: {error.strerror or error}") from None
    except Exception as error:
        if isinstance(error, UncorkError):
            raise
        why = printable(" ".join(str(error).split())[:200])
        raise UncorkError(f"--card {path} is not a model card: {why}") from None
    card = Card(file, content)
    if content.count(BEGIN) != content.count(END) or content.count(BEGIN) > 1:
        raise UncorkError(f"--card {path}: {BEGIN} and {END} must stand there once each, or never")
    return card


def section(checked: Checked) -> str:
    """The section: what was asked, what came of it, and how to check it."""
    audit, kept = checked.audit, checked.certificates
    counts = audit.counts
    lines = [
        "## What the output layer can say",
        "",
        f"Of {audit.classes:,} classes {counts['argmaxable']:,} can be the argmax for some input, "
        f"{counts['unargmaxable']:,} can never be, {counts['tied']:,} are tied with an equal one, "
        f"{counts['undecided']:,} are undecided; for inputs in "
        f"{markdown.escaped(str(audit.domain))}. {checked.answer}.",
        "",
        *markdown.table(replace(checked, report=None)),  # the page lies elsewhere
        "",
        f"Checked by [uncork]({_HOME}) {__version__}. Weights: `{audit.fingerprint}`.",
    ]
    if kept is not None:
        lines += [
            f"Proofs: `{Path(kept.path).name}`, sha256 `{kept.sha256}`. "
            "To check them, with no solver:",
            "",
            f"    uncork verify {Path(kept.path).name} {printable(short_source(audit.source))}",
        ]
    return "\n".join(lines) + "\n"


def evaluation(checked: Checked, dataset: str, day: datetime.date | None = None) -> str:
    """The evaluation result as YAML, in the form of the hub's `.eval_results/*.yaml`.

    Its value is the share of classes that are proven argmaxable, in percent; its notes say of which
    weights and inputs, and by which proofs.
    """
    hub = _hub()
    if not hasattr(hub, "EvalResultEntry"):
        raise UncorkError(
            f"--eval-results needs a newer huggingface_hub than {hub.__version__}: "
            "pip install -U huggingface_hub"
        )
    from huggingface_hub.utils import yaml_dump

    audit, kept = checked.audit, checked.certificates
    notes = [f"inputs in {audit.domain}", f"weights {audit.fingerprint}"]
    if kept is not None:
        notes.append(f"certificates {Path(kept.path).name} sha256:{kept.sha256}")
    entry = hub.EvalResultEntry(
        dataset_id=dataset,
        task_id=TASK,
        value=round(100 * audit.counts["argmaxable"] / max(1, sum(audit.counts.values())), 4),
        date=(day or datetime.datetime.now(datetime.timezone.utc).date()).isoformat(),
        source_url=_HOME,
        source_name=f"uncork {__version__}",
        notes="; ".join(notes),
    )
    return str(yaml_dump(hub.eval_result_entries_to_yaml([entry])))


def check_repository(name: str, option: str) -> None:
    """Raise unless the text can be a repository of the hub."""
    if not _NAME.fullmatch(name):
        raise UncorkError(f"{option} {printable(name[:80])!r}: expected owner/name")


def push(repository: str, files: Mapping[str, bytes]) -> str:
    """Open a pull request with these files, by their names in the repository; its address."""
    hub = _hub()
    operations = [hub.CommitOperationAdd(name, data) for name, data in files.items()]
    try:
        with _quiet():
            made = hub.HfApi(library_name="uncork", library_version=__version__).create_commit(
                repository,
                operations,
                commit_message="What the output layer can say (uncork check)",
                create_pr=True,
            )
    except Exception as error:
        why = printable(" ".join(str(error).split())[:300]) or type(error).__name__
        raise UncorkError(f"--push {repository}: the hub refused it: {why}") from None
    return str(made.pr_url)


def _remote(hub: Any, repository: str) -> str | None:
    """The card that the repository has, None where it has none."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        with _quiet():
            path = hub.hf_hub_download(repository, "README.md")
    except EntryNotFoundError:
        return None
    except Exception as error:
        why = printable(" ".join(str(error).split())[:300]) or type(error).__name__
        raise UncorkError(f"--push {repository}: its card cannot be read: {why}") from None
    return Path(path).read_bytes().decode("utf-8-sig")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UncorkError("model cards need huggingface_hub: pip install 'uncork[hf]'") from None
    return huggingface_hub


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the library logs of a card that has no metadata, and its bars."""
    import huggingface_hub.repocard  # noqa: F401  # sets the level, when it is first imported
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils import enable_progress_bars as enable

    logger = logging.getLogger("huggingface_hub")
    level, disabled = logger.level, are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not disabled:
            enable()
