"""What must, and what must not, make a step run again: identities from one process before an edit and one after it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import oncemore

SOURCE = str(Path(oncemore.__file__).parent.parent)

PROJECT = {
    "etl.py": '''
        """A pipeline."""
        import functools
        import logging
        import random
        import threading
        from dataclasses import dataclass
        from pathlib import Path

        import wrapt

        import config
        import pkg.sub
        from deco import doubled as twice, plain
        from text import clean

        LIMIT = 3
        RATES = {"a": 1.5, "b": [1, 2]}
        UNUSED = 1
        ROOT = Path(__file__).parent
        HERE = str(ROOT / "data")
        log = logging.getLogger(__name__)
        lock = threading.Lock()


        def unrelated(x):
            return x


        @wrapt.decorator
        def traced(wrapped, instance, args, kwargs):
            return wrapped(*args, **kwargs)


        @functools.lru_cache(maxsize=None)
        def cached(x):
            return x + 1


        @twice
        def wrapped(x):
            return x + 2


        @traced
        def proxied(x):
            return x + 3


        def add(x):
            return x + 10


        def sub(x):
            return x - 10


        TABLE = {"add": add, "sub": sub, "neg": lambda x: -x}


        class Base:
            def inherited(self):
                return 4


        class Model(Base):
            """A model."""

            rate = 5

            def __init__(self, x: int) -> None:
                self.x = x

            def run(self):
                return super().inherited() + self.x

            @property
            def half(self):
                return self.x / 2

            @staticmethod
            def stat(x):
                return x + 6

            @classmethod
            def make(cls, x):
                return cls(x + 7)


        @dataclass
        class Row:
            a: int
            b: int = 8


        @functools.singledispatch
        def show(x):
            return "any"


        @show.register
        def _(x: int):
            return "int"


        def even(n):
            return True if n == 0 else odd(n - 1)


        def odd(n):
            return False if n == 0 else even(n - 1)


        def make(k):
            def inner(x):
                return x * k + LIMIT

            return inner


        scaled = make(9)
        part = functools.partial(add, 11)


        def step(x: int, n: int = 2, *, flag=None) -> int:
            """Do it."""
            from late import late_helper

            import late_module

            # a comment
            y: int = 12
            with lock:
                log.info("x", extra={"name": __name__})
            squares = [add(i) for i in range(LIMIT)]
            seen = Model(x), Model.make(1), Row(1), RATES, TABLE, ROOT, HERE
            more = cached(x) + wrapped(x) + proxied(x) + scaled(x) + part() + random.random()
            return (
                clean(x) + y + config.LIMIT + pkg.sub.deep(x) + late_helper(x) + late_module.work(x),
                squares, seen, more, even(x), show(x), plain(x), (lambda q: q + 13)(1), f"{x!r:>{n}} and {y}",
            )
    ''',
    "config.py": """
        LIMIT = 20
        OTHER = 21
    """,
    "deco.py": """
        import functools


        def doubled(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return 2 * function(*args, **kwargs)

            return wrapper


        def plain(x):
            return x
    """,
    "text.py": '''
        def clean(x):
            """Clean."""
            return strip(x) + 30


        def strip(x):
            return x + 31
    ''',
    "late.py": """
        def late_helper(x):
            return x + 40


        def never(x):
            return x
    """,
    "late_module.py": """
        def work(x):
            return x + 41


        def idle(x):
            return x
    """,
    "pkg/__init__.py": "",
    "pkg/sub.py": """
        from .more import factor


        def deep(x):
            return x * factor()
    """,
    "pkg/more.py": """
        def factor():
            return 50
    """,
}

ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import etl
from oncemore.identity.code import Code
code = Code(etl.step)
parts = {name: part.digest for name, part in code.parts().items()}
print(json.dumps({"digest": code.digest().hex(), "parts": parts}))
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return folder


def python(*arguments: object, cwd: Path | None = None, stdin: str = "", **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": SOURCE, **environment}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=env, input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def identity(folder: Path, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(python("-c", ASK, folder, **environment))
    return found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return identity(write(tmp_path_factory.mktemp("before"), PROJECT))


def edited(folder: Path, name: str, old: str, new: str) -> Path:
    write(folder, PROJECT)
    text = (folder / name).read_text()
    assert text.count(old) == 1, (name, old, text.count(old))
    (folder / name).write_text(text.replace(old, new))
    return folder


MUST_RUN_AGAIN = {
    "the body": ("etl.py", "y: int = 12", "y: int = 13", "code"),
    "a lambda in the body": ("etl.py", "q + 13", "q + 14", "code"),
    "an f-string's format": ("etl.py", "!r:>", "!r:<", "code"),
    "a parameter's name": ("etl.py", "flag=None", "flags=None", "code"),
    "a default value": ("etl.py", "n: int = 2", "n: int = 3", "default `n`"),
    "a keyword's default value": ("etl.py", "flag=None", "flag=False", "default `flag`"),
    "a helper in this module": ("etl.py", "return x + 10", "return x + 100", "helper `add`"),
    "a helper in another module": ("text.py", "+ 30", "+ 300", "helper `text.clean`"),
    "a helper of a helper": ("text.py", "+ 31", "+ 310", "helper `text.strip`"),
    "a helper in a package": ("pkg/sub.py", "x * factor", "x + factor", "helper `pkg.sub.deep`"),
    "a helper behind a relative import": ("pkg/more.py", "50", "500", "helper `pkg.more.factor`"),
    "a helper imported inside the body": ("late.py", "x + 40", "x + 400", "helper `late.late_helper`"),
    "a helper of a module imported inside the body": ("late_module.py", "41", "410", "helper `late_module.work`"),
    "a helper behind lru_cache": ("etl.py", "return x + 1\n", "return x + 111\n", "global `etl.cached`"),
    "a helper behind functools.wraps": ("etl.py", "return x + 2\n", "return x + 222\n", "helper `wrapped`"),
    "a decorator's own code": ("deco.py", "2 * function", "3 * function", "helper `wrapped`"),
    "a helper behind wrapt": ("etl.py", "return x + 3\n", "return x + 333\n", "global `etl.proxied`"),
    "a wrapt decorator's own code": (
        "etl.py",
        "return wrapped(*args",
        "return 5 * wrapped(*args",
        "global `etl.proxied`",
    ),
    "a helper in a dispatch dict": ("etl.py", "return x - 10", "return x - 100", "helper `sub`"),
    "a lambda in a dispatch dict": ("etl.py", "lambda x: -x", "lambda x: +x", "global `etl.TABLE`"),
    "which function a dispatch dict names": ("etl.py", '"sub": sub', '"sub": add', "global `etl.TABLE`"),
    "a method of a class used": ("etl.py", "+ self.x\n", "- self.x\n", "class `Model`"),
    "an attribute of a class used": ("etl.py", "rate = 5", "rate = 55", "class `Model`"),
    "a property of a class used": ("etl.py", "self.x / 2", "self.x // 2", "class `Model`"),
    "a static method of a class used": ("etl.py", "return x + 6", "return x + 66", "class `Model`"),
    "a class method of a class used": ("etl.py", "cls(x + 7)", "cls(x + 77)", "class `Model`"),
    "an inherited method": ("etl.py", "return 4", "return 44", "class `Base`"),
    "the bases of a class": ("etl.py", "class Model(Base)", "class Model(dict, Base)", "class `Model`"),
    "a dataclass's default": ("etl.py", "b: int = 8", "b: int = 88", "class `Row`"),
    "a dataclass's fields": ("etl.py", "    a: int\n", "    a: int\n    c: int\n", "class `Row`"),
    "a dataclass's options": ("etl.py", "@dataclass\n", "@dataclass(order=True)\n", "class `Row`"),
    "a global constant": ("etl.py", "LIMIT = 3\n", "LIMIT = 33\n", "global `etl.LIMIT`"),
    "the type of a global constant": ("etl.py", "LIMIT = 3\n", "LIMIT = 3.0\n", "global `etl.LIMIT`"),
    "a global dict": ("etl.py", "[1, 2]", "[1, 3]", "global `etl.RATES`"),
    "a constant of another module": ("config.py", "LIMIT = 20", "LIMIT = 200", "global `config.LIMIT`"),
    "a closure value": ("etl.py", "make(9)", "make(99)", "global `etl.scaled`"),
    "a closure's code": ("etl.py", "x * k", "x + k", "global `etl.scaled`"),
    "a partial's argument": ("etl.py", "partial(add, 11)", "partial(add, 12)", "global `etl.part`"),
    "a partial's function": ("etl.py", "partial(add, 11)", "partial(sub, 11)", "global `etl.part`"),
    "an implementation of a single dispatch": ("etl.py", '"int"', '"whole"', "helper `_`"),
    "one of two functions that call each other": ("etl.py", "return False if", "return None if", "helper `odd`"),
    "where a name was imported from": (
        "etl.py",
        "from text import clean",
        "from deco import plain as clean",
        "global `etl.clean`",
    ),
    "where a library's name was imported from": (
        "etl.py",
        "import random\n",
        "import secrets as random\n",
        "global `etl.random`",
    ),
}

MUST_NOT_RUN_AGAIN = {
    "a comment": ("etl.py", "# a comment", "# another comment"),
    "a comment before everything": ("etl.py", '"""A pipeline."""', "# new\n# lines\n\n\n"),
    "the docstring": ("etl.py", '"""Do it."""', '"""Do it well."""'),
    "no docstring any more": ("etl.py", '    """Do it."""\n', ""),
    "a helper's docstring": ("text.py", '"""Clean."""', '"""Tidy."""'),
    "a class's docstring": ("etl.py", '"""A model."""', '"""Another."""'),
    "formatting": ("etl.py", "even(x), show(x), plain(x),", "even(\n  x\n), (show(x)),\n\n plain( x ),"),
    "the quotes of a text": ("etl.py", 'log.info("x"', "log.info('x'"),
    "a parameter's annotation": ("etl.py", "def step(x: int", "def step(x: float"),
    "a parameter's annotation taken away": ("etl.py", "def step(x: int", "def step(x"),
    "the return annotation": ("etl.py", ") -> int:", ") -> object:"),
    "a variable's annotation": ("etl.py", "y: int = 12", "y: float = 12"),
    "a variable's annotation taken away": ("etl.py", "y: int = 12", "y = 12"),
    "a method's annotation": ("etl.py", "self, x: int) -> None", "self, x)"),
    "lines": ("etl.py", "def unrelated(x):\n    return x\n", "def unrelated(x):\n    x = x\n    x = x\n    return x\n"),
    "order of definitions": ("text.py", "def clean", "def unused(): pass\n\n\ndef clean"),
    "an unrelated function": ("etl.py", "def unrelated(x):\n    return x", "def unrelated(x):\n    return 2 * x"),
    "an unrelated global": ("etl.py", "UNUSED = 1", "UNUSED = 2"),
    "an unrelated global elsewhere": ("config.py", "OTHER = 21", "OTHER = 22"),
    "an unrelated function elsewhere": ("late.py", "def never(x):\n    return x", "def never(x):\n    return 2 * x"),
    "an unrelated function of a module imported inside": (
        "late_module.py",
        "idle(x):\n    return x",
        "idle(x):\n    return 1",
    ),
    "an unrelated new function": ("text.py", "def strip", "def new():\n    return LIMIT\n\n\ndef strip"),
}


@pytest.mark.parametrize("what", MUST_RUN_AGAIN)
def test_a_step_runs_again_after_an_edit_of(what: str, tmp_path: Path, before: dict[str, Any]) -> None:
    name, old, new, part = MUST_RUN_AGAIN[what]
    after = identity(edited(tmp_path, name, old, new))
    assert after["digest"] != before["digest"]
    assert after["parts"].get(part) != before["parts"][part], "the reason would be wrong"


@pytest.mark.parametrize("what", MUST_NOT_RUN_AGAIN)
def test_a_step_does_not_run_again_after_an_edit_of(what: str, tmp_path: Path, before: dict[str, Any]) -> None:
    after = identity(edited(tmp_path, *MUST_NOT_RUN_AGAIN[what]))
    assert after == before


def test_a_renamed_decorator_alias_changes_nothing(tmp_path: Path, before: dict[str, Any]) -> None:
    edited(tmp_path, "etl.py", "doubled as twice", "doubled as two_times")
    path = tmp_path / "etl.py"
    path.write_text(path.read_text().replace("@twice", "@two_times"))
    assert identity(tmp_path) == before


def test_moving_the_project_changes_nothing(tmp_path: Path, before: dict[str, Any]) -> None:
    first = write(tmp_path / "here", PROJECT)
    assert identity(first) == before
    shutil.move(first, tmp_path / "there" / "deeper")
    assert identity(tmp_path / "there" / "deeper") == before


def test_the_hash_seed_changes_nothing(tmp_path: Path, before: dict[str, Any]) -> None:
    folder = write(tmp_path, PROJECT)
    assert [identity(folder, PYTHONHASHSEED=seed) for seed in ("1", "2")] == [before, before]


def test_editing_and_reverting_gives_the_first_identity_again(tmp_path: Path, before: dict[str, Any]) -> None:
    folder = edited(tmp_path, "etl.py", "LIMIT = 3\n", "LIMIT = 4\n")
    assert identity(folder) != before
    write(folder, PROJECT)
    assert identity(folder) == before


SCRIPT = """
    from oncemore.identity.code import Code

    LIMIT = 3


    class Thing:
        def value(self):
            return LIMIT


    def helper(x):
        return Thing().value() + x


    table = {"a": helper, "b": lambda x: Thing, "c": Thing}


    def step(x):
        return helper(x), table


    def tell():
        print(Code(step).digest().hex())


    if __name__ == "__main__":
        tell()
"""


def test_a_script_a_module_run_and_an_import_agree(tmp_path: Path) -> None:
    write(tmp_path, {"script.py": SCRIPT})
    as_script = python("script.py", cwd=tmp_path)
    assert python("-m", "script", cwd=tmp_path) == as_script
    assert python("-c", "import script; script.tell()", cwd=tmp_path) == as_script
    assert python(tmp_path / "script.py") == as_script


def test_they_agree_inside_a_package_and_a_folder_too(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/script.py": SCRIPT, "folder/script.py": SCRIPT})
    for name in ("pkg", "folder"):
        as_script = python(f"{name}/script.py", cwd=tmp_path)
        assert python("-m", f"{name}.script", cwd=tmp_path) == as_script
        assert python("-c", f"import {name}.script as s; s.tell()", cwd=tmp_path) == as_script


def test_without_source_the_code_object_serves(tmp_path: Path) -> None:
    def from_stdin(text: str) -> str:
        return python("-", stdin=textwrap.dedent(text))

    first = from_stdin(SCRIPT)
    assert from_stdin(SCRIPT) == first
    assert from_stdin(SCRIPT.replace("LIMIT = 3", "LIMIT = 4")) != first
    assert from_stdin(SCRIPT.replace("value() + x", "value() - x")) != first
    assert from_stdin(SCRIPT.replace("return LIMIT", "return -LIMIT")) != first
    assert from_stdin(SCRIPT.replace("lambda x: Thing", "lambda x: x")) != first
    assert from_stdin(SCRIPT.replace("    LIMIT = 3", "    # a comment\n    LIMIT = 3")) == first


def test_a_zip_file_serves_as_a_source(tmp_path: Path) -> None:
    folder = write(tmp_path / "plain", {"script.py": SCRIPT})
    shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    ask = "import sys; sys.path.insert(0, sys.argv[1]); import script; script.tell()"
    assert python("-c", ask, tmp_path / "packed.zip") == python("-c", ask, folder)


def test_an_edit_while_the_process_runs_is_not_taken_for_what_runs(tmp_path: Path) -> None:
    """The old code keeps running; its results must not be found by those who run the new code."""
    write(tmp_path, {"etl.py": "def step(x):\n    return x + 1\n"})
    edit = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import etl
from oncemore.identity.code import Code
path = pathlib.Path(etl.__file__)
path.write_text(path.read_text().replace("x + 1", "x + 2"))
print(Code(etl.step).digest().hex())
"""
    old = json.loads(python("-c", ASK, tmp_path))["digest"]
    stale = python("-c", edit, tmp_path)
    new = json.loads(python("-c", ASK, tmp_path))["digest"]
    assert len({old, stale, new}) == 3


def test_lines_added_above_while_the_process_runs_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"etl.py": "def step(x):\n    return x + 1\n"})
    edit = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import etl
from oncemore.identity.code import Code
path = pathlib.Path(etl.__file__)
path.write_text("import os\\n\\n\\n" + path.read_text())
print(Code(etl.step).digest().hex())
"""
    old = json.loads(python("-c", ASK, tmp_path))["digest"]
    assert python("-c", edit, tmp_path) == old


def test_a_function_sent_to_another_process_keeps_its_identity(tmp_path: Path) -> None:
    """What is defined in a script travels by value: the worker has no module that holds it."""
    send = """
        import cloudpickle
        with open("sent", "wb") as file:
            cloudpickle.dump(step, file)
    """
    receive = """
import pickle
from oncemore.identity.code import Code
with open("sent", "rb") as file:
    print(Code(pickle.load(file)).digest().hex())
"""
    write(tmp_path, {"script.py": SCRIPT + send})
    assert python("script.py", cwd=tmp_path) == python("-c", receive, cwd=tmp_path)
