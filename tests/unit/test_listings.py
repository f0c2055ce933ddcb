"""What a source text compiles to is kept for later processes, and can be missing, but never wrong."""

from __future__ import annotations

import os
import py_compile
import re
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from oncemore.identity.code.syntax import key_of, make_listing
from tests.processes import Script

TEXT = """\
LIMIT = 3
def helper(x):
    return x + LIMIT
def step(x):
    return helper(x) * 2, x in {"a", "b", "c"}, (lambda y: y - 1)
"""
ASK = """
import sys
seen = []
sys.addaudithook(lambda event, arguments: event == "compile" and seen.append(arguments[1]))
sys.path.insert(0, "project")
import etl
from oncemore.identity.code import Code
from pathlib import Path
{before}
del seen[:]
print(Code({what}).digest().hex(), sum(str(name).endswith("etl.py") for name in seen))
"""


@pytest.fixture
def ask(script: Script) -> Callable[..., tuple[str, int]]:
    """The identity of a function of `project/etl.py` in a process of its own, and how often that file was compiled for it."""

    def ask(before: str = "", what: str = "etl.step", **env: str) -> tuple[str, int]:
        done = script(ASK.format(before=before, what=what), env=env)
        digest, compiled = done.out.split()
        return digest, int(compiled)

    return ask


def written(text: str) -> Path:
    path = Path("project", "etl.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def kept() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"], "oncemore", "code").iterdir())


Ask = Callable[..., tuple[str, int]]


def test_a_text_that_an_earlier_process_compiled_is_not_compiled_again(ask: Ask) -> None:
    written(TEXT)
    first, compiled = ask()
    assert compiled > 0
    assert ask() == (first, 0)
    written(f"# a comment\n{TEXT}")
    assert ask() == (first, compiled)
    assert ask() == (first, 0)


def test_a_lambda_is_kept_too(ask: Ask) -> None:
    written(TEXT + "table = [lambda x: x + 1, lambda x: x + 2]\n")
    first, compiled = ask(what="etl.table[1]")
    assert compiled > 0
    assert ask(what="etl.table[1]") == (first, 0)
    assert ask(what="etl.table[0]")[0] != first


def test_only_the_user_can_read_what_is_kept_and_there_are_not_many_files(ask: Ask) -> None:
    written(TEXT)
    ask()
    assert kept()
    for path in kept():
        assert re.fullmatch("[0-3][0-9a-f]{3}", path.name)
        assert path.stat().st_mode & 0o077 == 0


def test_an_edit_after_the_import_is_not_credited_even_if_the_new_text_is_known(ask: Ask) -> None:
    """The old code keeps running; its results must not be found by those who run the new code."""
    other = TEXT.replace("* 2", "* 7")
    written(other)
    new, _ = ask()
    written(TEXT)
    old, _ = ask()
    stale, _ = ask(before=f"Path(etl.__file__).write_text({other!r})")
    assert len({new, old, stale}) == 3


def test_a_stale_pyc_is_not_taken_for_its_source(ask: Ask) -> None:
    """Python runs it if size and second of the source are the same. What runs then is not what stands there."""
    path = written(TEXT)
    old, _ = ask()
    py_compile.compile(str(path))
    second = path.stat().st_mtime
    written(TEXT.replace("* 2", "* 7"))
    os.utime(path, (second, second))
    stale, _ = ask()
    assert stale == ask()[0]
    (cached,) = Path("project", "__pycache__").glob("*.pyc")
    cached.unlink()
    assert len({old, stale, ask()[0]}) == 3


def test_what_is_kept_does_not_count_under_another_key_of_the_user(ask: Ask) -> None:
    written(TEXT)
    first, compiled = ask(ONCEMORE_KEY="one")
    assert ask(ONCEMORE_KEY="two") == (first, compiled)
    assert ask(ONCEMORE_KEY="two") == (first, 0)


def test_what_was_kept_for_another_text_does_not_count(ask: Ask) -> None:
    """Someone who can write to the cache, but has no key, puts there what was kept of other code."""
    written(TEXT.replace("* 2", "* 7"))
    other, _ = ask()
    (path,) = kept()
    foreign = path.read_bytes()
    written(TEXT)
    first, compiled = ask(XDG_CACHE_HOME="none")
    assert ask() == (first, compiled)
    assert (path,) == tuple(kept()), "one file has one slot"
    path.write_bytes(foreign)
    assert ask() == (first, compiled)
    assert first != other


def test_a_damaged_file_is_as_good_as_none(ask: Ask) -> None:
    written(TEXT)
    first, compiled = ask()
    (path,) = kept()
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:-1], whole[:60] + b"\0" + whole[61:], whole + b"\0", b"\0" * len(whole)):
        path.write_bytes(damaged)
        assert ask() == (first, compiled)
        assert path.read_bytes() != damaged, "it is written anew"


@pytest.mark.parametrize("place", ["file", "relative", "unreadable"])
def test_without_a_place_to_keep_anything_identities_are_the_same(ask: Ask, place: str, tmp_path: Path) -> None:
    written(TEXT)
    first, compiled = ask()
    settings = {"file": str(tmp_path / "project" / "etl.py"), "relative": "cache"}
    if place == "unreadable":
        key = tmp_path / "short"
        (key / "oncemore").mkdir(parents=True)
        (key / "oncemore" / "key").write_bytes(b"cut")
        env = {"XDG_CONFIG_HOME": str(key)}
    else:
        env = {"XDG_CACHE_HOME": settings[place]}
    assert [ask(**env), ask(**env)] == [(first, compiled)] * 2
    assert not Path("cache").exists()


def codes(text: str) -> list[CodeType]:
    found: dict[str, FunctionType] = {}
    exec(compile(text, "etl.py", "exec", dont_inherit=True), found)
    return [each.__code__ for name, each in found.items() if name in ("f", "g")]


@pytest.mark.parametrize(
    "bodies",
    [
        ("return 1", "return True"),
        ("return 1", "return 1.0"),
        ("return 0.0", "return -0.0"),
        ("return 'a'", "return b'a'"),
        ("return (1, 2)", "return (1, 2.0)"),
        ("return x in {1, 2}", "return x in {1, 3}"),
        ("return x in {1, 2}", "return x in (1, 2)"),
        ("return lambda: 1", "return lambda: True"),
        ("return LIMIT", "return RATE"),
        ("x = 1", "y = 1"),
        ("try: x()\n finally: y()", "x(); y()"),
    ],
)
def test_code_that_differs_has_different_keys(bodies: tuple[str, str]) -> None:
    one, two = (codes(f"def f(x):\n {body}") for body in bodies)
    assert key_of(one[0]) != key_of(two[0])


def test_code_that_does_the_same_elsewhere_has_the_same_key() -> None:
    text = "def f(x):\n return x in {'a', 'b', 'c'}, (lambda: LIMIT)\n"
    assert key_of(codes(text)[0]) == key_of(codes(f"\n\n{text}")[0])


def test_a_constant_that_no_compiler_makes_is_no_source_s(ask: Ask) -> None:
    """Such code is not what any text compiles to; it counts by itself."""
    written(TEXT)
    made = "etl.step.__code__ = etl.step.__code__.replace(co_consts=(*etl.step.__code__.co_consts, Path))"
    assert ask()[0] != ask(before=made)[0]
    with pytest.raises(ValueError, match="unmarshallable"):
        key_of(codes("def f(x): return x")[0].replace(co_consts=(Path,)))


def test_of_two_functions_with_the_same_code_the_nearest_is_shown() -> None:
    listing = make_listing(b"def f(x): return x\n\n\n\ndef f(x): return x\n", "etl.py", 0, lambdas=False)
    (code,) = codes("\n\n\ndef f(x): return x")
    found = listing.find(code)
    assert found is not None
    assert found[:2] == (5, 5)
