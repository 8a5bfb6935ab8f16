"""The rooms of src/uncork, and who may import whom: the tables here are the architecture.

docs/architecture.md draws them. A new import between rooms that is missing here is a decision: make
it on purpose, and write it down.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import uncork
from uncork.cli.program import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = Path(uncork.__file__).parent

# Room → rooms it may import from. `auditing` has rooms of its own; `auditing` by itself is the
# modules beside them. Everybody may ask `uncork` for its version.
ALLOWED = {
    "core": {"domain"},
    "domain": {"core"},
    "loading": {"core", "domain"},
    "auditing.proofs": {"core", "domain", "auditing", "auditing.certify"},
    "auditing.certify": {"core", "domain", "auditing", "auditing.proofs"},
    "auditing.search": {"core", "domain", "auditing", "auditing.certify", "auditing.proofs"},
    "auditing": {
        "core", "domain", "auditing.certify", "auditing.proofs", "auditing.search", "report",
    },
    "theory": {"core", "domain", "auditing", "auditing.certify", "auditing.search"},
    "reach": {
        "core", "domain", "auditing", "auditing.certify", "auditing.proofs", "auditing.search",
    },
    "labels": {
        "core", "domain", "auditing", "auditing.certify", "auditing.proofs", "auditing.search",
    },
    "retrieval": {"core", "domain", "auditing", "auditing.certify", "auditing.search"},
    "repair": {
        "core", "domain", "loading", "auditing", "auditing.certify", "auditing.proofs",
        "auditing.search", "reach",
    },
    "save": {"core", "loading"},
    "activations": {
        "core", "domain", "loading", "auditing", "auditing.certify", "auditing.proofs", "report",
    },
    "nn": {"core", "domain", "auditing", "auditing.certify", "auditing.proofs"},
    "store": {"core", "auditing", "auditing.proofs", "labels"},
    "workers": {
        "core", "domain", "loading", "auditing", "auditing.certify", "auditing.proofs",
    },
    "sweep": {
        "core", "domain", "loading", "auditing", "auditing.proofs", "auditing.search", "theory",
        "store", "workers",
    },
    "draw": {"core", "domain", "auditing", "auditing.proofs", "theory", "report"},
    "report": {
        "core", "domain", "loading", "auditing", "auditing.certify", "auditing.proofs", "theory",
        "store", "labels",
    },
    "check": {"core", "domain", "loading", "auditing", "auditing.proofs", "theory", "reach"},
    "web": {
        "core", "domain", "loading", "auditing", "auditing.certify", "auditing.proofs", "theory",
        "reach", "store", "report", "labels",
    },
}  # fmt: skip
EVERYWHERE = {"cli", ""}  # the commands, and uncork itself: they bring the rooms together

# Imports against the order of the rooms, and why. Without them no room depends on itself.
BACKWARDS = {
    ("core", "domain"): "a head has a domain, and a domain is read and refused as all else is",
    ("auditing", "report"): "Audit.report() is a promise; its import is made when it is called",
}

# What the trusted code may import of the modules beside it: nothing that searches.
CERTIFY_MAY_SEE = {
    "auditing.backend",  # threads and devices
    "auditing.folded",  # in annotations
    "auditing.result",  # in annotations
}

# Libraries that belong to some rooms only.
LIBRARIES = {
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli", "core"},  # core.progress: the one progress display
    "fastapi": {"web"},
    "starlette": {"web"},
    "uvicorn": {"web", "cli"},
    "sqlalchemy": {"store", "web"},
    "alembic": {"store"},
    "matplotlib": {"draw", "report", "activations"},
    "triton": {"nn"},
    "transformers": {"nn", "activations", "loading"},
    "onnx": {"loading", "save", "activations"},
    "onnxruntime": {"activations"},
    "huggingface_hub": {"loading", "check"},
    "highspy": {"auditing", "reach", "repair"},
}

# Classes of one room that another names, beside those of core and domain: the values that cross.
# Commands and tests bring rooms together and may name any. A class that is missing here is a
# decision too: perhaps one of these carries what is needed.
CROSSING = {
    "loading": {
        "Found",  # a head, and what of its source the copy or the report needs
        "Tensor", "HeadNode", "Graph", "Constants",  # for save and activations, which write and run
        "OddRows",
    },
    "auditing": {
        "Audit", "Options",
        "Verdict", "Mixture", "Proofs",
        "Range", "Formula", "Interrupted",  # for workers: proofs that travel, and are put together
        "Certifier", "Recorder", "Device", "Backend",  # who else proposes has it certified
        "Tilted", "WholeNumbers", "Space", "Limit",  # for reach: the same search, other questions
        "Balance", "Latent", "Products",  # for the certifiers of sets: the same bounds
        "Absorber",
    },
    "workers": {"Decided", "Kept", "Lost", "Queue", "Call"},  # for sweeps
    "labels": {
        "LabelAudit", "SetVerdict",
        "LabelSets", "LabelCertifier",  # a page asks about one set, and has its proof checked
    },
    "reach": {"Outlook", "SearchedHead", "Surface", "Depths", "Programme"},
    "theory": {"LostClasses", "Spectrum"},
    "store": {"Store", "StoredAudit"},
    "report": {"Shown", "Summary", "ShownMixture"},  # a stored audit, as a report shows one
}  # fmt: skip

MOST_MODULES = 13  # beside one another in a folder: a dozen or so
LARGER = {
    "core": 14,  # one a value that crosses rooms, and what they stand on
    "auditing/certify": 15,  # each a small part of what is trusted
    "auditing/search": 15,  # one a proposer, and what they share
    "cli/commands": sum(map(len, COMMANDS.values())),  # one a command
    "nn/heads": 16,  # one a kind of head, and what they share
}


@dataclass(frozen=True)
class Import:
    """One import of one module by another."""

    importer: str
    imported: str
    line: int
    when_needed: bool  # inside a function, or for a type checker: not when a module is loaded

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, Path]:
    """Names without the leading `uncork`, "" for the package itself."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def statements(module: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Every import of a module, and whether it is left until it is needed."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(modules()[module].read_bytes()), False)]
    while waiting:
        node, when_needed = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, when_needed))
        elif not isinstance(node, ast.expr):
            when_needed |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            when_needed |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            waiting += [(child, when_needed) for child in ast.iter_child_nodes(node)]
    return tuple(found)


@cache
def imports() -> tuple[Import, ...]:
    """Imports of uncork's modules by each other: `from package import module` names the module."""
    found = []
    for importer in modules():
        for node, when_needed in statements(importer):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                assert not node.level, f"{importer}:{node.lineno} is a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] == "uncork" and name != "uncork.__version__":
                    found.append(Import(importer, _module(name), node.lineno, when_needed))
    return tuple(found)


def _module(dotted: str) -> str:
    """The module that a dotted name is, or is defined in."""
    name = ".".join(dotted.split(".")[1:])
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def room(module: str) -> str:
    parts = module.split(".")
    inner = ".".join(parts[:2])
    if inner in ALLOWED:
        return inner
    return "" if parts[0] == "__main__" else parts[0]


def outer(module: str) -> str:
    return room(module).split(".")[0]


# The table


def test_every_room_is_in_the_table() -> None:
    assert {room(module) for module in modules()} == {*ALLOWED, *EVERYWHERE}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_room_imports_only_from_rooms_it_may(name: str) -> None:
    wrong = [
        str(made)
        for made in imports()
        if room(made.importer) == name and room(made.imported) not in {name, *ALLOWED[name]}
    ]
    assert wrong == []


def test_nobody_imports_the_commands() -> None:
    wrong = [made for made in imports() if outer(made.imported) == "cli"]
    assert [str(made) for made in wrong if outer(made.importer) not in EVERYWHERE] == []


def test_no_room_depends_on_itself_but_by_imports_named_with_a_reason() -> None:
    edges = {(outer(made.importer), outer(made.imported)) for made in imports()}
    below: dict[str, set[str]] = {}
    for importer, imported in edges - BACKWARDS.keys():
        if importer != imported and importer:
            below.setdefault(importer, set()).add(imported)
    order: list[str] = []
    while rest := {*ALLOWED, "cli"} - set(order):
        free = {name for name in rest if "." in name or below.get(name, set()) <= {*order, name}}
        assert free, f"these rooms depend on one another: {sorted(rest)}"
        order.extend(sorted(free))
    assert order[-1] == "cli"


def test_backward_imports_between_large_rooms_are_made_when_needed() -> None:
    made = [
        i for i in imports() if (outer(i.importer), outer(i.imported)) == ("auditing", "report")
    ]
    assert made
    assert all(one.when_needed for one in made)


def test_only_values_that_are_named_here_cross_rooms() -> None:
    wrong = []
    for importer in modules():
        if outer(importer) in EVERYWHERE:
            continue
        for node, _ in statements(importer):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("uncork"):
                continue
            for alias in node.names:
                home = outer(_module(f"{node.module}.{alias.name}"))
                if home in ("", "core", "domain", outer(importer)) or not alias.name[:1].isupper():
                    continue
                if not alias.name.isupper() and alias.name not in CROSSING.get(home, set()):
                    wrong.append(f"{importer}:{node.lineno} names {alias.name} of {home}")
    assert wrong == []


def test_nobody_imports_what_another_module_keeps_to_itself() -> None:
    wrong = [
        f"{importer}:{node.lineno} imports {alias.name}"
        for importer in modules()
        for node, _ in statements(importer)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uncork")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert wrong == []


# The trusted code


def test_the_certifier_imports_no_search_not_even_through_others() -> None:
    """By what is loaded with it; a package's own `__init__` is left out, which loads its rooms."""
    loaded: dict[str, set[str]] = {}
    for made in imports():
        if not made.when_needed:
            loaded.setdefault(made.importer, set()).add(made.imported)
    reached = {module for module in modules() if room(module) == "auditing.certify"}
    waiting = list(reached)
    while waiting:
        for module in loaded.get(waiting.pop(), set()) - reached:
            reached.add(module)
            waiting.append(module)
    assert {module for module in reached if room(module) == "auditing.search"} == set()
    assert {outer(module) for module in reached} == {"core", "domain", "auditing"}


def test_the_certifier_sees_little_of_what_stands_beside_it() -> None:
    seen = {
        made.imported
        for made in imports()
        if room(made.importer) == "auditing.certify" and room(made.imported) == "auditing"
    }
    assert seen <= CERTIFY_MAY_SEE


def test_the_certifier_has_no_solver_in_it() -> None:
    wrong = [
        f"{module}: {library}"
        for module in modules()
        if room(module) == "auditing.certify"
        for library in libraries(module) - {"numpy", "uncork", *sys.stdlib_module_names}
    ]
    assert wrong == []


# Libraries


@cache
def libraries(module: str) -> frozenset[str]:
    """The packages that a module imports from."""
    names: set[str] = set()
    for node, _ in statements(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            names.add(node.module or "")
    return frozenset(name.split(".")[0] for name in names)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_used_where_it_belongs(library: str) -> None:
    wrong = [
        module
        for module in modules()
        if library in libraries(module) and outer(module) not in LIBRARIES[library]
    ]
    assert wrong == []


# Names and folders


@cache
def bound(package: str) -> dict[str, str]:
    """Names that a package's own code binds, each with the dotted name it stands for."""
    names: dict[str, str] = {}
    for node in ast.parse(modules()[package].read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = "a definition"
        elif isinstance(node, ast.Assign):
            names |= {
                target.id: "a value" for target in node.targets if isinstance(target, ast.Name)
            }
    return names


def test_no_dotted_name_is_both_a_module_and_something_else() -> None:
    both = [
        module
        for module in modules()
        if module and module.rpartition(".")[0] in modules()
        for package, _, own in [module.rpartition(".")]
        if bound(package).get(own, f"uncork.{module}") != f"uncork.{module}"
    ]
    assert both == []


def test_a_folder_is_one_room_not_two() -> None:
    wrong = {}
    for folder in {path.parent for path in modules().values()}:
        name = folder.relative_to(SOURCE).as_posix()
        count = len([path for path in folder.glob("*.py") if path.stem != "__init__"])
        if count > LARGER.get(name, MOST_MODULES):
            wrong[name] = count
    assert wrong == {}


# The tests


def test_every_room_has_tests_in_a_folder_of_its_name() -> None:
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {outer(module) for module in modules()} - {""} - tested == set()


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest refuses to collect them together, and tests/slow.txt names files without folders."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


# docs/architecture.md


@cache
def described() -> dict[str, list[str]]:
    """The modules that the page describes, by the folder under whose heading they stand."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", _section(page, "Every module"), flags=re.M)[1:]:
        folder = re.match(r"`([\w/]+)/`", part)
        assert folder is not None, part.splitlines()[0]
        first = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        found[folder[1]] = [name for cell in first for name in re.findall(r"`([\w/.]+)`", cell)]
    return found


def test_the_page_names_every_module_and_no_other() -> None:
    named = {f"{folder}/{name}" for folder, names in described().items() for name in names}
    there = {
        f"uncork/{path.relative_to(SOURCE).as_posix()}"
        for path in modules().values()
        if path.stem != "__init__"
    }
    assert sorted(there - named) == []
    assert sorted(named - there) == []


def test_the_page_names_no_module_twice() -> None:
    for folder, names in described().items():
        assert len(names) == len(set(names)), folder


def test_the_page_names_every_value_that_crosses() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    every = {name for names in CROSSING.values() for name in names}
    assert every - set(re.findall(r"`(\w+)`", _section(page, "What crosses rooms"))) == set()


def test_the_page_says_who_may_import_whom() -> None:
    """One row a room, the rooms of auditing being one."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", _section(page, "Who may import whom"), re.M))
    table: dict[str, set[str]] = {}
    for name, may in ALLOWED.items():
        own = outer(name)
        table.setdefault(own, set()).update({outer(one) for one in may} - {own})
    assert {name: set(re.findall(r"`(\w+)`", row)) for name, row in rows.items()} == table


def _section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
