"""Domains on disk: read back as they were written, and nothing else is believed."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import Ball, Box, Domain, Image, LayerNorm, RMSNorm, Unbounded, UncorkError
from uncork.domain import parse_domain
from uncork.domain.file import read_domain, write_domain

RNG = np.random.default_rng(0)
DOMAINS = [
    Unbounded(), Box(100), Box(0, np.inf), Ball(0.1), Box(RNG.random(5) - 2, RNG.random(5)),
    Box(np.array([-np.inf, 0.1]), np.array([0.3, np.inf])), LayerNorm(features=3),
    LayerNorm(RNG.random(3), RNG.random(3).astype(np.float32)), RMSNorm([1, 0, -2]),
    Image(LayerNorm(RNG.random(4)), RNG.random((2, 4)), RNG.random(2)),
    Image(Image(Box(0, 1), RNG.random((2, 3))), None, [1.0, 2.0]),
]  # fmt: skip


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_a_domain_is_read_back_exactly_with_where_it_is_from(
    domain: Domain, tmp_path: Path
) -> None:
    about = {"model": "bert", "inputs": 12, "quantiles": [0.0, 1.0]}
    write_domain(tmp_path / "d.npz", domain, about)
    again, provenance = read_domain(tmp_path / "d.npz")
    assert again == domain
    assert again.spec() == domain.spec()
    assert hash(again) == hash(domain)
    assert provenance == about
    assert parse_domain(f"@{tmp_path / 'd.npz'}") == domain
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_values_that_float32_holds_take_half_the_room(tmp_path: Path) -> None:
    bounds = RNG.random(4000).astype(np.float32)
    write_domain(tmp_path / "narrow.npz", Box(-bounds, bounds))
    write_domain(tmp_path / "wide.npz", Box(-RNG.random(4000), RNG.random(4000)))
    sizes = [(tmp_path / name).stat().st_size for name in ("narrow.npz", "wide.npz")]
    assert sizes[0] < 0.6 * sizes[1]


def written(path: Path, header: Any, **arrays: np.ndarray) -> Path:
    np.savez(path, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "not a domain file"),
        ({"kind": "something else"}, "not a domain file"),
        ({"kind": "uncork domain", "version": 99}, "version 99"),
        ({"kind": "uncork domain", "version": 1}, "damaged"),
        ({"kind": "uncork domain", "version": 1, "domain": {"kind": "cube"}}, "is not known"),
        ({"kind": "uncork domain", "version": 1, "domain": {"kind": "ball", "radius": "-0x1p0"}},
         "positive finite radius"),
        ({"kind": "uncork domain", "version": 1,
          "domain": {"kind": "box", "lower": "upper", "upper": "lower"}}, "empty"),
        ({"kind": "uncork domain", "version": 1, "domain": {"kind": "rmsnorm", "gain": "missing"}},
         "missing"),
        ({"kind": "uncork domain", "version": 1, "domain": {"kind": "rmsnorm", "gain": "gain"}},
         "expected floats"),
    ],
    ids=lambda value: json.dumps(value)[-40:],
)  # fmt: skip
def test_a_file_that_is_no_domain_is_refused_by_name(
    header: Any, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "d.npz", header, lower=np.zeros(2), upper=np.ones(2),
                   gain=np.array(["a"]))  # fmt: skip
    with pytest.raises(UncorkError, match=message) as refused:
        read_domain(path)
    assert "d.npz" in str(refused.value)


def test_images_within_images_without_end_are_refused(tmp_path: Path) -> None:
    domain: dict[str, Any] = {"kind": "unbounded"}
    for _ in range(500):
        domain = {"kind": "image", "inner": domain}
    header = {"kind": "uncork domain", "version": 1, "domain": domain}
    with pytest.raises(UncorkError, match="damaged"):
        read_domain(written(tmp_path / "d.npz", header))


def announcing(shape: str) -> bytes:
    """A .npy whose header announces more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(8))
    return file.getvalue().replace(b"(8,)", shape.encode())


@pytest.mark.parametrize("shape", ["(99999999999,)", "(999,)"])
def test_arrays_that_announce_more_than_there_is_are_refused_before_they_are_made(
    shape: str, tmp_path: Path
) -> None:
    write_domain(tmp_path / "d.npz", Box(np.zeros(8), np.ones(8)))
    with (
        zipfile.ZipFile(tmp_path / "d.npz") as old,
        zipfile.ZipFile(tmp_path / "h.npz", "w") as new,
    ):
        new.writestr("header.npy", old.read("header.npy"))
        new.writestr("lower.npy", announcing(shape))
        new.writestr("upper.npy", old.read("upper.npy"))
    with pytest.raises(UncorkError, match=r"h\.npz: lower announces [\d,]+ bytes and has \d+"):
        read_domain(tmp_path / "h.npz")


def test_pickles_and_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", header=np.array([{"kind": "uncork domain"}], dtype=object))
    (tmp_path / "t.npz").write_text("box:100")
    np.save(tmp_path / "a.npy", np.zeros(3))
    for name in ("p.npz", "t.npz", "a.npy"):
        with pytest.raises(UncorkError, match=name.replace(".", r"\.")):
            read_domain(tmp_path / name)
    with pytest.raises(UncorkError, match="no such file"):
        parse_domain(f"@{tmp_path / 'nothing.npz'}")


def test_provenance_that_json_cannot_hold_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="JSON cannot hold"):
        write_domain(tmp_path / "d.npz", Ball(1.0), {"x": object()})
    assert not list(tmp_path.iterdir())
