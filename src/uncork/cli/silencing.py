"""`uncork repair --silence`: a copy in which some classes are never first, or a mask for them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uncork import __version__
from uncork.auditing import Audit
from uncork.auditing import audit as make_audit
from uncork.auditing.backend import choose_backend
from uncork.auditing.low_precision import leads_in_own_type
from uncork.cli import options
from uncork.cli.changed_copy import drafted, put_in_place, read_back
from uncork.cli.output import console, emit_json, print_doubts, progress_bar, some_labels
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.source import Found
from uncork.repair.changed_predictions import Price, price, read_inputs
from uncork.repair.silence import Silence, silenced
from uncork.save import check_format, write_head

OPTION = "--silence"
_MASK = "suppress_tokens"  # what transformers' generation_config.json calls classes to mask
_SETTINGS = "generation_config.json"
_MOST_BYTES = 16 << 20  # of such a file
# Formats whose readers add the bias that is stored beside a weight, new or not.
_ADDS_BIAS = ("onnx", "npz", "npy", "marian npz", "nematus npz")


@dataclass(frozen=True)
class Silencing:
    """What was asked for."""

    which: str
    out: str
    run: options.LimitedRun
    margin: float | None = None
    activations: str | None = None
    certificates: str | None = None
    json_file: str | None = None

    def do(self, found: Found) -> bool:
        """Write the copy, or the mask; whether every class was silenced, and that is proven."""
        chosen = chosen_classes(self.which, found.head, found.vocabulary, OPTION)
        if len(chosen) == found.head.classes:
            raise UncorkError(f"{OPTION} names every class: one has to be first")
        if self.out.lower().endswith(".json"):
            return self._mask(found, chosen)
        return self._lower(found, chosen)

    def _mask(self, found: Found, chosen: np.ndarray) -> bool:
        """Settings for transformers' `generate`, which then gives these classes −∞."""
        if self.certificates is not None:
            raise UncorkError("--certificates: a mask changes no weight, so nothing is to prove")
        settings = _settings(found, self.out)
        masked = sorted({*settings.get(_MASK, ()), *chosen.tolist()})
        with whole_file(self.out) as target:
            text = json.dumps({**settings, _MASK: masked}, indent=2, ensure_ascii=False)
            target.write_text(text + "\n", encoding="utf-8")
        result = {
            **_facts(found.head, chosen), "how": "mask", "masked": masked, "written": self.out,
        }  # fmt: skip
        lines = [
            f"{len(chosen):,} classes masked: {some_labels(found.head, chosen)}",
            f"{_MASK} written to {printable(self.out)}; transformers' generate gives them −∞, and "
            "programs that do not read that file do not",
        ]
        self._tell(found.head, result, lines)
        return True

    def _lower(self, found: Found, chosen: np.ndarray) -> bool:
        head = found.head
        check_format(found, self.out, needs_bias=True)
        _check_bias(found, self.out)
        states = None if self.activations is None else read_inputs(self.activations, head.features)
        with drafted(self.out, "unproven") as draft:
            with progress_bar(self.run.quiet) as bar:
                made = silenced(head, chosen, margin=self.margin, jobs=self.run.jobs, progress=bar)
                write_head(found, np.asarray(head.weight), made.bias, draft)
                changed = read_back(found, made, draft)
                proven = make_audit(
                    changed, **self.run.on(), time_limit=self.run.time_limit, progress=bar
                )
            left = np.setdiff1d(chosen, proven.unargmaxable)
            cost = None if states is None else price(head, changed, states, chosen[:0])
            result = self._described(found, made, changed, proven, left, cost)
            with ExitStack() as appearing:  # at its end, so that Ctrl-C leaves all of it or nothing
                if not len(left) and self.certificates is not None:
                    proven.save(appearing.enter_context(whole_file(self.certificates)))
                if self.json_file is not None and self.json_file != "-":
                    emit_json(result, str(appearing.enter_context(whole_file(self.json_file))))
                if not len(left):
                    put_in_place(draft, self.out)
        self._tell(head, result, _lines(head, made, result, left, cost, self.out), written=True)
        return not len(left)

    def _described(
        self, found: Found, made: Silence, changed: Head, proven: Audit, left: np.ndarray,
        cost: Price | None,
    ) -> dict[str, Any]:  # fmt: skip
        head, moved = found.head, made.lowered > 0
        backend = choose_backend("cpu", self.run.jobs)
        leads = leads_in_own_type(changed, made.classes, made.nearest, backend)
        return {
            **_facts(head, made.classes),
            "how": "bias",
            "added_bias": head.bias is None,
            "silenced_fingerprint": changed.fingerprint,
            "lowered": int(moved.sum()),
            "largest": float(made.lowered.max(initial=0.0)),
            "biases": [
                {"class": int(t), "label": head.label(int(t)), "bias": float(made.bias[t]),
                 "lowered": float(by)}
                for t, by in zip(made.classes, made.lowered, strict=True)
            ],
            "left": left.tolist(),
            "first_in_own_type": made.classes[leads > 0].tolist(),
            "counts": {name: int(count) for name, count in proven.counts.items()},
            "price": None if cost is None else {**asdict(cost), "share": cost.share},
            "written": None if len(left) else self.out,
            "seconds": {name: float(s) for name, s in proven.seconds.items()},
        }  # fmt: skip

    def _tell(
        self, head: Head, result: dict[str, Any], lines: list[str], *, written: bool = False
    ) -> None:
        if self.json_file is not None and not written and self.json_file != "-":
            emit_json(result, self.json_file)
        if self.json_file == "-":
            emit_json(result, "-")
            return
        to = console()
        to.print(
            f"{printable(head.source)}: {head.classes:,} classes × {head.features} features, "
            f"{head.dtype}; inputs in {head.domain}",
            soft_wrap=True,
        )
        print_doubts(to, head.reading)
        for line in lines:
            to.print(line, soft_wrap=True)


def _facts(head: Head, chosen: np.ndarray) -> dict[str, Any]:
    return {
        "uncork": __version__, "source": head.source, "fingerprint": head.fingerprint,
        "classes": head.classes, "features": head.features, "dtype": head.dtype,
        "domain": str(head.domain), "silenced": chosen.tolist(), "reading": json_keys(head.reading),
    }  # fmt: skip


def _lines(
    head: Head,
    made: Silence,
    result: dict[str, Any],
    left: np.ndarray,
    cost: Price | None,
    out: str,
) -> list[str]:
    lines = [f"{len(made.classes):,} classes to silence: {some_labels(head, made.classes)}"]
    if result["added_bias"]:
        lines.append("the head has no bias: one was added, zero for all other classes")
    below = len(made.classes) - result["lowered"]
    lines.append(
        f"{result['lowered']:,} biases lowered, by at most {result['largest']:.6g}; {below:,} lay "
        "below the others anyway"
    )
    if len(left):
        which = some_labels(head, left)
        lines.append(
            f"not proven of {len(left):,} ({which}): nothing was written; try a smaller --domain, "
            "or a mask (-o FILE.json)"
        )
        return lines
    counts = ", ".join(f"{n:,} {name}" for name, n in result["counts"].items() if n)
    lines.append(f"proven: none of them is first anywhere in {head.domain}; now {counts}")
    if result["first_in_own_type"]:
        lines.append(
            f"careful: with logits computed in {head.dtype}, {len(result['first_in_own_type']):,} "
            "of them are first where they come nearest: give a larger --margin"
        )
    if cost is not None:
        lines.append(
            f"price: {cost.changed:,} of {cost.inputs:,} predictions change ({cost.share:.3%})"
        )
    return [*lines, f"written to {printable(out)}"]


def _check_bias(found: Found, out: str) -> None:
    """Raise where a bias would be stored that no program adds."""
    alone = out.lower().endswith(".npz")
    if found.head.bias is None and not alone and found.contents.format not in _ADDS_BIAS:
        raise UncorkError(
            f"{found.contents.path} has no bias, and programs that read {found.contents.format} "
            f"add none: write a mask instead (-o {_SETTINGS}), or the head alone with a bias "
            "(-o FILE.npz)"
        )


def _settings(found: Found, out: str) -> dict[str, Any]:
    """The settings that a mask is added to: those of the output, else those beside the model."""
    folder = found.contents.path if found.contents.path.is_dir() else found.contents.path.parent
    for path in (Path(out), folder / _SETTINGS):
        if path.is_file():
            try:
                large = path.stat().st_size > _MOST_BYTES
                settings = None if large else json.loads(path.read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                settings = None
            known = settings.get(_MASK) or [] if isinstance(settings, dict) else None
            if not isinstance(known, list) or not all(type(one) is int for one in known):
                raise UncorkError(f"{path} is not a file of generation settings: write to another")
            assert isinstance(settings, dict)
            return {**settings, _MASK: known}
    return {}
