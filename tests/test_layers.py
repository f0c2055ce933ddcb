"""Who may import whom: nothing imports outward, and `import oncemore` loads nothing it does not need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes import Script

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "oncemore"
FACE = "__init__"  # the public names

# The six layers, from the innermost to the outermost. A room is a module or a subpackage; it may import its own layer
# and those before it. A module of a subpackage that is named here lies further in than the rest of it.
LAYERS: dict[str, set[str]] = {
    "primitives": {"errors", "modules", "current", "events", "settings", "stores.buffers", "timeouts"},
    "codec and stores": {"codec", "stores", "files", "flight", "keys"},
    "identity and surroundings": {"identity", "surroundings"},
    "entries and records": {
        *("records", "node", "copies", "entries", "effects_once", "reuse"),
        *("history.timeline", "history.summary", "history.explain"),
    },
    "scope, call and step": {
        *("session", "run", "map", "loop", "scope", "generators", "call", "step", "result"),
        *("block", "ask", "retries"),
    },
    "outer rooms": {"history", "retention", "rehearsal", "report", "cli", "compat", "testing", FACE},
}
RANK = {room: rank for rank, rooms in enumerate(LAYERS.values()) for room in rooms}
OUTERMOST = len(LAYERS) - 1
STORES = {"stores", "stores.buffers", "errors", "modules"}  # a store knows nothing of runs, pickles or Python

HEAVY = {
    *("numpy", "pandas", "polars", "pyarrow", "joblib", "attr", "hypothesis", "pytest"),
    *("psycopg", "redis", "obstore", "dask", "ray", "rich", "click", "IPython"),
    *("langgraph", "sklearn", "tenacity", "cryptography"),
}

# Rooms that a script enters only if it asks for them: they are imported where they are needed.
OUTER = LAYERS["outer rooms"] - {FACE}


def room_of(dotted: Sequence[str]) -> str:
    """The room that a module of oncemore belongs to, or a name in it; a name that is no module of ours is a public one."""
    names = list(dotted)
    while names and ".".join(names) not in RANK:
        names.pop()
    return ".".join(names) or FACE


def outer_modules(loaded: Iterable[str]) -> list[str]:
    """Those of the outer rooms; the package `history` itself is loaded for the fold."""
    ours = [name.split(".")[1:] for name in loaded if name.startswith("oncemore.") and name != "oncemore.history"]
    return [".".join(name) for name in ours if room_of(name) in OUTER]


def module_of(path: Path) -> list[str]:
    return list(path.relative_to(PACKAGE).with_suffix("").parts)


def rooms_entered(tree: ast.AST, path: Path) -> set[str]:
    """The rooms that a file imports, at its top or anywhere inside."""
    return set().union(*(_entered(node, path) for node in ast.walk(tree)))


def without_annotations(path: Path) -> ast.AST:
    """The syntax tree of a file without its `if TYPE_CHECKING` blocks: a type may be named from anywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING"))]
    return tree


def _entered(node: ast.AST, path: Path) -> set[str]:
    if isinstance(node, ast.Import):
        return {room_of(name.name.split(".")[1:]) for name in node.names if name.name.split(".")[0] == "oncemore"}
    if not isinstance(node, ast.ImportFrom):
        return set()
    module = node.module.split(".") if node.module else []
    if node.level:
        here = ["oncemore", *path.relative_to(PACKAGE).parts[:-1]]
        module = here[: len(here) - node.level + 1] + module
    if module[:1] != ["oncemore"]:
        return set()
    return {room_of([*module[1:], name.name]) for name in node.names}


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_a_module_imports_nothing_of_an_outer_layer(path: Path) -> None:
    room = room_of(module_of(path))
    assert room != FACE or path.name == "__init__.py", f"{path.name} is new: say in LAYERS where it lies"
    tree = without_annotations(path)
    entered = rooms_entered(tree, path) - {room}
    at_the_top = set().union(*(_entered(node, path) for node in ast.iter_child_nodes(tree))) - {room}
    outward = {other for other in entered if RANK[other] > RANK[room]}
    later = {other for other in outward - at_the_top if RANK[other] == OUTERMOST}  # what is loaded when it is needed
    assert not outward - later, f"{room} must not import {', '.join(sorted(outward - later))}"
    assert room != "stores" or entered <= STORES, f"stores must not import {', '.join(sorted(entered - STORES))}"


def test_the_page_on_architecture_lists_these_layers_and_rooms() -> None:
    page = (PACKAGE.parent.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.removeprefix("| ").split(" | ")[0] in LAYERS]
    listed = {row[0].removeprefix("| "): set(re.findall(r"`([\w.]+)`", row[1])) for row in rows}
    assert listed == {layer: rooms - {FACE} for layer, rooms in LAYERS.items()}
    assert list(listed) == list(LAYERS)


def test_the_page_on_architecture_names_functions_that_are_there() -> None:
    page = (PACKAGE.parent.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^(?:([\w/]+\.py)| {6,}) +(?:\w+\.)?(\w+)  ", page, re.MULTILINE)
    assert len(drawn) > 8
    file = ""
    for name, function in drawn:
        file = name or file
        inside = [file, "session.py"] if file == "call.py" else [file]
        sources = "".join((PACKAGE / each).read_text(encoding="utf-8") for each in inside)
        assert re.search(rf"def _?{function}\b|class {function}\b", sources), f"{file} has no {function}"


def test_what_a_call_needs_is_imported_at_the_top_of_a_file() -> None:
    """A child that is forked while another thread imports waits forever if it needs the same module.

    Inside functions stand only outer rooms, `asyncio` where it is loaded already, `importlib.metadata`, which is slow and
    rarely needed, and libraries that a program may not have.
    """
    inside = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        if room_of(module_of(path)) not in OUTER
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in _imports_inside(function)
        if not (_entered(node, path) or _libraries(node)) <= OUTER | HEAVY | {"asyncio", "importlib"}
    ]
    assert inside == []


def _libraries(node: ast.Import | ast.ImportFrom) -> set[str]:
    names = [str(node.module)] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
    return {name.partition(".")[0] for name in names}


def _imports_inside(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        else:
            yield from _imports_inside(child)


def test_importing_oncemore_loads_no_optional_library(script: Script) -> None:
    done = script("import oncemore, sys; print(*sorted(sys.modules))")
    assert "oncemore" in done.out.split()
    assert not HEAVY & set(done.out.split()) and not outer_modules(done.out.split())


def test_a_script_that_only_runs_loads_nothing_that_reads_the_past(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(number):
            print("ran")
            return number

        with checkpoint_scope("run") as run:
            run.map(work, [1])
        print(*sorted(sys.modules))
    """
    first, second = script(source), script(source)
    assert (first.lines[0], len(first.lines), len(second.lines)) == ("ran", 2, 1)
    for done in (first, second):
        assert "oncemore.stores.disk" in done.out.split()
        assert not HEAVY & set(done.out.split()) and not outer_modules(done.out.split())


def test_a_name_that_loads_later_loads_no_more_than_its_module(script: Script) -> None:
    done = script("from oncemore import Checkpoint; import sys; print(*sorted(sys.modules))")
    assert "oncemore.history.checkpoints" in done.out.split()
    assert not {"oncemore.history.history", "oncemore.history.archive"} & set(done.out.split())


def test_public_names_that_load_later_are_there_all_the_same(script: Script) -> None:
    done = script("""
        import pickle
        import oncemore
        assert set(oncemore.__all__) <= set(dir(oncemore))
        from oncemore import *
        print(History.__name__, fork.__module__, oncemore.RunRecord is pickle.loads(pickle.dumps(RunRecord)))
        print(hasattr(oncemore, "Histories"))
        try:
            from oncemore import Histories
        except ImportError as error:
            print(error.name)
    """)
    assert done.lines == ["History oncemore.history.history True", "False", "oncemore"]
