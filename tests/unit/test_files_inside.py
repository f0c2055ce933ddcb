"""Files of steps that other steps call: skipping the outer one leaves them, too."""

from __future__ import annotations

from pathlib import Path

from oncemore import Run, checkpointed
from tests.unit.again import scope


@checkpointed(outputs=["{path}"])
def write(path: str, text: str) -> None:
    Path(path).write_text(text)


@checkpointed
def write_both() -> None:
    write("one.txt", "first")
    write("two.txt", "only")
    write("one.txt", "second")


@checkpointed
def around_all() -> None:
    write_both()


def look() -> dict[str, str]:
    return {path.name: path.read_text() for path in Path().glob("*.txt")}


EXPECTED = {"one.txt": "second", "two.txt": "only"}


def body(run: Run) -> dict[str, str]:
    around_all()
    return look()


def test_what_the_steps_inside_wrote_comes_back_as_the_last_of_them_left_it() -> None:
    assert scope(body).value == EXPECTED
    for change in ("missing", "changed"):
        Path("one.txt").write_text("mine") if change == "changed" else Path("one.txt").unlink()
        outcome = scope(body)
        assert (outcome.ran, outcome.value) == ({}, EXPECTED)


def test_it_comes_back_too_when_the_step_inside_was_skipped_while_the_outer_one_ran() -> None:
    scope(lambda run: write_both())
    assert scope(body).ran == {"around_all": 1}
    Path("one.txt").unlink()
    outcome = scope(body)
    assert (outcome.ran, outcome.value) == ({}, EXPECTED)


def test_a_file_that_a_step_inside_deletes_is_deleted_again() -> None:
    @checkpointed(outputs=["*.tmp"])
    def clean() -> None:
        for path in Path().glob("*.tmp"):
            path.unlink()

    @checkpointed
    def outer() -> None:
        clean()

    Path("a.tmp").touch()
    scope(lambda run: outer())
    Path("a.tmp").touch()
    assert scope(lambda run: (outer(), list(Path().glob("*.tmp")))).value[1] == []


def test_the_outer_steps_own_output_is_the_last_word() -> None:
    @checkpointed(outputs=["one.txt"])
    def outer() -> None:
        write("one.txt", "inner")
        Path("one.txt").write_text("outer")

    scope(lambda run: outer())
    Path("one.txt").unlink()
    outcome = scope(lambda run: (outer(), look()))
    assert (outcome.ran, outcome.value[1]) == ({}, {"one.txt": "outer"})
