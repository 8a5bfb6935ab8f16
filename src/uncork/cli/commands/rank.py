"""`uncork rank`: rank and spectrum of the log-probabilities; the bottleneck in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.activations.data import named_and_matched
from uncork.cli import options
from uncork.cli.gradient import (
    MIXTURE,
    gradient_json,
    mixture_share,
    output_of,
    own_head,
    print_gradient,
    tokens_in,
)
from uncork.cli.help import INPUT
from uncork.cli.output import console, emit_json, print_doubts, progress_bar
from uncork.cli.parameters import Reads
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.loading.contents import AmbiguousError
from uncork.loading.outputs import read_outputs
from uncork.theory.bottleneck import rank_bound
from uncork.theory.gradient import Output, measure_gradient
from uncork.theory.outputs import (
    Kind,
    Outputs,
    head_spectrum,
    looks_like_log_probabilities,
    spectrum_of_head,
)
from uncork.theory.spectrum import Spectrum, spectrum
from uncork.theory.width import Width, hidden_width

_GRADIENT = "What to measure"
_SHARES = (0.9, 0.99, 0.999)
_MOST_CONTEXTS = 2000
_MATRICES = (".npy", ".npz", ".safetensors")
_WIDTH_BYTES = 2 << 30  # outputs up to this size are also asked for the hidden width
RULE = "σ > max(max(m, n)·2⁻⁵²·σ₁, what rounding of the stored values alone can make)"


class OutputName(str, Enum):
    """What turns logits into probabilities, and brings its loss."""

    softmax = "softmax"
    sparsemax = "sparsemax"
    entmax = "entmax"
    alpha_relu = "alpha-relu"


class Norm(str, Enum):
    """What precedes the head, if known."""

    layernorm = "layernorm"
    other = "other"


@dataclass
class _Found:
    """The spectra, and what else was found out."""

    source: str
    head: Head | None = None
    head_spectrum: Spectrum | None = None
    outputs: Spectrum | None = None
    centred: Spectrum | None = None  # of the same, each context's mean over classes taken away
    dtype: str = ""
    made_from: str = ""
    width: Width | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def bound(self) -> int | None:
        if self.head is None:
            return None
        return rank_bound(self.head.features, bias=self.head.bias is not None)


def rank(
    source: Annotated[
        str,
        typer.Argument(
            help="A model, or a matrix of outputs, contexts × classes: .npy, .npz, .safetensors.",
            metavar="SOURCE|LOGPROBS",
        ),
        Reads("the model"),
    ],
    tensors: options.Tensors,
    drop_bias: options.DropBias = False,
    hidden: Annotated[
        str | None,
        typer.Option(
            help="Hidden states that reach the head: contexts × features.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the hidden states"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Run the model (a transformers folder, or ONNX) over this data, as uncork "
            "activations does, to get the hidden states.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the data", named_and_matched),
    ] = None,
    logits: Annotated[
        bool,
        typer.Option(
            "--logits",
            help="The file holds logits, not logarithms of probabilities.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    tensor: Annotated[
        str | None,
        typer.Option(
            help="Name of the array that holds the outputs.",
            metavar="NAME",
            rich_help_panel=INPUT,
        ),
    ] = None,
    softcap: Annotated[
        float | None,
        typer.Option(
            help="Undo c·tanh(z/c) on logits first (Gemma 2: 30).",
            metavar="C",
            rich_help_panel=INPUT,
        ),
    ] = None,
    contexts: Annotated[
        int | None,
        typer.Option(
            help="Use the first N contexts.",
            show_default=f"all; with --data {_MOST_CONTEXTS:,}",
            metavar="N",
            rich_help_panel=INPUT,
        ),
    ] = None,
    norm: Annotated[
        Norm | None,
        typer.Option(
            help="What precedes the head, if known, to estimate its width.", rich_help_panel=INPUT
        ),
    ] = None,
    gradient: Annotated[
        bool,
        typer.Option(
            "--gradient",
            help="Instead: the share of the loss's gradient that the head lets through, from "
            "hidden states with --targets, or from --data.",
            rich_help_panel=_GRADIENT,
        ),
    ] = False,
    targets: Annotated[
        str | None,
        typer.Option(
            help="With --gradient: the class each context was to predict (−100: none).",
            show_default="whole numbers in the file of hidden states",
            metavar="FILE",
            rich_help_panel=_GRADIENT,
        ),
        Reads("the targets"),
    ] = None,
    output: Annotated[
        OutputName | None,
        typer.Option(
            help="With --gradient: what the head is trained with.",
            show_default="as a head of uncork.nn was saved, else softmax",
            rich_help_panel=_GRADIENT,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="α of entmax and α-ReLU.",
            show_default="as saved, else 1.5",
            metavar="ALPHA",
            rich_help_panel=_GRADIENT,
        ),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="τ of α-ReLU.",
            show_default="as saved, else 0",
            metavar="NUMBER",
            rich_help_panel=_GRADIENT,
        ),
    ] = None,
    plot: options.Plot = None,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Rank and singular spectrum of a model's log-probabilities.

    Beside the bound d + 1, or d + 2 with a bias. From a file of outputs, from a head and hidden
    states, or from a model and data. A model alone gives its head's own spectrum and the bound.
    With --gradient, how much of the training signal passes back through the head.
    Examples: uncork rank model.safetensors --hidden states.npy --plot spectrum.png;
    uncork rank my-model/ --data text.txt --gradient
    """
    if hidden is not None and data:
        raise UncorkError("--hidden and --data both give hidden states: use one of them")
    if hidden == "":
        raise UncorkError("--hidden: the name is empty: give a file of hidden states")
    if targets is not None and not gradient:
        raise UncorkError("--targets is for --gradient")
    if gradient:
        if plot is not None:
            raise UncorkError("--gradient draws nothing: leave --plot out")
        asked: Output | None = output_of(source, output and output.value, alpha, tau)
        mixed = bool(data) and output is None and own_head(source).get("name") == MIXTURE
        with progress_bar(quiet) as bar:
            if data and mixed:
                head, shared = mixture_share(source, data, contexts or _MOST_CONTEXTS, bar)
                asked = None
            elif data:
                head, *tokens = _run(
                    source, data, contexts or _MOST_CONTEXTS, tensors.weight, bar, with_targets=True
                )
            else:
                head = tensors.find(source, drop_bias=drop_bias).head
                tokens = list(tokens_in(hidden, targets, contexts))
            if not mixed:
                shared = measure_gradient(head, tokens[0], tokens[1], output=asked, progress=bar)
        if json_file is not None:
            emit_json(gradient_json(head, asked, shared), json_file)
        if json_file != "-":
            print_gradient(console(), head, asked, shared)
        return
    if plot is not None:
        from uncork.report.drawing import check_figure

        check_figure(plot)
    if contexts is not None and contexts < 2:
        raise UncorkError(f"--contexts {contexts}: expected two or more")
    logits = logits or softcap is not None  # only logits are capped
    with progress_bar(quiet) as bar:
        values = None if hidden or data else _outputs(source, tensor, logits)
        if values is not None:
            kind: Kind = "logits" if logits else "log-probabilities"
            told = None if norm is None else norm.value
            found = _of_outputs(source, values[:contexts], kind, told, softcap, bar)
        else:
            found = _of_head(source, hidden, data, contexts, tensors, drop_bias, bar)
    if plot is not None:
        _draw(found, plot)
    if json_file is not None:
        emit_json(_as_dict(found), json_file)
    if json_file != "-":
        _print(console(), found)
        if plot is not None:
            console().print(f"figure written to {printable(plot)}", soft_wrap=True)


def _outputs(source: str, tensor: str | None, logits: bool) -> np.ndarray | None:
    """The matrix in a file of outputs; None where the source is a model."""
    path = Path(source)
    if logits or tensor is not None:
        return read_outputs(path, tensor)
    if path.suffix.lower() not in _MATRICES or not path.is_file():
        return None
    try:
        values = read_outputs(path)
    except UncorkError:
        return None
    return values if looks_like_log_probabilities(values) else None


def _of_outputs(
    source: str,
    values: np.ndarray,
    kind: Kind,
    norm: Any,
    softcap: float | None,
    progress: Progress,
) -> _Found:
    if softcap is not None:
        from uncork.theory.width import uncapped

        values = uncapped(values, softcap)
    outputs = Outputs(values, kind, name=source, progress=progress)
    found = _Found(source, dtype=outputs.dtype, made_from=f"a file of {kind}")
    found.outputs = spectrum(outputs, progress=progress)
    if values.size * 8 <= _WIDTH_BYTES:
        found.centred = spectrum(outputs.centred("classes"), progress=progress)
        found.width = hidden_width(values, kind, norm=norm, progress=progress)
    else:
        found.notes.append("hidden width not estimated: give fewer --contexts for it")
    if not found.outputs.settled:
        found.notes.append(f"the rank is at least {found.outputs.rank:,}: the search stopped there")
    return found


def _of_head(
    source: str,
    hidden: str | None,
    data: Sequence[str] | None,
    contexts: int | None,
    tensors: options.Tensors,
    drop_bias: bool,
    progress: Progress,
) -> _Found:
    states: np.ndarray | None = None
    made_from = ""
    if data:
        if tensors.base is not None:
            raise UncorkError("--data runs the model itself: merge the adapter first")
        head, states = _run(source, data, contexts or _MOST_CONTEXTS, tensors.weight, progress)
        if drop_bias:
            head = head.replace(bias=None)
        made_from = f"the model's hidden states on {len(states):,} contexts of data"
    else:
        try:
            head = tensors.find(source, drop_bias=drop_bias).head
        except AmbiguousError as error:
            raise UncorkError(f"{error} (if it is a file of outputs, use --logits)") from None
    if hidden is not None:
        states = read_outputs(Path(hidden))[:contexts]
        if len(states) < 2:
            raise UncorkError(f"--hidden {hidden} holds one context: the rank needs two or more")
        made_from = f"hidden states in {hidden}"
    found = _Found(source, head, made_from=made_from, dtype=head.dtype)
    found.head_spectrum = head_spectrum(head)
    if states is not None:
        found.outputs = spectrum_of_head(head, states, progress=progress)
        found.centred = spectrum_of_head(head, states, "classes")
        bound = found.bound or 0
        if len(states) < bound:
            found.notes.append(f"{len(states):,} contexts cannot show a rank of {bound:,}")
    else:
        found.notes.append("log-probabilities need contexts: give --hidden or --data")
        suffix = Path(source).suffix.lower()
        if suffix in _MATRICES and head.features > head.classes:
            found.notes.append(
                "more features than classes: if this is a file of outputs, use --logits"
            )
        elif suffix == ".npy":  # has no names, and often more contexts than classes
            found.notes.append("read as a head: if this is a file of outputs, use --logits")
    return found


def _run(
    source: str,
    data: Sequence[str],
    contexts: int,
    weight: str | None,
    progress: Progress,
    with_targets: bool = False,
) -> tuple[Any, ...]:
    """The head, the hidden states of a model run over data and, asked for, their targets."""
    from uncork.activations import open_runner

    runner = open_runner(source, list(data), weight=weight)
    progress.stage("run", contexts)
    states: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    count = 0
    for batch in runner.batches(0, runner.total):
        if with_targets:
            if batch.targets is None:
                raise UncorkError(
                    f"{source} is not a language model whose next tokens the data holds: give "
                    "--hidden and --targets"
                )
            targets.append(batch.targets[: contexts - count])
        states.append(np.asarray(batch.inputs, dtype=np.float32)[: contexts - count])
        count += len(states[-1])
        progress.advance(len(states[-1]))
        if count >= contexts:
            break
    if count < 2:
        raise UncorkError("--data gives fewer than two contexts: the rank needs more")
    if with_targets:
        return runner.head, np.concatenate(states), np.concatenate(targets)
    return runner.head, np.concatenate(states)


def _print(out: Console, found: _Found) -> None:
    out.print(printable(found.source), soft_wrap=True)
    print_doubts(out, None if found.head is None else found.head.reading)
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    head, outputs = found.head, found.outputs
    if head is not None:
        bias = "with bias" if head.bias is not None else "no bias"
        facts.add_row("head", f"{head.classes:,} classes × {head.features:,} features, {bias}")
        assert found.head_spectrum is not None
        own = found.head_spectrum
        facts.add_row("head's own rank", f"{own.rank:,} of {head.features:,}")
        facts.add_row("its spectrum", _spectrum(own))
    if outputs is not None:
        contexts, classes = outputs.shape
        facts.add_row(
            "log-probabilities",
            f"{contexts:,} contexts × {classes:,} classes, from {printable(found.made_from)}",
        )
        least = "" if outputs.settled else "at least "
        facts.add_row(
            "rank", f"{least}{outputs.rank:,} (tolerance {outputs.tolerance:.3g}: {RULE})"
        )
        facts.add_row("spectrum", _spectrum(outputs))
    if found.centred is not None:
        facts.add_row(
            "without the shift", f"rank {found.centred.rank:,}; {_spectrum(found.centred)}"
        )
    if found.bound is not None and head is not None:
        extra = "d + 2" if head.bias is not None else "d + 1"
        facts.add_row("bound", f"{found.bound:,} = {extra}, whatever the contexts")
    if found.width is not None:
        facts.add_row("hidden width", _width(found.width))
    for note in found.notes:
        facts.add_row("note", printable(note))
    out.print(facts)


def _spectrum(found: Spectrum) -> str:
    needed = ", ".join(
        f"{share:.1%}".replace(".0%", "%") + f" in {_many(found.directions(share), found)}"
        for share in _SHARES
    )
    last = found.values[found.rank - 1] if found.rank else 0.0
    return (
        f"σ from {found.values[0]:.4g} to {last:.3g}; effective rank {found.effective_rank:,.1f}; "
        f"energy: {needed} directions"
    )


def _many(count: int | None, found: Spectrum) -> str:
    return f"more than {len(found.values):,}" if count is None else f"{count:,}"


def _width(width: Width) -> str:
    cap = "" if width.softcap is None else f" after undoing a cap of {width.softcap:g}"
    if width.width is None or width.gap is None or width.ranks is None:
        return f"cannot tell{cap}: {width.why}"
    return (
        f"{width.width:,}{cap}: {width.why}. Logits have rank {width.ranks[0]:,}, and "
        f"{width.ranks[1]:,} without each class's mean; behind it the spectrum falls "
        f"{width.gap.ratio:,.3g}-fold ({width.confidence})"
    )


def _as_dict(found: _Found) -> dict[str, Any]:
    result: dict[str, Any] = {"uncork": __version__, "source": found.source, "notes": found.notes}
    if found.head is not None and found.head_spectrum is not None:
        result |= {
            "classes": found.head.classes,
            "features": found.head.features,
            "bias": found.head.bias is not None,
            "bound": found.bound,
            "reading": json_keys(found.head.reading),
            "head": _numbers(found.head_spectrum),
        }
    if found.outputs is not None:
        result["log_probabilities"] = {
            "contexts": found.outputs.shape[0],
            "classes": found.outputs.shape[1],
            "dtype": found.dtype,
            "from": found.made_from,
            "rule": RULE,
            **_numbers(found.outputs),
        }
    if found.centred is not None:
        result["without_the_shift"] = _numbers(found.centred)
    if found.width is not None:
        width = found.width
        result["hidden_width"] = {
            "width": width.width,
            "confidence": width.confidence,
            "why": width.why,
            "readings": [{"width": w, "if": text} for w, text in width.readings],
            "ranks": None if width.ranks is None else list(width.ranks),
            "gap": None if width.gap is None else width.gap.ratio,
            "softcap": width.softcap,
        }
    return result


def _numbers(found: Spectrum) -> dict[str, Any]:
    return {
        "rank": found.rank,
        "settled": found.settled,
        "tolerance": found.tolerance,
        "effective_rank": found.effective_rank,
        "directions": {str(share): found.directions(share) for share in _SHARES},
        "energy": found.energy,
        "singular_values": [float(value) for value in found.values],
    }


def _draw(found: _Found, path: str) -> None:
    from uncork.report.spectrum_plot import plot_spectrum

    spectra = {}
    if found.outputs is not None:
        spectra["log-probabilities"] = found.outputs
    if found.head_spectrum is not None:
        spectra["head"] = found.head_spectrum
    plot_spectrum(spectra, path, bound=found.bound, title=Path(found.source).name)
