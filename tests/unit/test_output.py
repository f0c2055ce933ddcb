"""`capture_output=True`: what a step shows is shown again when it is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from oncemore import Run, checkpoint_scope, checkpointed
from tests.processes import Script

STORE = "./store"


def scope(name: str = "output") -> checkpoint_scope:
    return checkpoint_scope(name, store=STORE)


def hooks() -> tuple[Any, ...]:
    return sys.stdout, sys.stderr, logging.Logger.callHandlers, warnings.showwarning, list(logging.root.handlers)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = hooks()
    yield
    assert hooks() == before


def reused(run: Run) -> int:
    return sum(run.reused.values())


Capture = pytest.CaptureFixture[str]


# -- streams


def test_what_is_printed_is_shown_live_and_again(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def talk(n: int) -> int:
        print("out", n)
        print("err", n, file=sys.stderr)
        sys.stdout.writelines(["a\n", "b\n"])
        return n

    shown = []
    for _ in range(2):
        with scope() as run:
            talk(1)
        shown.append(capsys.readouterr())
    assert reused(run) == 1
    assert shown[0] == shown[1] == ("out 1\na\nb\n", "err 1\n")


def test_without_the_option_nothing_is_shown_again(capsys: Capture) -> None:
    @checkpointed
    def talk() -> None:
        print("once")

    for _ in range(2):
        with scope():
            talk()
    assert capsys.readouterr().out == "once\n"


def test_streams_keep_their_order() -> None:
    """Both lead to one place here, as on a terminal."""

    @checkpointed(capture_output=True)
    def talk() -> None:
        for i in range(3):
            print("out", i)
            print("err", i, file=sys.stderr)

    shown = []
    for _ in range(2):
        terminal = io.StringIO()
        with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal), scope():
            talk()
        shown.append(terminal.getvalue())
    assert shown[0] == shown[1] == "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"


def test_bytes_written_below_the_text_are_shown_again(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    @checkpointed(capture_output=True)
    def talk() -> None:
        print("text", flush=True)
        sys.stdout.buffer.write(b"\xff\x00raw\n")
        sys.stdout.buffer.flush()
        print("more")

    for _ in range(2):
        with scope():
            talk()
        assert capsysbinary.readouterr().out == b"text\n\xff\x00raw\nmore\n"


def test_a_listened_stream_is_the_stream_in_all_else(capsys: Capture) -> None:
    @checkpointed(capture_output=True, ignore=["real"])
    def look(real: Any) -> list[bool]:
        now = sys.stdout
        return [now is not real, isinstance(now, type(real)), now.encoding == real.encoding, now.writable()]

    with scope():
        assert look(sys.stdout) == [True] * 4


def test_what_goes_somewhere_else_inside_the_step_is_not_shown(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def talk() -> str:
        kept = io.StringIO()
        with contextlib.redirect_stdout(kept):
            print("into a string")
        print("out")
        return kept.getvalue()

    for _ in range(2):
        with scope():
            assert talk() == "into a string\n"
    assert capsys.readouterr().out == "out\nout\n"


class Prefixed(io.TextIOBase):
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return int(self.stream.write(text.replace("in", "> in")))


def test_a_step_in_a_redirected_step_is_heard_where_it_speaks(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def inner() -> None:
        print("in")

    @checkpointed(capture_output=True)
    def outer() -> None:
        with contextlib.redirect_stdout(Prefixed(sys.stdout)):
            inner()

    for expected in ("> in\nin\n", "> in\nin\n"):
        with scope() as run:
            outer()
            inner()
        assert capsys.readouterr().out == expected
    assert reused(run) == 2


def test_a_step_inside_a_step_is_part_of_what_that_shows(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def inner(n: int) -> None:
        print("inner", n)

    @checkpointed(capture_output=True)
    def outer(n: int) -> None:
        print("outer", n)
        inner(n)
        inner(0)

    with scope():
        inner(0)
        outer(1)
    first = capsys.readouterr().out
    with scope() as run:
        inner(0)
        outer(1)
    assert first == capsys.readouterr().out == "inner 0\nouter 1\ninner 1\ninner 0\n"
    assert reused(run) == 2


def test_a_failed_step_shows_what_it_showed_and_leaves_nothing_behind(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def fail() -> None:
        print("so far")
        raise ValueError

    for _ in range(2):
        with scope(), pytest.raises(ValueError):
            fail()
    assert capsys.readouterr().out == "so far\nso far\n"


def test_a_bad_declaration_leaves_nothing_behind() -> None:
    @checkpointed(capture_output=True, outputs=["{x.nothing}"])
    def make(x: int) -> None: ...

    with scope(), pytest.raises(ValueError):
        make(1)


def test_a_generator_shows_each_part_at_its_item(capsys: Capture) -> None:
    @checkpointed(capture_output=True)
    def each() -> Iterator[int]:
        for i in range(3):
            print("making", i)
            yield i
        print("done")

    for _ in range(2):
        with scope():
            for i in each():
                print("got", i)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == lines[7:] == ["making 0", "got 0", "making 1", "got 1", "making 2", "got 2", "done"]


def test_threads_and_tasks_do_not_mix(capsys: Capture) -> None:
    barrier = threading.Barrier(3, timeout=20)

    @checkpointed(capture_output=True, ignore=["together"])
    def talk(n: int, together: Any) -> None:
        for i in range(5):
            together()
            print(f"{n}{i}", end=" ")

    @checkpointed(capture_output=True)
    async def speak(n: int) -> None:
        for i in range(5):
            await asyncio.sleep(0)
            print(f"{n}{i}", end=" ")

    def in_thread(n: int) -> None:
        with scope(f"run {n}"):
            talk(n, barrier.wait)

    def bystander() -> None:
        for _ in range(5):
            barrier.wait()
            print("noise", end=" ")

    threads = [threading.Thread(target=in_thread, args=(n,)) for n in (1, 2)] + [threading.Thread(target=bystander)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def tasks() -> None:
        async with scope("tasks"):
            await asyncio.gather(speak(3), speak(4))

    asyncio.run(tasks())
    capsys.readouterr()
    for n in (1, 2):
        with scope(f"run {n}"):
            talk(n, None)
        assert capsys.readouterr().out == " ".join(f"{n}{i}" for i in range(5)) + " "

    async def alone(n: int) -> None:
        async with scope("tasks"):
            await speak(n)

    for n in (3, 4):
        asyncio.run(alone(n))
        assert capsys.readouterr().out == " ".join(f"{n}{i}" for i in range(5)) + " "


def test_a_task_that_outlives_the_step_is_not_heard_any_more(capsys: Capture) -> None:
    async def later() -> None:
        await asyncio.sleep(0.05)
        print("afterwards")

    left: list[asyncio.Task[None]] = []

    @checkpointed(capture_output=True, ignore=["left"])
    async def start(left: Any) -> None:
        print("started")
        left.append(asyncio.create_task(later()))

    async def script() -> None:
        async with scope():
            await start(left)
            await asyncio.gather(*left)

    asyncio.run(script())
    assert capsys.readouterr().out == "started\nafterwards\n"
    left.clear()
    asyncio.run(script())
    assert capsys.readouterr().out == "started\n"


# -- log records


@contextlib.contextmanager
def configured(**options: Any) -> Iterator[io.StringIO]:
    stream, handlers, level = io.StringIO(), list(logging.root.handlers), logging.root.level
    logging.root.handlers = []
    logging.getLogger("oncemore").setLevel("WARNING")
    logging.basicConfig(stream=stream, level=options.pop("level", "INFO"), **options)
    try:
        yield stream
    finally:
        logging.root.handlers = handlers
        logging.root.setLevel(level)
        logging.getLogger("oncemore").setLevel("NOTSET")


@checkpointed(capture_output=True)
def log(word: str) -> None:
    logger = logging.getLogger("app.part")
    logger.debug("too fine")
    logger.info("about %s", word)
    logging.warning("root says %d", 3)


def test_log_records_are_handled_live_and_again() -> None:
    shown = []
    for _ in range(2):
        with configured(format="%(levelname)s %(name)s %(funcName)s %(message)s") as stream, scope():
            log("x")
        shown.append(stream.getvalue())
    assert shown[0] == shown[1] == "INFO app.part log about x\nWARNING root log root says 3\n"


def test_records_below_todays_level_are_not_shown_again() -> None:
    with configured(), scope():
        log("x")
    with configured(level="ERROR") as stream, scope():
        log("x")
    assert stream.getvalue() == ""


def test_text_that_a_handler_writes_is_not_shown_twice(capsys: Capture) -> None:
    """A handler that the step itself makes writes to the very stream that is listened to."""

    @checkpointed(capture_output=True)
    def talk() -> None:
        logger = logging.getLogger("own")
        logger.propagate = False
        logger.handlers = [logging.StreamHandler(sys.stderr)]
        print("before", file=sys.stderr)
        logger.warning("logged")
        print("after", file=sys.stderr)

    with scope():
        talk()
    live = capsys.readouterr().err
    logging.getLogger("own").handlers = [logging.StreamHandler(sys.stderr)]
    with scope() as run:
        talk()
    logging.getLogger("own").handlers = []
    assert reused(run) == 1
    assert live == capsys.readouterr().err == "before\nlogged\nafter\n"


def test_exceptions_and_extras_of_records_are_shown_again() -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise TypeError

        def __repr__(self) -> str:
            return "odd"

    @checkpointed(capture_output=True)
    def talk() -> None:
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("app").exception("failed", extra={"user": "me", "odd": Odd()})

    shown = []
    for _ in range(2):
        with configured(format="%(user)s %(odd)s %(message)s") as stream, scope():
            talk()
        shown.append(stream.getvalue())
    assert shown[0] == shown[1]
    assert shown[0].startswith("me odd failed\nTraceback")
    assert shown[0].endswith("ValueError: inside\n")


def test_the_handler_of_last_resort_works_as_usual(script: Script) -> None:
    source = """
        import logging
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed(capture_output=True)
        def talk():
            logging.getLogger("app").warning("last resort")
            logging.getLogger("app").info("not shown")
            assert not logging.root.handlers
            logging.basicConfig(level="INFO", format="%(message)s")
            logging.getLogger("oncemore").setLevel("WARNING")
            logging.getLogger("app").info("configured")

        with checkpoint_scope("output", store="./store"):
            talk()
    """
    assert script(source).err == "last resort\nconfigured\n"
    assert script(source).err == "last resort\n"


# -- warnings


@checkpointed(capture_output=True)
def warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=1)


def test_warnings_are_issued_live_and_again() -> None:
    for _ in range(2):
        with scope(), pytest.warns(RuntimeWarning, match="careful") as caught:
            warn("careful")
        assert [(each.category, each.filename) for each in caught] == [(RuntimeWarning, __file__)]


def test_a_warning_that_is_ignored_today_is_not_shown_again(capsys: Capture) -> None:
    with scope(), pytest.warns(RuntimeWarning):
        warn("careful")
    with scope() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warn("careful")
    assert reused(run) == 1


def test_text_that_a_warning_becomes_is_not_shown_twice(script: Script) -> None:
    source = """
        import sys, warnings
        from oncemore import checkpointed, checkpoint_scope

        class Mine(UserWarning): ...

        @checkpointed(capture_output=True)
        def talk():
            print("before", file=sys.stderr)
            warnings.warn(Mine("careful"))
            print("after", file=sys.stderr)

        with checkpoint_scope("output", store="./store"):
            talk()
    """
    first = script(source).err
    assert script(source).err == first
    assert first.count("careful") == 2  # the message, and the line of source under it
    assert first.index("before") < first.index("Mine: careful") < first.index("after")


def test_our_own_warnings_and_records_are_not_the_steps() -> None:
    @checkpointed
    def not_kept() -> Any:
        return threading.Lock()

    @checkpointed(capture_output=True)
    def outer() -> None:
        not_kept()

    with configured() as stream:
        logging.getLogger("oncemore").setLevel("DEBUG")
        with scope(), pytest.warns(UserWarning, match="not saved"):
            outer()
        with scope() as run:
            outer()
    assert stream.getvalue().count("StepCompleted") == 1
    assert reused(run) == 1


# -- in new processes


def test_a_new_process_shows_it_again(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed(capture_output=True)
        def talk(n):
            print("hello", n, "\\u2713")
            print("trouble", file=sys.stderr)

        with checkpoint_scope("output", store="./store") as run:
            talk(1)
        print(sum(run.reused.values()))
    """
    first, second = script(source), script(source)
    assert (first.lines, first.err) == (["hello 1 \u2713", "0"], "trouble\n")
    assert (second.lines, second.err) == (["hello 1 \u2713", "1"], "trouble\n")
