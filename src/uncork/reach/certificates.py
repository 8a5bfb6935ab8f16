"""The file of reach's proofs: an input for each bound from one side, mixtures for those from the
other. Plain arrays in a zip, no pickle; `check_certificates` proves every bound again from them.

Nothing in a file is believed. Probabilities are bounded anew from the stored inputs and weights,
ranks counted anew at theirs, mixtures certified again and checked to be disjoint, or packed as a
tree of cases says (`bounds`); what is said of a support has to follow from that.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.auditing.backend import choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.digits import WholeNumbers
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.own_archive import OwnArchive, are_ids, open_archive, write_archive
from uncork.domain import Domain
from uncork.domain.members import array_names, domain_from, members_of
from uncork.reach.bounds.packing import Tree, packing_bound
from uncork.reach.bounds.planes import depth
from uncork.reach.bounds.probability import probability_bounds
from uncork.reach.bounds.rank import Cases, cases_bound, disjoint_bound, rank_at
from uncork.reach.bounds.sparse import sparse_bounds
from uncork.reach.probability import HighestProbability
from uncork.reach.rank import BestRank
from uncork.reach.sparse import SparseProbability

_KIND = "uncork reach certificates"
_VERSION = 1
_DEEPEST = 200  # classes left out at a time
_WHAT = "a file of uncork reach --certificates"
_SPARSE_COLUMNS = ("lower", "upper", "epsilon", "bulk")
_SPARSE_INPUTS = ("inputs", "mixture_inputs")
_SPARSE_WHOLE = ("support", "whole")
_SPARSE = (*_SPARSE_COLUMNS, *_SPARSE_INPUTS, *_SPARSE_WHOLE)
_NAMES = (
    "header", "probability_(class|lower|upper|input|bulk|mixture_input)",
    "rank_(class|lower|upper|input|mixtures|planes|nodes)", "mixture_(size|class|weight|bulk)",
    "tree_(node|mixture|share)",
    f"sparse_({'|'.join(('class', *_SPARSE))})", "sparse_weights(_of|_size|_class)?",
)  # fmt: skip


@dataclass
class Certificates:
    """Bounds with their proofs, and the head and domain that they are about."""

    fingerprint: str
    domain: Domain
    probability: HighestProbability | None = None
    rank: BestRank | None = None
    sparse: SparseProbability | None = None


@dataclass
class Checked:
    """How many bounds were proven again, and what was wrong with the others."""

    held: dict[str, int] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed


def write_certificates(found: Certificates, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    parts, domain_arrays = members_of(found.domain)
    header: dict[str, Any] = {
        "kind": _KIND, "version": _VERSION, "fingerprint": found.fingerprint, "domain": parts,
        "temperature": None,
    }  # fmt: skip
    arrays = {f"domain_{name}": array for name, array in domain_arrays.items()}
    if found.probability is not None:
        p = found.probability
        header["temperature"] = p.temperature
        arrays |= {
            "probability_class": p.classes, "probability_lower": p.lower,
            "probability_upper": p.upper, "probability_input": p.inputs,
            "probability_bulk": p.bulk, "probability_mixture_input": p.mixture_inputs,
        }  # fmt: skip
    if found.rank is not None:
        r = found.rank
        mixtures = [m for held in r.mixtures for m in held]
        arrays |= {
            "rank_class": r.classes, "rank_lower": r.lower, "rank_upper": r.upper,
            "rank_input": r.inputs, "rank_planes": _flags(r.planes, len(r.classes)),
            "rank_mixtures": np.array([len(m) for m in r.mixtures]),
            "mixture_size": np.array([len(m.classes) for m in mixtures], dtype=np.int64),
            "mixture_class": _joined([m.classes for m in mixtures], np.int64),
            "mixture_weight": _joined([m.weights for m in mixtures], np.float64),
            "mixture_bulk": np.array([m.bulk for m in mixtures], dtype=np.float64),
        }  # fmt: skip
        arrays |= _tree_arrays(r)
        header["exact"] = {
            str(k): [hex(n) for n in m.integers]
            for k, m in enumerate(mixtures) if m.integers is not None
        }  # fmt: skip
        header["cases"] = {
            str(k): [_plain(left_out, mixture) for left_out, mixture in cases.items()]
            for k, cases in enumerate(r.cases) if cases is not None
        }  # fmt: skip
    if found.sparse is not None:
        arrays |= _sparse_arrays(found.sparse)
        header["sparse"] = {"alpha": found.sparse.alpha, "temperature": found.sparse.temperature}
    members = {"header": np.array(json.dumps(header)), **arrays}
    write_archive(path, {name: np.asarray(array) for name, array in members.items()})


def read_certificates(path: str | os.PathLike[str], head: Head) -> Certificates:
    """Read a file back, checking its form against the head; what it claims is still unproven."""
    with open_archive(path, _WHAT, (*_NAMES, f"domain_{array_names()}")) as archive:
        return _read(archive, head)


def check_certificates(
    found: Certificates, head: Head, *, device: str = "auto", jobs: int | None = None
) -> Checked:
    """Prove every bound again, with no solver."""
    checked = Checked()
    if found.fingerprint != head.fingerprint:
        raise UncorkError(
            f"the certificates are for other weights: {found.fingerprint[:19]}…, not "
            f"{head.fingerprint[:19]}…"
        )
    certifier = Certifier(head, found.domain, choose_backend(device, jobs))
    with np.errstate(all="ignore"):
        if found.probability is not None:
            _check_probability(certifier, found.probability, checked)
        if found.rank is not None:
            _check_rank(certifier, found.rank, checked)
        if found.sparse is not None:
            _check_sparse(certifier, found.sparse, checked)
    return checked


def _check_probability(certifier: Certifier, claimed: HighestProbability, checked: Checked) -> None:
    low, high = np.zeros(len(claimed.classes)), np.ones(len(claimed.classes))
    for share in np.unique(claimed.bulk).tolist():
        part = np.flatnonzero(claimed.bulk == share)
        some, inputs = claimed.classes[part], claimed.inputs[part]
        low[part], high[part] = probability_bounds(certifier, some, inputs, claimed.temperature)
        if share:
            high[part] = probability_bounds(
                certifier, some, claimed.mixture_inputs[part], claimed.temperature, share
            )[1]
    # Another machine rounds sums in another order: its proof may be a hair weaker.
    fine_low = low >= claimed.lower * (1 - 1e-9)
    fine_high = high <= claimed.upper * (1 + 1e-9)
    for k in np.flatnonzero(~(fine_low & fine_high)).tolist():
        side = "lower" if not fine_low[k] else "upper"
        checked.failed.append(
            (int(claimed.classes[k]), f"the {side} bound on its probability is not proven")
        )
    checked.held["probability"] = int((fine_low & fine_high).sum())


def _check_rank(certifier: Certifier, claimed: BestRank, checked: Checked) -> None:
    equals = {int(i): g for g in equal_classes(certifier.head) for i in g.tolist()}
    held = 0
    for k, t in enumerate(claimed.classes.tolist()):
        own = equals.get(t, np.array([t]))
        problem = None
        if rank_at(certifier, t, claimed.inputs[k], own) > claimed.upper[k]:
            problem = f"at its input the rank is not {claimed.upper[k]} or better"
        elif _lower(certifier, claimed, k, own) < claimed.lower[k]:
            problem = f"that its rank is never better than {claimed.lower[k]} is not proven"
        if problem is None:
            held += 1
        else:
            checked.failed.append((t, problem))
    checked.held["rank"] = held


def _check_sparse(certifier: Certifier, claimed: SparseProbability, checked: Checked) -> None:
    alpha, temperature = claimed.alpha, claimed.temperature
    low, _, whole = sparse_bounds(
        certifier, claimed.classes, claimed.inputs, claimed.epsilon, alpha, temperature
    )
    high = np.ones(len(low))
    for share in np.unique(claimed.bulk).tolist():
        part = np.flatnonzero(claimed.bulk == share)
        high[part] = sparse_bounds(
            certifier, claimed.classes[part], claimed.mixture_inputs[part], claimed.epsilon[part],
            alpha, temperature, share, [claimed.weights[k] for k in part.tolist()],
        )[1]  # fmt: skip
    failed = []
    for k, t in enumerate(claimed.classes.tolist()):
        # Another machine rounds sums in another order: its proof may be a hair weaker.
        if not low[k] >= claimed.lower[k] * (1 - 1e-9):
            failed.append((t, "the lower bound on its sparse probability is not proven"))
        elif not high[k] <= claimed.upper[k] * (1 + 1e-9):
            failed.append((t, "the upper bound on its sparse probability is not proven"))
        elif not _follows(claimed.support[k], low[k] > 0, high[k] <= 0):
            failed.append((t, "what is said of its support is not proven"))
        elif not _follows(claimed.whole[k], whole[k], high[k] < 1):
            failed.append((t, "what is said of its whole support is not proven"))
    checked.failed += failed
    checked.held["sparse probability"] = len(claimed.classes) - len(failed)


def _follows(claim: int, yes: bool, no: bool) -> bool:
    return bool(yes if claim == 1 else no if claim == 0 else claim == -1)


def _lower(certifier: Certifier, claimed: BestRank, k: int, own: np.ndarray) -> int:
    t, cases, tree = int(claimed.classes[k]), claimed.cases[k], claimed.tree(k)
    if claimed.by_planes(k):  # all planes once more
        found = depth(certifier, t, own, enough=max(int(claimed.lower[k]) - 1, 1))
        return 0 if found is None else 1 + found.least
    if cases is not None:
        return 1 + cases_bound(certifier, t, cases)
    if tree is not None:
        return 1 + packing_bound(certifier, t, claimed.mixtures[k], tree)
    return 1 + disjoint_bound(certifier, t, claimed.mixtures[k])


def _flags(values: np.ndarray, count: int) -> np.ndarray:
    return np.asarray(values if len(values) else np.zeros(count), dtype=np.uint8)


def _tree_arrays(found: BestRank) -> dict[str, np.ndarray]:
    """The trees one after another; classes without one have no nodes."""
    trees = [found.tree(k) for k in range(len(found.classes))]
    given = [tree for tree in trees if tree is not None]
    return {
        "rank_nodes": np.array([0 if t is None else len(t.nodes) for t in trees], dtype=np.int64),
        "tree_node": _joined([t.nodes for t in given], np.int64),
        "tree_mixture": _joined([t.mixtures for t in given], np.int64),
        "tree_share": _joined([t.shares for t in given], np.int64),
    }


def _read_trees(arrays: OwnArchive, count: int) -> list[Tree | None]:
    """The trees of a file, of the right form; files from before there were any have none."""
    if "rank_nodes" not in arrays:
        return [None] * count
    sizes = arrays.array("rank_nodes", (count,), np.int64)
    nodes = arrays.array("tree_node", (None,), np.int64)
    shares = arrays.array("tree_share", (None,), np.int64)
    mixtures = arrays.array("tree_mixture", (len(shares),), np.int64)
    if (sizes < 0).any() or int(sizes.sum()) != len(nodes):
        raise UncorkError("the trees of cases are damaged")
    owned = np.concatenate([[0], np.cumsum(np.maximum(-1 - nodes, 0))])  # shares before each node
    if int(owned[-1]) != len(shares):
        raise UncorkError("the trees of cases are damaged")
    found: list[Tree | None] = []
    stop = 0
    for size in sizes.tolist():
        start, stop = stop, stop + size
        part = slice(int(owned[start]), int(owned[stop]))
        found.append(Tree(nodes[start:stop], mixtures[part], shares[part]) if size else None)
    return found


def _sparse_arrays(found: SparseProbability) -> dict[str, np.ndarray]:
    arrays = {"sparse_class": found.classes}
    for name in _SPARSE:
        arrays[f"sparse_{name}"] = getattr(found, name)
    given = [(k, m) for k, m in enumerate(found.weights) if m is not None]
    none = np.empty(0)
    arrays |= {
        "sparse_weights_of": np.array([k for k, _ in given], dtype=np.int64),
        "sparse_weights_size": np.array([len(m.classes) for _, m in given], dtype=np.int64),
        "sparse_weights_class": np.concatenate([none, *(m.classes for _, m in given)]).astype(
            np.int64
        ),
        "sparse_weights": np.concatenate([none, *(m.weights for _, m in given)]),
    }
    return arrays


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(p, dtype=dtype) for p in parts] or [np.empty(0, dtype)])


def _plain(left_out: frozenset[int], mixture: Mixture) -> list[Any]:
    exact = None if mixture.integers is None else [hex(n) for n in mixture.integers]
    return [
        sorted(left_out), mixture.classes.tolist(), [float(w).hex() for w in mixture.weights],
        float(mixture.bulk).hex(), exact,
    ]  # fmt: skip


def _cases(plain: Any, classes: int, digits: WholeNumbers) -> Cases:
    cases: Cases = {}
    for left_out, members, weights, bulk, exact in plain:
        ids, floats = np.array(members, np.int64), np.array([float.fromhex(w) for w in weights])
        if len(ids) != len(floats) or not are_ids(ids, classes) or len(left_out) > _DEEPEST:
            raise UncorkError("the cases of a class are damaged")
        key = frozenset(int(i) for i in left_out)
        cases[key] = Mixture(ids, floats, float.fromhex(bulk), _whole(exact, digits))
    return cases


def _whole(plain: Any, digits: WholeNumbers) -> tuple[int, ...] | None:
    return None if plain is None else tuple(map(digits, plain))


def _read(arrays: OwnArchive, head: Head) -> Certificates:
    header = arrays.header(_KIND)
    if header["version"] != _VERSION:
        raise UncorkError(f"version {header['version']} is not known to this uncork")
    domain = domain_from(header["domain"], arrays, prefix="domain_")
    domain.check(head.features)
    latent = domain.affine(head.features).latent
    found = Certificates(str(header["fingerprint"]), domain)
    digits = WholeNumbers(domain, head.features, head)

    def column(name: str, count: int, kind: str = "f") -> np.ndarray:
        array = arrays.array(name, (count,))
        if array.dtype.kind not in kind:
            raise UncorkError(f"{name} is damaged")
        return array

    def inputs(name: str, count: int) -> np.ndarray:
        array = arrays.mapped(name, (count, latent))
        if array.dtype.kind != "f":
            raise UncorkError(f"{name} is damaged")
        return array

    if "probability_class" in arrays:
        ids = arrays.ids("probability_class", arrays.count("probability_lower"), head.classes)
        found.probability = HighestProbability(
            ids, column("probability_lower", len(ids)), column("probability_upper", len(ids)),
            inputs("probability_input", len(ids)),
            inputs("probability_mixture_input", len(ids)), column("probability_bulk", len(ids)),
            float(header["temperature"]),
        )  # fmt: skip
    if "rank_class" in arrays:
        ids = arrays.ids("rank_class", arrays.count("rank_input"), head.classes)
        counts = column("rank_mixtures", len(ids), "iu")
        bulk = arrays.array("mixture_bulk", (None,), np.float64).tolist()
        sizes = column("mixture_size", len(bulk), "iu")
        weights = arrays.mapped("mixture_weight", (None,), np.float64)
        members = arrays.ids("mixture_class", len(weights), head.classes)
        sound = len(members) == int(sizes.sum()) and counts.sum() == len(sizes)
        if not sound or (sizes < 0).any() or (counts < 0).any():
            raise UncorkError("the mixtures are damaged")
        ends = np.cumsum(sizes)
        exact = header.get("exact", {})
        flat = [
            Mixture(
                members[stop - size : stop], weights[stop - size : stop], bulk[k],
                _whole(exact.get(str(k)), digits),
            )
            for k, (stop, size) in enumerate(zip(ends.tolist(), sizes.tolist(), strict=True))
        ]  # fmt: skip
        starts = np.cumsum(counts) - counts
        groups = [flat[a : a + n] for a, n in zip(starts.tolist(), counts.tolist(), strict=True)]
        cases: list[Cases | None] = [None] * len(ids)
        for k, plain in header.get("cases", {}).items():
            cases[int(k)] = _cases(plain, head.classes, digits)
        planes = np.zeros(len(ids), dtype=np.uint8)
        if "rank_planes" in arrays:
            planes = arrays.array("rank_planes", (len(ids),), np.uint8)
        found.rank = BestRank(
            ids, column("rank_lower", len(ids), "iu"), column("rank_upper", len(ids), "iu"),
            inputs("rank_input", len(ids)), groups, cases, planes.astype(bool),
            _read_trees(arrays, len(ids)),
        )  # fmt: skip
    if "sparse_class" in arrays:
        found.sparse = _read_sparse(arrays, header["sparse"], head.classes, latent)
    return found


def _read_sparse(arrays: OwnArchive, header: Any, classes: int, latent: int) -> SparseProbability:
    """The claims of a file, of the right form; unproven."""
    ids = arrays.ids("sparse_class", arrays.count("sparse_lower"), classes)
    count = len(ids)
    columns: dict[str, Any] = {}
    for name in _SPARSE:
        shape = (count, latent) if name in _SPARSE_INPUTS else (count,)
        array = arrays.array(f"sparse_{name}", shape)
        if array.dtype.kind not in ("iu" if name in _SPARSE_WHOLE else "f"):
            raise UncorkError(f"sparse_{name} is damaged")
        columns[name] = array
    owners = arrays.ids("sparse_weights_of", None, count)
    sizes = arrays.array("sparse_weights_size", (len(owners),))
    weights = arrays.array("sparse_weights", (None,), np.float64)
    members = arrays.ids("sparse_weights_class", len(weights), classes)
    if sizes.dtype.kind not in "iu" or (sizes < 0).any() or int(sizes.sum()) != len(members):
        raise UncorkError("the weights of sparse probabilities are damaged")
    given: list[Mixture | None] = [None] * count
    ends = np.cumsum(sizes)
    for k, stop, size in zip(owners.tolist(), ends.tolist(), sizes.tolist(), strict=True):
        given[k] = Mixture(members[stop - size : stop], weights[stop - size : stop])
    return SparseProbability(
        ids, **columns, weights=given, alpha=float(header["alpha"]),
        temperature=float(header["temperature"]),
    )  # fmt: skip
