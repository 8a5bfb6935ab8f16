"""Lost characters taught: only their rows trained, on rendered text, everything else as shipped.

    python experiments/finetune_ocr.py --out results/finetune_ocr

`uncork repair` makes every character of a recogniser argmaxable, and the freed ones are still not
read (docs/results/repair.md). Here the freed rows and biases, and nothing else, are trained: the
network before the head runs once over pictures of text in two fonts, what arrives at the head is
kept, and the CTC loss of the lines moves the rows of the characters that were lost. The others are
frozen, so they enter the loss only through their scores.

Then every head reads other lines and characters alone, in the two fonts it was trained with and in
two that it never saw:

    shipped      the head as it is in the package
    repaired     by `uncork repair`, the smallest change of the bias
    lengthened   and the freed rows made as long as the others' median
    prevented    by `uncork prevent`: all rows of one length, no bias
    taught       repaired, and the freed rows trained; three seeds
    unrepaired   as taught, from the shipped head without a repair

Every taught head is audited again. The fonts are Debian's fonts-wqy-zenhei and fonts-arphic-uming
to train with, fonts-wqy-microhei and fonts-arphic-ukai to test with. Seeds draw the four fifths of
the lines that are trained on, and their order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from many_runs import write_json
from ocr import _opened, covers, render
from repair_ocr import MODELS, SENTENCES, model_path

import uncork
from uncork import Audit, Head, UncorkError
from uncork.loading import find
from uncork.loading.onnx.file import open_onnx
from uncork.repair import as_stored, prevent, repair
from uncork.save import write_head

TRAINED = (
    "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc",
    "/usr/share/fonts/truetype/arphic/uming.ttc",
)
UNSEEN = (
    "/usr/share/fonts/truetype/wqy/wqy-microhei.ttc",
    "/usr/share/fonts/truetype/arphic/ukai.ttc",
)
LINE, LOST_IN_LINE = 7, 3  # characters of a line, and lost ones among them
SIZES = range(30, 39)  # of the font in training; tests use 36
WIDTH, ALONE = 320, 96  # columns of a picture: of a line, of one character


# Text


@dataclass(frozen=True)
class Text:
    """Class ids to be read off one picture."""

    ids: tuple[int, ...]
    font: str
    size: int = 36


def usable(labels: Sequence[str], font: str) -> list[int]:
    """Classes that are one visible character of the font, of a usual width, that stands alone."""
    largest = _opened(font, SIZES[-1])
    return [
        k
        for k, label in enumerate(labels)
        if len(label) == 1 and label.isprintable() and not label.isspace() and covers(font, label)
        and not unicodedata.combining(label) and unicodedata.bidirectional(label) not in ("R", "AL")
        and largest.getlength(label) <= 1.2 * SIZES[-1]
    ]  # fmt: skip


def chosen(labels: Sequence[str], lost: np.ndarray, most: int) -> np.ndarray:
    """The classes to teach: all lost ones that can be drawn, or so many of those that every font
    has."""
    drawn = set(lost.tolist()).intersection(set().union(*(usable(labels, f) for f in TRAINED)))
    if not most or most >= len(drawn):
        return np.array(sorted(drawn))
    every = drawn.intersection(*(usable(labels, f) for f in TRAINED + UNSEEN))
    return np.array(some(sorted(every), most, np.random.default_rng(1)))


def in_turn(ids: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    """All of them in random order, and again in another."""
    while True:
        yield from rng.permutation(ids).tolist()


def lines(
    lost: list[int], able: list[int], font: str, count: int, rng: np.random.Generator, *,
    of_lost: int, sizes: Sequence[int] = (36,),
) -> list[Text]:  # fmt: skip
    """Random lines, each of so many lost characters among able ones, none twice."""
    made, lost_ones, able_ones = [], in_turn(lost, rng), in_turn(able, rng)
    for _ in range(count):
        ids: set[int] = set()
        while len(ids) < of_lost:
            ids.add(next(lost_ones))
        while len(ids) < LINE:
            ids.add(next(able_ones))
        shuffled = tuple(int(k) for k in rng.permutation(sorted(ids)))
        made.append(Text(shuffled, font, int(rng.choice(list(sizes)))))
    return made


def some(ids: list[int], most: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.choice(ids, min(most, len(ids)), replace=False).tolist())


@dataclass(frozen=True)
class Texts:
    """What is trained on, and what is read: by the kind of text and the font."""

    train: dict[str, list[Text]]  # all texts of a kind are equally long
    tests: dict[tuple[str, str], list[Text]]


def compose(
    labels: Sequence[str], lost: set[int], taught: set[int], asked: argparse.Namespace
) -> Texts:
    """The same for every seed and head. Lost characters that are not taught occur nowhere."""
    rng = np.random.default_rng(0)
    named = {label: k for k, label in enumerate(labels)}
    train: dict[str, list[Text]] = {"lines": [], "alone": []}
    tests: dict[tuple[str, str], list[Text]] = {}
    for font in TRAINED + UNSEEN:
        known = usable(labels, font)
        bad, good = [k for k in known if k in taught], [k for k in known if k not in lost]
        if font in TRAINED:
            count = -(-len(bad) * asked.times // LOST_IN_LINE)
            for of_lost, lines_of in ((LOST_IN_LINE, count), (0, max(count // 2, 200))):
                train["lines"] += lines(
                    bad, good, font, lines_of, rng, of_lost=of_lost, sizes=SIZES
                )
            train["alone"] += [Text((k,), font, int(rng.choice(SIZES))) for k in bad]
        tests["lines", font] = lines(
            bad, good, font, min(asked.most, len(bad)), rng, of_lost=LOST_IN_LINE
        )
        tests["plain", font] = lines(bad, good, font, asked.most, rng, of_lost=0)
        sentences = [[named.get(c, 0) for c in s.replace(" ", "")] for s in SENTENCES]
        tests["sentences", font] = [
            Text(tuple(ids), font)
            for ids in sentences
            if all(ids) and not lost.intersection(ids) and set(ids) <= set(known)
        ]
        for ids in (bad, good):
            alone = [Text((k,), font) for k in some(ids, 2 * asked.most, rng)]
            tests["alone", font] = tests.get(("alone", font), []) + alone
    return Texts(train, tests)


# What arrives at the head


class Body:
    """The recogniser up to its head, run by onnxruntime."""

    def __init__(self, path: Path, labels: Sequence[str], threads: int) -> None:
        import onnx
        import onnxruntime

        opened = open_onnx(path)
        _, node = opened.head_node(None)
        model = onnx.ModelProto()
        model.CopyFrom(opened.model)
        model.graph.output.append(onnx.ValueInfoProto(name=node.input))
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        self._wanted, self._given = node.input, self._session.get_inputs()[0].name
        self.labels = labels

    def __call__(self, texts: Sequence[Text], width: int, batch: int = 8) -> np.ndarray:
        """(n, time, features)"""
        made = []
        for start in range(0, len(texts), batch):
            group = texts[start : start + batch]
            pictures = np.zeros((len(group), 3, 48, width), np.float32)
            for row, text in zip(pictures, group, strict=True):
                letters = "".join(self.labels[k] for k in text.ids)
                drawn = render(letters, text.font, text.size)[:, :, :width]
                row[:, :, : drawn.shape[2]] = drawn
            made.append(self._session.run([self._wanted], {self._given: pictures})[0])
        return np.concatenate(made)


def arriving(body: Body, texts: list[Text], width: int, file: Path) -> np.ndarray:
    """Kept in a file of the texts' own, because this is most of the work."""
    digest = hashlib.sha256(repr((texts, width)).encode()).hexdigest()[:12]
    file = file.with_name(f"{file.name}-{digest}.npy")
    if file.is_file():
        return np.asarray(np.load(file))
    made = body(texts, width)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, made)
    return made


def width_of(texts: list[Text]) -> int:
    """The sentences are longer than the lines."""
    longest = max(len(text.ids) for text in texts)
    return ALONE if longest == 1 else max(WIDTH, 40 * longest)


# Training


def ctc(blank: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """−log P of each text: log-probabilities of blank (n, T) and of the text's characters, in its
    order (n, T, S), no two neighbours alike.

    Written out, because torch's takes scores of all classes, and nearly all are constants here.
    """
    n, steps, size = targets.shape
    score = blank[:, :, None].repeat(1, 1, 2 * size + 1)  # blank, first, blank, second, …, blank
    score[:, :, 1::2] = targets
    never = torch.full((n, 1), -torch.inf, device=blank.device)
    odd = torch.arange(2 * size + 1, device=blank.device) % 2 == 1
    reached = torch.full_like(score[:, 0], -1e30)
    reached[:, :2] = score[:, 0, :2]
    for t in range(1, steps):
        one = torch.cat([never, reached[:, :-1]], 1)
        two = torch.where(odd, torch.cat([never, never, reached[:, :-2]], 1), -torch.inf)
        reached = torch.logsumexp(torch.stack([reached, one, two]), 0) + score[:, t]
    return -torch.logsumexp(reached[:, -2:], 1)


@dataclass
class Lines:
    """Texts of one length with what arrives at the head, and what the frozen rows make of it."""

    x: torch.Tensor  # (n, T, d)
    others: torch.Tensor  # (n, T): log Σ exp of the frozen classes' scores
    blank: torch.Tensor  # (n, T)
    frozen: torch.Tensor  # (n, T, S): scores of the text's characters; of lost ones, unused
    place: torch.Tensor  # (n, S): which lost class a character is, −1 for frozen ones


def prepared(x: np.ndarray, texts: list[Text], head: Head, lost: np.ndarray, device: str) -> Lines:
    """The constants of the loss."""
    weight = torch.tensor(head.weight, device=device)
    bias = torch.tensor(head.offsets, dtype=torch.float32, device=device)
    frozen_bias = bias.clone()
    frozen_bias[torch.as_tensor(lost)] = -torch.inf
    ids = torch.tensor([text.ids for text in texts], device=device)
    index = torch.full((head.classes,), -1, device=device)
    index[torch.as_tensor(lost)] = torch.arange(len(lost), device=device)
    others, scores = [], []
    for start in range(0, len(x), 64):
        some_x = torch.tensor(x[start : start + 64], device=device)
        others.append(torch.logsumexp(some_x @ weight.T + frozen_bias, 2))
        rows = ids[start : start + 64]
        scores.append(torch.einsum("ntd,nsd->nts", some_x, weight[rows]) + bias[rows][:, None])
    values = torch.tensor(x, device=device)
    return Lines(
        values, torch.cat(others), values @ weight[0] + bias[0], torch.cat(scores), index[ids]
    )


def loss(lines: Lines, which: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Mean CTC loss of some of the lines, with these rows for the lost classes."""
    x, place = lines.x[which], lines.place[which]
    own = x @ weight.T + bias  # (n, T, lost)
    total = torch.logaddexp(lines.others[which], torch.logsumexp(own, 2))
    taught = own.gather(2, place.clamp(min=0)[:, None].expand(-1, x.shape[1], -1))
    characters = torch.where(place[:, None] >= 0, taught, lines.frozen[which])
    return ctc(lines.blank[which] - total, characters - total[:, :, None]).mean()


def teach(
    head: Head, lost: np.ndarray, kinds: list[Lines], seed: int, asked: argparse.Namespace
) -> tuple[Head, list[float]]:
    """The head with the rows of lost classes trained, and the mean loss of each epoch."""
    order = torch.Generator().manual_seed(seed)
    weight = torch.tensor(head.weight[lost], device=asked.device, requires_grad=True)
    bias = torch.tensor(head.offsets[lost], dtype=torch.float32, device=asked.device)
    bias.requires_grad_()
    drawn = [torch.randperm(len(k.x), generator=order)[: len(k.x) * 4 // 5] for k in kinds]
    batches = sum(-(-len(d) // asked.batch) for d in drawn) * asked.epochs
    optimiser = torch.optim.Adam([weight, bias], lr=asked.rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, batches)
    losses = []
    for _ in range(asked.epochs):
        turns = [
            (k, part)
            for k, d in zip(kinds, drawn, strict=True)
            for part in d[torch.randperm(len(d), generator=order)].split(asked.batch)
        ]
        seen = []
        for turn in torch.randperm(len(turns), generator=order).tolist():
            found = loss(turns[turn][0], turns[turn][1].to(asked.device), weight, bias)
            optimiser.zero_grad()
            found.backward()
            optimiser.step()
            schedule.step()
            seen.append(found.item())
        losses.append(round(float(np.mean(seen)), 4))
    rows, offsets = head.weight.copy(), head.offsets.astype(np.float32)
    rows[lost], offsets[lost] = weight.detach().cpu().numpy(), bias.detach().cpu().numpy()
    return head.replace(weight=rows, bias=offsets), losses


def lengthened(head: Head, lost: np.ndarray) -> Head:
    """The lost rows as long as the others at their median, both measured from the mean row."""
    mean = head.weight.mean(axis=0)
    lengths = np.linalg.norm(head.weight - mean, axis=1)
    median = np.median(np.delete(lengths, lost))
    rows = head.weight.copy()
    rows[lost] = mean + (rows[lost] - mean) * (median / lengths[lost])[:, None]
    return head.replace(weight=rows.astype(head.weight.dtype))


# Reading


def first(head: Head, x: np.ndarray) -> np.ndarray:
    """Which class comes first at each step of each text: (n, T)."""
    weight, bias = head.weight.astype(np.float32).T, head.offsets.astype(np.float32)
    frames = x.reshape(-1, x.shape[2])
    found = [(frames[k : k + 2048] @ weight + bias).argmax(1) for k in range(0, len(frames), 2048)]
    return np.concatenate(found).reshape(x.shape[:2])


def decoded(row: np.ndarray) -> list[int]:
    kept = row[np.r_[True, row[1:] != row[:-1]]]
    return [int(k) for k in kept if k != 0]


def matched(meant: Sequence[int], read: Sequence[int]) -> list[bool]:
    """Which of the meant characters an alignment with the fewest edits finds in what was read."""
    cost = np.zeros((len(meant) + 1, len(read) + 1), dtype=int)
    cost[:, 0], cost[0] = np.arange(len(meant) + 1), np.arange(len(read) + 1)
    for i, a in enumerate(meant, 1):
        for j, b in enumerate(read, 1):
            cost[i, j] = min(cost[i - 1, j] + 1, cost[i, j - 1] + 1, cost[i - 1, j - 1] + (a != b))
    found, i, j = [False] * len(meant), len(meant), len(read)
    while i and j:
        if cost[i, j] == cost[i - 1, j - 1] + (meant[i - 1] != read[j - 1]):
            found[i - 1] = meant[i - 1] == read[j - 1]
            i, j = i - 1, j - 1
        elif cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1
    return found


def read(head: Head, texts: list[Text], x: np.ndarray, lost: set[int]) -> dict[str, Any]:
    """Characters read right, lost ones and others; steps at which a lost class comes first; and
    which lost characters were read alone."""
    counts, alone = {"lost": [0, 0], "able": [0, 0]}, []
    wins = first(head, x)
    for text, row in zip(texts, wins, strict=True):
        letters = decoded(row)
        right = matched(text.ids, letters) if len(text.ids) > 1 else [letters == list(text.ids)]
        alone += [k for k in text.ids if len(text.ids) == 1 and k in lost and right[0]]
        for k, hit in zip(text.ids, right, strict=True):
            count = counts["lost" if k in lost else "able"]
            count[0] += hit
            count[1] += 1
    return {**counts, "steps_of_lost": int(np.isin(wins, sorted(lost)).sum()),
            "steps": int(wins.size), "lost_read_alone": alone}  # fmt: skip


def look_alikes(head: Head, texts: list[Text], x: np.ndarray, lost: set[int]) -> list[int]:
    """Characters that the head reads in place of lost ones: what teaching those could cost."""
    rows = first(head, x)
    found = {
        k for text, row in zip(texts, rows, strict=True) if text.ids[0] in lost
        for k in decoded(row) if len(head.label(k).strip()) == 1
    }  # fmt: skip
    return sorted(found - lost)


def decided(result: Audit, taught: np.ndarray, lost: set[int]) -> dict[str, Any]:
    """A changed head's audit: what became of the taught classes, and what else is lost now."""
    gone = set(result.unargmaxable.tolist())
    return {
        "counts": result.counts, "proven": result.proven,
        "taught_still_lost": len(gone.intersection(taught.tolist())),
        "lost_anew": sorted(gone - lost),
    }  # fmt: skip


# All of it


def study(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    path = model_path(*MODELS[name])
    folder = asked.out / name.lower().replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    found = find(path)
    shipped = found.head
    labels = shipped.labels
    assert labels is not None
    audit = uncork.audit(shipped, jobs=asked.threads, device="cpu")
    lost, gone = audit.unargmaxable, set(audit.unargmaxable.tolist())
    taught = chosen(labels, lost, asked.teach)
    texts = compose(labels, gone, set(taught.tolist()), asked)
    body = Body(path, labels, asked.threads)
    begun = time.process_time()
    x_train = {
        kind: arriving(body, some_texts, width_of(some_texts), folder / f"train-{kind}")
        for kind, some_texts in texts.train.items()
    }
    x_tests = {
        (kind, font): arriving(
            body, some_texts, width_of(some_texts), folder / f"{kind}-{Path(font).stem}"
        )
        for (kind, font), some_texts in texts.tests.items()
    }
    for font in TRAINED + UNSEEN:
        alike = look_alikes(shipped, texts.tests["alone", font], x_tests["alone", font], gone)
        texts.tests["alike", font] = [Text((k,), font) for k in alike]
        x_tests["alike", font] = arriving(
            body, texts.tests["alike", font], ALONE, folder / f"alike-{Path(font).stem}"
        )
    say(f"{name}: pictures seen, {time.process_time() - begun:.0f} s of processor time")
    result: dict[str, Any] = {
        "model": name, "classes": shipped.classes, "features": shipped.features,
        "lost": len(lost), "taught": len(taught),
        "visible": len({k for t in texts.train["alone"] for k in t.ids}),
        "train": {kind: len(t) for kind, t in texts.train.items()},
        "settings": {key: getattr(asked, key) for key in
                     ("start", "teach", "times", "epochs", "batch", "rate", "most",
                      "seeds", "device")},
        "heads": {},
    }  # fmt: skip

    def look(
        title: str, head: Head, audit: Audit | None = None, decide: bool = True, **more: Any
    ) -> None:
        begun = time.process_time()
        if audit is None and decide:
            audit = uncork.audit(head, jobs=asked.threads, device="cpu")
        reads = [
            {"text": kind, "font": Path(font).stem, "seen": font in TRAINED,
             **read(head, some_texts, x_tests[kind, font], gone)}
            for (kind, font), some_texts in texts.tests.items()
        ]  # fmt: skip
        lengths = np.linalg.norm(head.weight - head.weight.mean(axis=0), axis=1)
        result["heads"][title] = {
            "reads": reads, "audit": audit and decided(audit, taught, gone),
            "length": [round(float(np.median(part)), 3)
                       for part in (lengths[taught], np.delete(lengths, lost))], **more,
        }  # fmt: skip
        write_json(asked.out / f"{folder.name}.json", result, lines=True)
        say(f"{name}, {title}: {summary(reads)} ({time.process_time() - begun:.0f} s)")

    look("shipped", shipped, audit)
    starts = {"taught": shipped}
    if asked.start == "repaired":
        made = repair(shipped, audit=audit, jobs=asked.threads, device="cpu")
        starts = {"taught": made.head(shipped), "unrepaired": shipped}
        look("repaired", starts["taught"], made.audit, change=made.size)
    if not asked.only_taught:
        look("lengthened", lengthened(starts["taught"], taught))
        equal = prevent(shipped, "norm")
        look("prevented", as_stored(shipped, equal), decide=False)
    for title, start in starts.items():
        kinds = [
            prepared(x, texts.train[kind], start, taught, asked.device)
            for kind, x in x_train.items()
        ]
        for seed in range(asked.seeds if title == "taught" else 1):
            begun = time.process_time()
            head, losses = teach(start, taught, kinds, seed, asked)
            spent = round(time.process_time() - begun, 1)
            look(f"{title} {seed}", head, losses=losses, seconds=spent)
            if title == "taught" and seed == 0:
                written = folder / "taught.onnx"
                write_head(found, head.weight, head.bias, written)
                result["whole_model"] = by_onnxruntime(written, labels, texts, x_tests, head)
    write_json(asked.out / f"{folder.name}.json", result, lines=True)
    return result


def by_onnxruntime(
    file: Path, labels: Sequence[str], texts: Texts, x: dict[Any, np.ndarray], head: Head
) -> list[int]:
    """How many lines the written file reads as its head alone does here, and how many were read."""
    from ocr import Recogniser

    where = ("lines", UNSEEN[0])
    some_texts = texts.tests[where][:50]
    pictures = [render("".join(labels[k] for k in t.ids), t.font) for t in some_texts]
    whole = Recogniser(file, threads=1, labels=labels).read(pictures, batch=8, narrowest=WIDTH)
    own = ["".join(labels[k] for k in decoded(row)) for row in first(head, x[where][:50])]
    return [sum(a == b for a, b in zip(whole, own, strict=True)), len(whole)]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summary(reads: list[dict[str, Any]]) -> str:
    """Lost and other characters read, in lines and alone, by whether the font was trained with."""
    parts = []
    for seen in (True, False):
        for kind in ("lines", "alone", "alike", "plain", "sentences"):
            own = [r for r in reads if r["seen"] is seen and r["text"] == kind]
            shares = [
                f"{sum(r[what][0] for r in own)}/{sum(r[what][1] for r in own)}"
                for what in ("lost", "able")
            ]
            parts.append(f"{kind} {shares[0]} {shares[1]}")
        parts.append("| unseen:" if seen else "")
    return "seen: " + "  ".join(parts)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="example: python experiments/finetune_ocr.py --out results/finetune_ocr",
    )
    parser.add_argument("--out", type=Path, required=True, help="the results folder")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--start", choices=("repaired", "shipped"), default="repaired",
                        help="the head that is taught (default: repaired)")  # fmt: skip
    parser.add_argument("--teach", type=int, default=0, help="so many of the lost (default: all)")
    parser.add_argument("--only-taught", action="store_true", help="no lengthened, no prevented")
    parser.add_argument("--times", type=int, default=6, help="a lost character's lines, a font")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.02, help="Adam's, falling to a fiftieth")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=300, help="lines a font in each test")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of the training")
    asked = parser.parse_args(arguments)
    for font in TRAINED + UNSEEN:
        covers(font, "")  # a missing font is found out now
    torch.set_num_threads(asked.threads)
    results = [study(name, asked) for name in asked.models]
    print(json.dumps(results, ensure_ascii=False))


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
