"""uncork draw: figures that are what they claim, and clear words where a head cannot be drawn."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from colour_vision import VISIONS, apart, seen
from running import Run

import uncork
from uncork.draw import draw, example, globe
from uncork.draw.cells import inside, ranked, region, solid, view_of
from uncork.draw.cells import square as square_of
from uncork.draw.colouring import coloured
from uncork.draw.hull import hull_faces
from uncork.draw.regions import touching
from uncork.draw.style import LOST, PALETTE
from uncork.theory.braid import rankings
from uncork.theory.random_heads import random_head

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF-1"}


def words(path: Path) -> str:
    """Every text of an SVG."""
    return "\n".join(
        "".join(element.itertext())
        for element in ElementTree.parse(path).iter()
        if element.tag.endswith("}text")
    )


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_each_format_is_written(run: Run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure{suffix}"
    ran = run("draw", "--figure", 1, "-o", path)
    assert (ran.status, ran.out) == (0, f"drawn to {path}\n")
    assert path.read_bytes().startswith(STARTS[suffix])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [  # and every picture of the gallery: tests/docs/test_site.py
        (["--figure", 2, "--what", "regions"], "4 classes, and each of them can win"),
        (["--figure", 7], "6 of 6 rankings, without a bias"),
        (["--figure", 8, "--bias", "--domain", "box:0.05"], "2 of 24 rankings, with a bias"),
        (["--random", "-C", 4, "-d", 1, "--what", "braid"], "2 of 24 rankings, without a bias"),
        (["--random", "-C", 60, "-d", 3, "--what", "hull"], "39 of 60 classes can never win"),
    ],
)
def test_pictures_say_what_is_true_of_the_head(
    run: Run, tmp_path: Path, arguments: list[object], said: str
) -> None:
    path = tmp_path / "figure.svg"
    assert run("draw", *arguments, "-o", path).status == 0
    assert said in words(path)


def test_every_feasible_ranking_is_named(run: Run, tmp_path: Path) -> None:
    run("draw", "--figure", 8, "--bias", "--extent", 2.2, "-o", tmp_path / "figure.svg")
    named = set(re.findall(r"^[A-D]{4}$", words(tmp_path / "figure.svg"), re.MULTILINE))
    truth = {"".join("ABCD"[i] for i in r.order) for r in rankings(example(8, bias=True))}
    assert named <= truth
    assert len(named) >= 16  # slivers at the edge have no room for a name


def test_the_same_command_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for suffix in (".svg", ".pdf"):
        paths = [tmp_path / f"{k}{suffix}" for k in "ab"]
        for path in paths:
            run("draw", "--figure", 1, "--what", "hull", "-o", path)
        assert paths[0].read_bytes() == paths[1].read_bytes()


HOSTILE = [
    "$x^{$",
    "<script>alert(1)</script>",
    "a\nb\x00",
    "漢字",
    "\u202eabc",
    "x" * 5000,
    "",
    " ",
]


@pytest.mark.parametrize(
    ("what", "features"), [("both", 2), ("hull", 3), ("regions", 3)], ids=["plane", "hull", "space"]
)
def test_labels_are_only_text(tmp_path: Path, what: str, features: int) -> None:
    angle = np.linspace(0, 6, len(HOSTILE))
    weight = np.column_stack([np.cos(angle), np.sin(angle), angle % 1.3])[:, :features]
    bias = None if what == "hull" else np.zeros(len(HOSTILE))  # solids with a legend
    head = uncork.Head(weight, bias, labels=HOSTILE, domain=uncork.Box(1))
    draw(head, tmp_path / "figure.svg", what)
    said = words(tmp_path / "figure.svg")
    assert "$x^{$" in said
    assert "<script>alert" in said  # as text: the file is sound XML, and this was read from it
    assert "x" * 20 not in said
    draw(head, tmp_path / "figure.pdf", what)


def test_labels_of_rankings_are_only_text(tmp_path: Path) -> None:
    for rows, labels in (((0, 1, 2), HOSTILE[:3]), ((0, 1, 2, 3), HOSTILE[:4])):
        chosen = example(8, bias=True)
        assert chosen.bias is not None
        head = uncork.Head(
            chosen.weight[list(rows)], chosen.bias[list(rows)], labels, uncork.Unbounded()
        )
        draw(head, tmp_path / "figure.svg", "braid")
        assert "$x^{$" in words(tmp_path / "figure.svg")


@pytest.mark.parametrize(
    "weight",
    [
        np.zeros((3, 2)),
        np.ones((3, 3)),
        np.array([[0.0, 0], [1, 1], [2, 2], [3, 3]]),
        np.array([[1.0, 0], [1, 0], [0, 1]]),
        np.array([[0.0, 0, 1], [0, 0, 2]]),
        np.array([[1e-90, 0], [0, 1e-90], [0, 0]]),
    ],
    ids=["zero", "equal", "on a line", "a pair of equals", "two classes", "tiny"],
)
def test_degenerate_heads_are_drawn(tmp_path: Path, weight: np.ndarray) -> None:
    for bias in (None, np.arange(len(weight), dtype=float)):
        head = uncork.Head(weight, bias, domain=uncork.Unbounded())
        draw(head, tmp_path / "figure.svg", "both" if bias is None else "regions")
        assert words(tmp_path / "figure.svg")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "give one of SOURCE, --random or --figure"),
        (["--random", "--figure", 1], "give one of SOURCE, --random or --figure"),
        (
            ["--random", "-C", 5, "-d", 8],
            "regions and hull can be drawn of 2 or 3 features, not of",
        ),
        (["--random", "-C", 5, "-d", 2, "--what", "braid"], "3 or 4 classes and up to 3 features"),
        (["--random", "-C", 5000, "-d", 2], "at most 1,000 can be drawn"),
        (["--random", "-C", 5], "give -C and -d"),
        (["--figure", 4], "there is no example after Figure 4"),
        (["--figure", 1, "-C", 3], "-C and -d go with --random"),
        (["--figure", 1, "--labels", "x"], "go with a SOURCE"),
        (["--figure", 1, "--domain", "ball:2"], "not over ball:2"),
        (["--figure", 1, "--extent", -1], "expected a positive number"),
        (["missing.npz"], "missing.npz"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(
    run: Run, tmp_path: Path, arguments: list[object], what: str
) -> None:
    path = tmp_path / "figure.png"
    assert what in run("draw", *arguments, "-o", path).error
    assert not path.exists()


def test_other_file_names_are_refused(run: Run, tmp_path: Path) -> None:
    assert "ends in .png" in run("draw", "--figure", 1, "-o", tmp_path / "figure.txt").error
    assert "no folder" in run("draw", "--figure", 1, "-o", tmp_path / "no" / "f.png").error


def test_a_file_of_ones_own_is_drawn(run: Run, square: Path, labels: Path, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    assert run("draw", square, "--labels", labels, "-o", path).status == 0
    assert "1 of 6 classes can never win" in words(path)
    assert "γάμμα" in words(path)
    before = square.read_bytes()
    assert run("draw", square, "-o", square).status == 2
    assert square.read_bytes() == before


def test_regions_of_the_plane_cover_it_once(rng: np.random.Generator) -> None:
    for _ in range(20):
        weight, bias = rng.normal(size=(7, 2)), rng.normal(size=7)
        edge = np.array([[-2.0, -2], [2, -2], [2, 2], [-2, 2]])
        polygons = [region(weight, bias, t, edge) for t in range(7)]
        areas = [area(polygon) for polygon in polygons if len(polygon)]
        assert sum(areas) == pytest.approx(16)
        for t, polygon in enumerate(polygons):
            if len(polygon) and area(polygon) > 1e-6:
                where, _ = inside(polygon)
                assert np.argmax(weight @ where + bias) == t


def test_solids_fill_the_box(rng: np.random.Generator) -> None:
    from scipy.spatial import ConvexHull

    for _ in range(8):
        weight, bias = rng.normal(size=(6, 3)), rng.normal(size=6)
        low, high = np.full(3, -2.0), np.full(3, 2.0)
        solids = [solid(weight, bias, t, low, high) for t in range(6)]
        volumes = [ConvexHull(np.vstack(faces)).volume for faces in solids if faces]
        assert sum(volumes) == pytest.approx(64, rel=1e-4)


def test_faces_are_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib pads others with unwritten memory and takes the axes' limits from it."""
    from mpl_toolkits.mplot3d import art3d

    from uncork.draw.style import faces

    given: list[list[np.ndarray]] = []
    monkeypatch.setattr(art3d, "Poly3DCollection", given.append)
    square_face, triangle = np.ones((4, 3)), np.zeros((3, 3))
    faces(SimpleNamespace(add_collection3d=lambda _: None), [square_face, triangle])
    assert [polygon.shape for polygon in given[0]] == [(4, 3), (4, 3)]


def test_the_view_holds_every_bounded_region() -> None:
    head = example(8, bias=True)
    assert head.bias is not None
    view = view_of(head, walls=True)
    low, high = view.bounds()
    edge = square_of(low, high)
    for ranking in rankings(head):
        if ranking.bounded:
            polygon = ranked(head.weight, head.bias, ranking.order, edge)
            assert (polygon > low + 1e-9).all()
            assert (polygon < high - 1e-9).all()


@pytest.mark.parametrize(
    "weight",
    [
        [[1, 0.3, 0.2], [-1, 0.5, 0.1]],
        [[0, 0, 0], [1, 1, 0.5], [2, 2, 1], [3, 3, 1.5]],
        [[0.5, -0.72, 0.4801], [0.5, -0.72, 0.48], [-1, 0, 0]],
    ],
    ids=["two classes", "rows on a line", "rows far too near"],
)
def test_every_border_on_the_globe_is_a_great_circle(weight: list[list[float]]) -> None:
    head = uncork.Head(np.array(weight, dtype=float), domain=uncork.Unbounded())
    rows = head.rows(0, head.classes)
    for view in (globe.VIEW, -globe.VIEW):
        frame = np.column_stack([*globe._across(view), view])
        flat, height = globe._seen(head, view)
        for t in range(head.classes):
            polygon = region(flat, height, t, globe._PLANE)
            if len(polygon) < 3:
                continue
            bent = globe._bent(polygon)
            deep = np.sqrt(np.clip(1 - (bent**2).sum(axis=1), 0, None))
            on_globe = np.column_stack([bent, deep]) @ frame.T
            logits = on_globe @ rows.T
            inner = deep > 0.02  # the rest is the globe's own edge
            # A point of the border is one where t is first together with another.
            others = np.delete(logits, t, axis=1).max(axis=1)
            size = np.abs(rows).max()
            assert np.abs(logits[:, t] - others)[inner].max(initial=0) < 1e-6 * size
            steps = np.linalg.norm(np.diff(np.vstack([bent, bent[:1]]), axis=0), axis=1)
            assert steps.max() < 0.12


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ([[1.0, 2]] * 4, "4 classes, all equal: they can only tie"),
        ([[1.0, 0], [1, 0], [0, 1], [-1, -1]], "4 classes, 2 can only tie, the others can win"),
        ([[1.0, 0], [1, 0], [-1, 0], [-1, 0]], "4 classes, 4 can only tie"),
        ([[2.0, 0], [2, 0], [-1, 0], [0, 0]], "1 of 4 classes can never win, 2 can only tie"),
    ],
)
def test_classes_that_tie_are_not_said_to_win(
    tmp_path: Path, weight: list[list[float]], said: str
) -> None:
    draw(uncork.Head(np.array(weight), domain=uncork.Unbounded()), tmp_path / "figure.svg")
    assert said in words(tmp_path / "figure.svg")
    assert "A = B" in words(tmp_path / "figure.svg")


def test_rows_in_a_plane_or_on_a_line_have_their_hull(rng: np.random.Generator) -> None:
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    corners = np.array([[0.0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0]]) @ turn
    (face,) = hull_faces(np.vstack([corners, corners.mean(axis=0)]) + 5)
    assert sorted(map(tuple, face.round(9))) == sorted(map(tuple, (corners + 5).round(9)))
    (segment,) = hull_faces(np.outer([3.0, -1, 2], turn[0]) + 7)
    assert np.linalg.norm(segment[1] - segment[0]) == pytest.approx(4)
    assert len(hull_faces(np.vstack([corners, [0, 0, 9]]))) >= 5
    assert hull_faces(np.ones((4, 3))) == []
    (side,) = hull_faces(np.array([[0.0, 0], [1, 1], [3, 3]]))
    assert side.tolist() == [[0, 0], [3, 3]] or side.tolist() == [[3, 3], [0, 0]]


@pytest.mark.parametrize("vision", VISIONS)
def test_fills_are_told_apart_by_every_reader(vision: str) -> None:
    from matplotlib.colors import to_rgb

    lab = seen(np.array([to_rgb(c) for c in (*PALETTE, "#ffffff", LOST)]), vision)
    least = min(apart(one, other) for one, other in itertools.combinations(lab[:-1], 2))
    assert least > 11  # white among them
    assert min(apart(*pair) for pair in itertools.combinations(lab[: len(PALETTE)], 2)) > 15
    assert min(apart(lab[-1], one) for one in lab[:-1]) > 12


def test_regions_that_touch_have_different_colours() -> None:
    for features, bias, seed in ((2, True, 1), (3, False, 0), (3, True, 0)):
        head = random_head(60, features, bias=bias, seed=seed).replace(domain=uncork.Unbounded())
        lost = np.zeros(60, dtype=bool)
        lost[uncork.audit(head, jobs=1).unargmaxable] = True
        pairs = list(touching(head, lost))
        shades = coloured(60, pairs)
        assert len(pairs) > 20
        assert all(shades[i] != shades[j] for i, j in pairs)
        if features == 2:  # in space slivers are left out
            assert all((j, i) in pairs for i, j in pairs)
    assert coloured(8, []) == list(range(8))


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--extent", "1e308"], "extent 1e+308 cannot be drawn: expected 1e-100 to 1e+100"),
        (["--extent", "1e200"], "extent 1e+200 cannot be drawn"),
        (["--extent", "1e-320"], "cannot be drawn: expected 1e-100 to 1e+100"),
        (["--domain", "box:1e308"], "a domain with a side at 1e+308 cannot be drawn"),
        (["--domain", "box:-1e200,1"], "a domain with a side at 1e+200 cannot be drawn"),
    ],
)
@pytest.mark.parametrize("what", ["both", "braid"])
def test_sizes_that_cannot_be_drawn_are_refused(
    run: Run, tmp_path: Path, what: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "figure.svg"
    asked = ("draw", "--random", "-C", 4, "-d", 2, "--what", what, "-o", path)
    assert message in run(*asked, *arguments).error
    assert not path.exists()
