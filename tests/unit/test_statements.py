"""The statements that bind globals."""

from __future__ import annotations

import importlib
import linecache
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oncemore import checkpointed
from oncemore.identity.code.statements import Statement, binding, note


def of(text: str, name: str, tmp_path: Path, **space: Any) -> Statement | None:
    path = tmp_path / f"m{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text)
    return binding({"__name__": "m", "__file__": str(path), **space}, name)


def digest(text: str, tmp_path: Path, name: str = "client") -> bytes:
    found = of(text, name, tmp_path)
    assert found is not None
    return found.digest


def test_comments_layout_and_annotations_do_not_count(tmp_path: Path) -> None:
    plain = digest("client = OpenAI(base_url='x')", tmp_path)
    assert digest('# why\n\nclient: OpenAI = OpenAI(  # here\n    base_url="x",\n)', tmp_path) == plain
    assert digest("client = OpenAI(base_url='y')", tmp_path) != plain
    assert digest("client = Other(base_url='x')", tmp_path) != plain


def test_the_last_statement_counts_and_others_do_not(tmp_path: Path) -> None:
    found = of("client = A()\nother = 1\nclient = B()\nother = 2", "client", tmp_path)
    assert found is not None and (found.text, found.line) == ("client = B()", 3)
    assert digest("client = A()\nother = 1\nclient = B()", tmp_path) == digest("client = B()", tmp_path)
    assert of("other = 1", "client", tmp_path) is None
    assert of("def f():\n    client = A()", "client", tmp_path) is None
    assert of("client = (", "client", tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "with connect({}) as client: pass",
        "with lock, connect({}) as client:\n    pass",
        "for client in connect({}): pass",
        "use(client := connect({}))",
        "a, client = pair({})",
        "a, (*b, client) = 1, pair({})",
        "a = client = connect({})",
        "try:\n    client = connect({})\nexcept OSError:\n    client = None",
        "try:\n    import x\nexcept ImportError:\n    client = connect({})",
        "if DEBUG:\n    client = connect({})\nelse:\n    client = connect(0)",
        "if limit < {}:\n    client = connect(1)",
        "client = connect({})\nif DEBUG:\n    client = connect(0)",
        "match mode:\n    case 'x':\n        client = connect({})",
        "with lock:\n    client = connect({})",
        "client = connect(1)\nclient += {}",
        "client = connect(1)\nclient.timeout = {}",
        "client = connect(1)\nclient.headers['x'] = {}",
        "client = connect(1)\nclient.headers.update(x={})",
        "client = None\ndef start():\n    global client\n    client = connect({})",
        "def start():\n    global client\n    if client is None:\n        client = connect({})\nclient = None",
    ],
)
def test_an_edit_of_whatever_binds_it_counts(text: str, tmp_path: Path) -> None:
    assert digest(text.format(1), tmp_path) == digest(text.format(1), tmp_path)
    assert digest(text.format(1), tmp_path) != digest(text.format(2), tmp_path)


def test_each_name_of_a_tuple_has_its_own_expression(tmp_path: Path) -> None:
    assert digest("client, x = A(1), B(1)", tmp_path) == digest("client, y = A(1), B(2)", tmp_path)
    assert digest("client, x = A(1)", tmp_path) != digest("x, client = A(1)", tmp_path)
    assert digest("client, x = A(1)", tmp_path) != digest("client, *x = A(1)", tmp_path)


def test_an_attribute_of_a_class_is_found_in_its_body(tmp_path: Path) -> None:
    text = "client = 0\nclass Config:\n    client = connect({})\n"
    one, two = (of(text.format(n), "Config.client", tmp_path) for n in (1, 2))
    assert one is not None and two is not None and one.digest != two.digest
    assert one.text == "client = connect(1)"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(folder: Path, name: str, text: str) -> ModuleType:
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("from .clients import client", "client"),
        ("from pack.clients import client as mine", "mine"),
        ("from pack.clients import *", "client"),
        ("from .clients import Config", "Config.client"),
    ],
)
def test_an_import_leads_to_where_it_is_bound(modules: Path, statement: str, name: str) -> None:
    load(modules, "pack.clients", "client = object()  # there\nclass Config:\n    client = object()\n")
    script = load(modules, "pack.script", statement)
    found = binding(vars(script), name)
    assert found is not None and found.text == "client = object()"


def test_the_newest_cell_of_a_notebook_counts() -> None:
    cells = ["", "client = A()", "def f(): ...", "client = B()", "print(client)", "client = A()"]
    for count, text in [(3, "client = A()"), (5, "client = B()"), (6, "client = A()")]:
        found = binding({"__name__": "__main__", "In": cells[:count]}, "client")
        assert found is not None and found.text == text


def test_what_the_interactive_python_was_given_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in [("<python-input-90>", "thing = A()\n"), ("<python-input-91>", "thing = B()\n")]:
        monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
    found = binding({"__name__": "__main__"}, "thing")
    assert found is not None and found.text == "thing = B()"
    assert binding({"__name__": "elsewhere"}, "thing") is None


def test_a_file_edited_after_it_was_noted_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("client = A()")
    space = {"__name__": "__main__", "__file__": str(path)}
    note(space)
    path.write_text("client = Edited()")
    found = binding(space, "client")
    assert found is not None and found.text == "client = A()"
    note(space)  # as a reload does
    found = binding(space, "client")
    assert found is not None and found.text == "client = Edited()"


def test_what_was_read_stays_when_the_file_is_edited(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("client = A()\nother = C()")
    space = {"__name__": "__main__", "__file__": str(path)}
    before = binding(space, "client")
    path.write_text("client = Edited()")
    os.utime(path, ns=(1, 1))
    assert binding(space, "client") == before
    assert binding(space, "other") is not None


def execute(path: Path, source: str) -> dict[str, Any]:
    path.write_text(source)
    space: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), space)
    return space


@pytest.mark.parametrize(
    "step",
    [
        "@checkpointed\ndef f(): ...",
        "class A:\n    @checkpointed\n    def f(self): ...",
        "@checkpointed\n@functools.wraps(len)\ndef f(): ...",
    ],
)
def test_a_file_is_read_when_a_step_in_it_is_decorated(tmp_path: Path, step: str) -> None:
    head = "import functools\nfrom oncemore import checkpointed\n"
    for client in ("client = 1", "client = 22"):  # the second is a reload
        space = execute(tmp_path / "module.py", f"{head}{client}\n{step}\n")
        (tmp_path / "module.py").write_text("client = 'edited'")
        found = binding(space, "client")
        assert found is not None and found.text == client


def test_a_step_made_later_does_not_read_an_edited_file(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    source = "from oncemore import checkpointed\nclient = 1\n@checkpointed\ndef f(): ...\ndef g(): ...\n"
    space = execute(path, f"{source}def make(): return checkpointed(g)\n")
    path.write_text("client = 'edited'")
    space["make"]()
    checkpointed(space["g"])
    found = binding(space, "client")
    assert found is not None and found.text == "client = 1"


@pytest.mark.parametrize(
    ("expression", "unseeded"),
    [
        ("np.random.default_rng()", True),
        ("np.random.default_rng(None)", True),
        ("np.random.default_rng(seed=None)", True),
        ("np.random.default_rng(1)", False),
        ("np.random.default_rng(SEED)", False),
        ("np.random.default_rng(NOTHING)", True),
        ("random.Random()", True),
        ("Random('x')", False),
        ("RandomState()", True),
        ("Generator(PCG64())", True),
        ("Generator(PCG64(None))", True),
        ("Generator(PCG64(3))", False),
        ("Generator(make())", False),
        ("np.random.default_rng(SeedSequence())", True),
        ("torch.Generator()", False),
        ("Simulation(rng=default_rng())", True),
        ("[default_rng() for _ in range(3)]", True),
        ("lambda: default_rng()", False),
        ("MT19937()", True),
        ("OpenAI()", False),
    ],
)
def test_generators_without_a_seed_are_told(expression: str, unseeded: bool, tmp_path: Path) -> None:
    found = of(f"RNG = {expression}", "RNG", tmp_path, SEED=1, NOTHING=None)
    assert found is not None and found.unseeded is unseeded


def test_the_globals_that_it_reads_are_named(tmp_path: Path) -> None:
    text = "client = OpenAI(base_url=BASE, hooks=[h(i) for i in RANGE], f=lambda j: j + LIMIT, x=len('x'))"
    space = dict.fromkeys(["OpenAI", "BASE", "RANGE", "LIMIT", "h", "i", "j", "other", "client"], 1)
    found = of(text, "client", tmp_path, **space)
    assert found is not None and found.names == {"OpenAI", "BASE", "RANGE", "LIMIT", "h"}


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("client = OpenAI(api_key='hunter2', timeout=3)", r"client = OpenAI\(api_key=#\w{8}, timeout=3\)"),
        ("client = OpenAI(base_url=URL, key=b'hunter2')", r"client = OpenAI\(base_url=URL, key=#\w{8}\)"),
        ("engine = create_engine(f'postgresql://{USER}:hunter2@{HOST}/x')", r"engine = create_engine\(#\w{8}\)"),
        ("engine = create_engine('postgresql://ann:' + 'hunter2')", r"engine = create_engine\(#\w{8} \+ #\w{8}\)"),
        ("db = connect(headers={'Authorization': 'hunter2'})", r"db = connect\(headers=\{#\w{8}: #\w{8}\}\)"),
        ("db = connect(*['hunter2'])", r"db = connect\(\*\[#\w{8}\]\)"),
        ("db = A()\ndb.password = 'hunter2'", r"db = A\(\); db.password = #\w{8}"),
        ("db = A()\ndb.headers['Authorization'] = 'hunter2'", r"db = A\(\); db.headers\[#\w{8}\] = #\w{8}"),
    ],
)
def test_a_text_in_a_statement_counts_and_is_shown_as_a_digest_only(statement: str, shown: str, tmp_path: Path) -> None:
    name = statement.partition(" ")[0]
    found, other = (of(text, name, tmp_path) for text in (statement, statement.replace("unter2", "unter3")))
    assert found is not None and other is not None
    assert found.digest != other.digest
    assert found.text != other.text
    assert re.fullmatch(shown, found.text)


def test_a_statement_too_deep_to_show_still_counts(tmp_path: Path) -> None:
    text = f"client = {' + '.join(['x'] * 900)}"
    assert digest(text, tmp_path) != digest(text + " + y", tmp_path)
