"""The file of a retrieval: every verdict and bound with its proof. Arrays in a zip, no pickle."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.items import METRICS, Items
from uncork.core.own_archive import OwnArchive, open_archive, write_archive
from uncork.domain.members import array_names, domain_from, members_of
from uncork.retrieval.certify import Mixtures
from uncork.retrieval.judgements import Judgements
from uncork.retrieval.places import Places
from uncork.retrieval.result import Retrieval, SetProof, TopSet

_KIND = "uncork retrieval certificates"
_VERSION = 1
_WHAT = "a file of uncork retrieve --certificates"
_NAMES = (
    "header", "query_(verdict|margin|lower|upper)", "relevant_(size|item)",
    "(top|place)_(query|input)",
    "pair_(query|conflict|left|right)", "(left|right)_(item|weight)",
)  # fmt: skip
_DIGITS = 1 << 15  # of a whole number, in hexadecimal
_TOP = -1  # the conflict that a pair of mixtures belongs to, where it proves the verdict


def holds_retrieval(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it holds certificates of a retrieval."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "query_verdict.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def metric_of(path: str | os.PathLike[str]) -> str | None:
    """The metric that a file's claims are about; None where it does not say."""
    with open_archive(path, _WHAT, (*_NAMES, f"domain_{array_names()}")) as archive:
        metric = archive.header(_KIND, 4096, archive.count("query_verdict")).get("metric")
    return metric if metric in METRICS else None


def write_retrieval(found: Retrieval, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    parts, domain_arrays = members_of(found.domain)
    latent = found.domain.affine(found.features).latent
    exact: dict[str, dict[str, list[str]]] = {"top": {}, "place": {}}
    inputs: dict[str, list[tuple[int, np.ndarray]]] = {"top": [], "place": []}
    pairs: list[tuple[int, int, Mixtures]] = []
    for q in range(len(found.judgements)):
        proof, place = found.proofs[q], found.places[q]
        if proof is not None and proof.mixtures is not None:
            pairs.append((q, _TOP, proof.mixtures))
        held = [("top", proof.u, proof.exact)] if proof is not None else []
        if found.verdicts[q] != TopSet.POSSIBLE:
            held.append(("place", place.u, place.exact))
        for name, u, fractions in held:
            if fractions is not None:
                exact[name][str(q)] = [f"{v.numerator:x}/{v.denominator:x}" for v in fractions]
            elif u is not None:
                inputs[name].append((q, u))
        pairs += [(q, c, pair) for c, group in enumerate(place.conflicts) for pair in group]
    header = {
        "kind": _KIND, "version": _VERSION, "fingerprint": found.fingerprint,
        "metric": found.metric, "domain": parts, "k": found.k, "items": found.items,
        "features": found.features, "source": found.source,
        "queries": list(found.judgements.queries), "exact": exact, "long": _long(pairs),
        "reasons": {str(q): why for q, why in found.reasons.items()},
    }  # fmt: skip
    relevant = found.judgements.relevant
    members: dict[str, Any] = {
        "header": np.array(json.dumps(header)),
        "query_verdict": found.verdicts.astype(np.int8), "query_margin": found.margins,
        "query_lower": np.array([p.lower for p in found.places], dtype=np.int64),
        "query_upper": np.array([p.upper for p in found.places], dtype=np.int64),
        "relevant_size": np.array([len(ids) for ids in relevant], dtype=np.int64),
        "relevant_item": _joined(relevant),
        "pair_query": np.array([q for q, _, _ in pairs], dtype=np.int64),
        "pair_conflict": np.array([c for _, c, _ in pairs], dtype=np.int64),
        **{f"domain_{name}": array for name, array in domain_arrays.items()},
    }  # fmt: skip
    for side, ids, weights in (
        ("left", "relevant", "relevant_weights"), ("right", "others", "other_weights"),
    ):  # fmt: skip
        members[f"pair_{side}"] = np.array([len(getattr(p, ids)) for *_, p in pairs], np.int64)
        members[f"{side}_item"] = _joined([getattr(p, ids) for *_, p in pairs])
        members[f"{side}_weight"] = _joined(
            [[w if w < 2**62 else 0 for w in getattr(p, weights)] for *_, p in pairs]
        )
    for name, given in inputs.items():
        members[f"{name}_query"] = np.array([q for q, _ in given], dtype=np.int64)
        stacked = np.array([u for _, u in given], dtype=np.float64)
        members[f"{name}_input"] = stacked.reshape(len(given), latent)
    write_archive(path, {name: np.asarray(array) for name, array in members.items()})


def _long(pairs: list[tuple[int, int, Mixtures]]) -> dict[str, list[list[str]]]:
    """The weights of pairs that 62 bits cannot hold, by the pair's number."""
    return {
        str(n): [[f"{w:x}" for w in side] for side in (p.relevant_weights, p.other_weights)]
        for n, (_, _, p) in enumerate(pairs)
        if max(*p.relevant_weights, *p.other_weights) >= 2**62
    }


def read_retrieval(path: str | os.PathLike[str], items: Items) -> Retrieval:
    """Read a file back, checking its form against the items; what it claims is still unproven."""
    with open_archive(path, _WHAT, (*_NAMES, f"domain_{array_names()}")) as archive:
        return _read(archive, items)


def _read(archive: OwnArchive, items: Items) -> Retrieval:
    count = archive.count("query_verdict")
    header = archive.header(_KIND, 4096, count)
    if header["version"] != _VERSION:
        raise UncorkError(f"version {header['version']} is not known to this uncork")
    if (header["items"], header["features"]) != (len(items), items.features):
        raise UncorkError(
            f"it is about {header['items']} items × {header['features']} features, and these are "
            f"{len(items)} × {items.features}"
        )
    if header["metric"] not in METRICS:
        raise UncorkError("its metric is not known to this uncork")
    if header["metric"] != items.metric:
        raise UncorkError(
            f"it is about {METRICS[header['metric']]}, and these items are compared by "
            f"{items.metric_in_words}: give --metric {header['metric']}"
        )
    domain = domain_from(header["domain"], archive, prefix="domain_")
    domain.check(items.features)
    latent = domain.affine(items.features).latent
    k, names = header["k"], header["queries"]
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise UncorkError("k is damaged")
    if not isinstance(names, list) or len(names) != count:
        raise UncorkError("the names of the queries are damaged")
    verdicts = archive.array("query_verdict", (count,), np.int8)
    if not np.isin(verdicts, [int(v) for v in TopSet]).all():
        raise UncorkError("query_verdict holds something that is not a verdict")
    sizes = archive.array("relevant_size", (count,), np.int64)
    if count and (sizes.min() < 1 or sizes.max() > len(items)):
        raise UncorkError("relevant_size is damaged")
    flat = archive.ids("relevant_item", int(sizes.sum()), len(items))
    relevant = tuple(np.array(ids) for ids in np.split(flat, np.cumsum(sizes)[:-1]))
    judgements = Judgements(tuple(str(name) for name in names), relevant if count else ())
    if any(len(a) != len(b) for a, b in zip(judgements.relevant, relevant, strict=False)):
        raise UncorkError("a relevant item stands there twice")
    lower = archive.array("query_lower", (count,), np.int64)
    upper = archive.array("query_upper", (count,), np.int64)
    places = [Places(int(a), int(b)) for a, b in zip(lower, upper, strict=True)]
    proofs: list[SetProof | None] = [None] * count
    for name in ("top", "place"):
        inputs = archive.mapped(f"{name}_input", (None, latent), np.float64)
        ids = archive.ids(f"{name}_query", len(inputs), count)
        for q, u in zip(ids.tolist(), inputs, strict=True):
            _set(proofs, places, name, q, u, None)
        for text, numbers in header["exact"][name].items():
            q = _id(text, count)
            _set(proofs, places, name, q, None, tuple(_fraction(n) for n in numbers))
    for q, conflict, pair in _pairs(archive, header["long"], count, len(items)):
        if conflict == _TOP:
            proofs[q] = SetProof(mixtures=pair)
        else:
            groups = places[q].conflicts
            if conflict > len(groups):
                raise UncorkError("the conflicts are damaged")
            if conflict == len(groups):
                groups.append([])
            groups[conflict].append(pair)
    reasons = {_id(q, count): str(why) for q, why in header["reasons"].items()}
    return Retrieval(
        judgements, k, verdicts, archive.array("query_margin", (count,), np.float64), proofs,
        places, str(header["fingerprint"]), items.metric, domain, len(items), items.features,
        items.labels, str(header["source"]), None, reasons, reading=items.reading,
    )  # fmt: skip


def _set(
    proofs: list[SetProof | None],
    places: list[Places],
    name: str,
    q: int,
    u: np.ndarray | None,
    exact: tuple[Fraction, ...] | None,
) -> None:
    if name == "top":
        proofs[q] = SetProof(u, exact)
    else:
        places[q].u, places[q].exact = u, exact


def _pairs(
    archive: OwnArchive, long: Any, count: int, items: int
) -> list[tuple[int, int, Mixtures]]:
    owners = archive.ids("pair_query", None, count)
    conflicts = archive.array("pair_conflict", (len(owners),), np.int64)
    if len(conflicts) and conflicts.min() < _TOP:
        raise UncorkError("the conflicts are damaged")
    sides = []
    for side in ("left", "right"):
        sizes = archive.array(f"pair_{side}", (len(owners),), np.int64)
        if len(sizes) and (sizes.min() < 1 or sizes.max() > items):
            raise UncorkError(f"pair_{side} is damaged")
        total = int(sizes.sum())
        ids = archive.ids(f"{side}_item", total, items)
        weights = archive.array(f"{side}_weight", (total,), np.int64)
        ends: Any = np.cumsum(sizes)[:-1] if len(sizes) else []
        sides.append(list(zip(np.split(ids, ends), np.split(weights, ends), strict=True)))
    found = []
    for n, (q, conflict) in enumerate(zip(owners.tolist(), conflicts.tolist(), strict=True)):
        (left, left_weights), (right, right_weights) = sides[0][n], sides[1][n]
        whole = [tuple(left_weights.tolist()), tuple(right_weights.tolist())]
        if str(n) in long:
            given = long[str(n)]
            whole = [tuple(_whole(w) for w in side) for side in given]
        found.append((q, conflict, Mixtures(left, whole[0], right, whole[1])))
    return found


def _id(text: str, count: int) -> int:
    if not (text.isdecimal() and int(text) < count):
        raise UncorkError("the header names a query that does not exist")
    return int(text)


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise UncorkError(f"a weight of {len(text):,} digits: longer than exact arithmetic makes")
    return int(text, 16)


def _fraction(text: str) -> Fraction:
    top, _, bottom = text.partition("/")
    below = _whole(bottom)
    if below <= 0:
        raise UncorkError("an exact query is damaged")
    return Fraction(_whole(top), below)


def _joined(parts: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(np.asarray(p, np.int64) for p in parts)])
