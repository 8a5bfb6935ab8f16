"""Kernels launched again by their compiled form: never by another's."""

import pytest

torch = pytest.importorskip("torch")

from uncork.nn.kernels import launch as launching  # noqa: E402
from uncork.nn.kernels.launch import Repeated, launch  # noqa: E402


class Form:
    """A compiled kernel: remembers what it was launched with."""

    def __init__(self):
        self.launched = []

    def __getitem__(self, grid):
        return lambda *values: self.launched.append((grid, values))


class Kernel:
    """As Triton's: every launch that is looked over yields a form of its own."""

    arg_names = ("z", "n", "alpha", "begin", "FLAG")

    def __init__(self, interpreted=False):
        self.forms, self.seen, self.interpreted = [], [], interpreted

    def __getitem__(self, grid):
        def look_over(**arguments):
            self.seen.append((grid, arguments))
            if self.interpreted:
                return None
            self.forms.append(Form())
            return self.forms[-1]

        return look_over


@pytest.fixture(autouse=True)
def no_forms(monkeypatch):
    monkeypatch.setattr(launching, "_forms", {})


def arguments(**changed):
    z = torch.zeros(64)
    return {"z": z, "n": 3, "alpha": 1.5, "begin": 0, "FLAG": True, "num_warps": 4} | changed


def test_the_same_arguments_are_looked_over_once():
    kernel = Kernel()
    first, again = arguments(), arguments()
    launch(kernel, 5, first)
    launch(kernel, 6, again)
    assert [grid for grid, _ in kernel.seen] == [(5,)]
    ((grid, values),) = kernel.forms[0].launched
    assert grid == (6, 1, 1)
    assert values == (again["z"].data_ptr(), 3, 1.5, 0, True)


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 4},
        {"alpha": 1.25},
        {"FLAG": False},
        {"FLAG": 1},  # equal to True, and of another type
        {"n": 3.0},
        {"num_warps": 8},
        {"maxnreg": 64},
        {"z": torch.zeros(64, dtype=torch.float64)},
        {"z": torch.zeros(65)[1:]},  # no longer at a multiple of 16 bytes
    ],
)
def test_whatever_a_form_depends_on_asks_for_another(changed):
    kernel = Kernel()
    launch(kernel, 5, arguments())
    launch(kernel, 5, arguments(**changed))
    assert len(kernel.seen) == 2
    assert kernel.forms[0].launched == []


def test_each_kernel_has_its_own_forms():
    first, second = Kernel(), Kernel()
    launch(first, 5, arguments())
    launch(second, 5, arguments())
    assert len(first.seen) == len(second.seen) == 1


def test_forms_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(launching, "_MOST", 3)
    kernel = Kernel()
    for n in range(10):
        launch(kernel, 1, arguments(n=n))
    assert len(kernel.seen) == 10
    assert len(launching._forms) <= 3


def test_a_repeated_kernel_is_told_where_it_begins():
    kernel = Kernel()
    given = {name: value for name, value in arguments().items() if name != "begin"}
    repeated = Repeated(kernel, given)
    for rows, begin in ((8, 0), (8, 8), (5, 16)):
        repeated(rows, begin)
    assert len(kernel.seen) == 1
    address = given["z"].data_ptr()
    assert kernel.forms[0].launched == [
        ((8, 1, 1), (address, 3, 1.5, 8, True)),
        ((5, 1, 1), (address, 3, 1.5, 16, True)),
    ]


def test_the_interpreter_has_no_forms():
    kernel = Kernel(interpreted=True)
    given = {name: value for name, value in arguments().items() if name != "begin"}
    repeated = Repeated(kernel, given)
    repeated(8, 0)
    repeated(8, 8)
    assert [seen["begin"] for _, seen in kernel.seen] == [0, 8]
    assert launching._forms == {}
