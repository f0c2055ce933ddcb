"""Who may import whom: nothing imports outward, and `import oncemore` loads nothing it does not need."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.processes import Script

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "oncemore"
FACE = "__init__"  # the public names

LEAVES = {"errors", "events", "modules"}
TOOLS = {"compression", "durations", "secret"}
INNER = {"codec", "fingerprint", "flight", "stores", "surroundings"}
OUTSIDE = {"cli", "engines", "notebook", "report", "testing"}

MAY_IMPORT: dict[str, set[str]] = {
    **{room: set() for room in LEAVES},
    **{room: LEAVES for room in TOOLS | INNER},
    "codec": LEAVES | {"compression"},
    "shelf": LEAVES | {"codec", "fingerprint", "secret", "stores"},
    "reasons": LEAVES | {"shelf", "fingerprint"},
    "runs": LEAVES | TOOLS | INNER | {"shelf"},
    "generators": LEAVES | INNER | {"shelf"},
    "calls": LEAVES | TOOLS | INNER | {"shelf", "generators", "reasons", "runs"},
    "steps": LEAVES | TOOLS | INNER | {"calls", "runs"},
    "history": LEAVES | {"shelf", "codec", "durations", "stores"},
    **{room: LEAVES | {FACE, "stores"} for room in OUTSIDE},  # the public surface, and the contract of a store
    FACE: LEAVES | INNER | {"history", "runs", "steps"},
}

# Names that a room needs for its annotations only, under `if TYPE_CHECKING`; an exception each time, so listed here.
MAY_NAME: dict[str, set[str]] = {"generators": {"calls", "runs"}}

HEAVY = {
    *("numpy", "pandas", "polars", "pyarrow", "joblib", "attr", "hypothesis", "pytest"),
    *("psycopg", "redis", "obstore", "dask", "ray", "rich", "IPython"),
}


def room_of(path: Path) -> str:
    """The module or subpackage of oncemore that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first[:-3] if first.endswith(".py") else first


def rooms_entered(tree: ast.AST, path: Path) -> set[str]:
    """The modules and subpackages of oncemore that a file imports, at its top or anywhere inside."""
    return set().union(*(_entered(node, path) for node in ast.walk(tree)))


def split(path: Path) -> tuple[ast.AST, ast.AST]:
    """The syntax tree of a file without its `if TYPE_CHECKING` blocks, and these alone."""
    runs, annotates = ast.parse(path.read_text(encoding="utf-8")), ast.Module([], [])
    for node in list(runs.body):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            annotates.body.append(node)
            runs.body.remove(node)
    return runs, annotates


def _entered(node: ast.AST, path: Path) -> set[str]:
    if isinstance(node, ast.Import):
        return {_room(name.name.split(".")) for name in node.names if name.name.split(".")[0] == "oncemore"}
    if not isinstance(node, ast.ImportFrom):
        return set()
    module = node.module.split(".") if node.module else []
    if node.level:
        here = ["oncemore", *path.relative_to(PACKAGE).parts[:-1]]
        module = here[: len(here) - node.level + 1] + module
    if module[:1] != ["oncemore"]:
        return set()
    return {_room([*module, name.name]) for name in node.names}


def _room(dotted: list[str]) -> str:
    """The room that a dotted name leads into; a name that is no module of ours is one of the public names."""
    if len(dotted) < 2:
        return FACE
    room = dotted[1]
    return room if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file() else FACE


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_a_module_imports_only_what_lies_further_in(path: Path) -> None:
    room = room_of(path)
    assert room in MAY_IMPORT, f"{room} is new: say in MAY_IMPORT what it may import"
    runs, annotates = split(path)
    inward = MAY_IMPORT[room] | {room}
    outward = rooms_entered(runs, path) - inward
    assert not outward, f"{room} must not import {', '.join(sorted(outward))}"
    outward = rooms_entered(annotates, path) - inward - MAY_NAME.get(room, set())
    assert not outward, f"{room} must not know the types of {', '.join(sorted(outward))}"


def test_the_table_of_layers_has_no_cycle() -> None:
    """Each room can be loaded after the ones that it may import."""
    left = {room: set(others) for room, others in MAY_IMPORT.items()}
    while left:
        ready = {room for room, others in left.items() if not others & left.keys()}
        assert ready, f"a cycle among {sorted(left)}"
        left = {room: others for room, others in left.items() if room not in ready}


def test_importing_oncemore_loads_no_optional_library(script: Script) -> None:
    done = script("import oncemore, sys; print(*sorted(name for name in sys.modules if '.' not in name))")
    assert "oncemore" in done.out.split()
    assert not HEAVY & set(done.out.split())
