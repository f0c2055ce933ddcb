"""Files that a step reads: a change of them is told, and counts with `inputs="observed"`."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from oncemore import CheckpointWarning, File, UsageError, checkpoint_scope, checkpointed
from oncemore.history.history import History
from tests.unit.again import Outcome, scope

CHANGED = "file orders.csv changed"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("a,1")
    return tmp_path


def quiet(body, **options) -> Outcome:
    """A scope in which nothing is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        return scope(body, **options)


def told(body, **options) -> list[str]:
    """What is told in a scope in which no step runs."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", CheckpointWarning)
        assert scope(body, **options).ran == {}
    return [str(each.message) for each in found]


def change(content="b,2", path="orders.csv"):
    """As another program does it: not in a scope."""
    Path(path).write_text(content)


@checkpointed
def load():
    return Path("orders.csv").read_text()


@checkpointed(inputs="observed")
def load_observed():
    return Path("orders.csv").read_text()


# -- by default a change is told


def test_a_change_of_a_file_that_a_skipped_step_read_is_told_with_the_remedy():
    quiet(lambda run: load())
    change()
    [message] = told(lambda run: load())
    assert "step load " in message
    assert "file orders.csv" in message
    assert 'inputs="observed"' in message


def test_the_remedy_names_the_parameter_that_the_path_came_in():
    @checkpointed
    def read(path):
        return Path(path).read_text()

    quiet(lambda run: read("orders.csv"))
    change()
    [message] = told(lambda run: read("orders.csv"))
    assert 'inputs=["path"]' in message


def test_it_is_told_once_in_a_scope_and_again_in_the_next():
    quiet(lambda run: load())
    change()
    assert len(told(lambda run: [load(), load(), load()])) == 1
    assert len(told(lambda run: load())) == 1


def test_nothing_is_told_if_the_content_is_the_same_or_the_file_is_gone():
    quiet(lambda run: load())
    os.utime("orders.csv", (1, 1))
    assert told(lambda run: load()) == []
    os.unlink("orders.csv")
    assert told(lambda run: load()) == []


def _read(path, mode):
    with open(path, mode) as file:
        return file.read()


@pytest.mark.parametrize(
    "reading",
    [
        lambda path: _read(path, "r"),
        lambda path: _read(path, "rb"),
        lambda path: _read(path, "r+"),
        lambda path: os.close(os.open(path, os.O_RDONLY)),
        lambda path: Path(path).read_bytes(),
        lambda path: shutil.copy(path, "copy.csv"),
        lambda path: File(path).read_bytes(),
        lambda path: pytest.importorskip("numpy").loadtxt(path, dtype=str),
        lambda path: pytest.importorskip("pandas").read_csv(path).to_dict(),
        lambda path: (
            [thread.start() or thread.join() for thread in [threading.Thread(target=Path(path).read_text)]] and 1
        ),
    ],
)
def test_it_is_seen_however_python_code_opens_the_file(reading):
    @checkpointed
    def read():
        return str(reading("orders.csv"))

    quiet(lambda run: read())
    change()
    assert len(told(lambda run: read())) == 1


@dataclasses.dataclass
class Job:
    path: object


@pytest.mark.parametrize(
    "holding", [str, lambda path: path, lambda path: [path], lambda path: {"a": (1, path)}, lambda path: Job(str(path))]
)
def test_a_path_in_an_argument_is_seen_though_python_does_not_open_the_file(here, holding):
    @checkpointed
    def read(source):
        return subprocess.run(["cat", "orders.csv"], capture_output=True, check=True).stdout

    quiet(lambda run: read(holding(here / "orders.csv")))
    change()
    assert len(told(lambda run: read(holding(here / "orders.csv")))) == 1


def test_polars_reads_files_that_python_does_not_open(here):
    polars = pytest.importorskip("polars")

    @checkpointed(inputs="observed")
    def read(path):
        return polars.read_csv(path).columns

    assert scope(lambda run: read("orders.csv")).value == ["a", "1"]
    change("x,y\n")
    assert scope(lambda run: read("orders.csv")).value == ["x", "y"]


def test_what_a_step_writes_is_nothing_that_it_read():
    @checkpointed
    def write(path):
        Path(path).write_text("1")
        Path("work").write_text("2")
        os.replace("work", "moved")
        return Path(path).read_text() + Path("moved").read_text()

    @checkpointed
    def write_elsewhere(path):
        subprocess.run(["cp", "orders.csv", path], check=True)

    for name in ("out", "old"):
        change("before", name)
    quiet(lambda run: [write("out"), write_elsewhere("old")])
    for name in ("out", "old", "moved"):
        change("after", name)
    assert told(lambda run: [write("out"), write_elsewhere("old")]) == []


def test_source_code_and_installed_packages_are_no_data(here):
    @checkpointed
    def read():
        import encodings

        (here / "helper.py").read_text()
        Path(encodings.__file__).read_text()
        return Path("/proc/self/status").read_text()[:4]

    change("1", "helper.py")
    quiet(lambda run: read())
    change("2", "helper.py")
    assert told(lambda run: read()) == []


def test_a_declared_input_is_not_told_of_as_well():
    @checkpointed(inputs=["path"])
    def read(path):
        return Path(path).read_text()

    @checkpointed
    def read_value(file):
        return file.read_text()

    def both(run):
        return [read("orders.csv"), read_value(File("orders.csv"))]

    quiet(both)
    change()
    assert quiet(both).value == ["b,2", "b,2"]
    change("a,1")
    assert told(both) == []


def test_a_database_of_sqlite_is_seen_unless_the_step_writes_to_it():
    def query(sql):
        connection = sqlite3.connect("data.db")
        with connection:
            found = connection.execute(sql).fetchall()
        connection.close()
        return found

    query("CREATE TABLE t (n)")

    @checkpointed
    def read():
        return query("SELECT * FROM t")

    @checkpointed
    def write():
        return query("INSERT INTO t VALUES (1)")

    quiet(lambda run: read())
    quiet(lambda run: write(), run_id="writes")
    assert told(lambda run: write(), run_id="writes") == []
    query("INSERT INTO t VALUES (2)")
    assert len(told(lambda run: read())) == 1


def test_the_items_of_a_generator_are_told_of_too():
    @checkpointed
    def lines():
        with open("orders.csv") as file:
            yield from file

    quiet(lambda run: list(lines()))
    change()
    assert len(told(lambda run: list(lines()))) == 1


def test_a_step_that_opens_no_file_keeps_nothing_about_files():
    @checkpointed
    def add(n):
        return n + 1

    def entries(run):
        add(1)
        return [key for key, _ in run.store.scan("wrote/")]

    assert quiet(entries).value == []


# -- what the run itself wrote


def test_what_an_earlier_attempt_wrote_over_a_file_after_it_was_read_is_no_change():
    @checkpointed
    def clean():
        Path("orders.csv").write_text("cleaned")

    quiet(lambda run: [load(), clean()])
    assert told(lambda run: [load(), clean()]) == []
    change("by somebody else")
    assert len(told(lambda run: [load(), clean()])) == 1


def test_nor_is_what_the_script_wrote_between_or_after_its_steps():
    quiet(lambda run: [load(), Path("orders.csv").write_text("by the script")])
    assert told(lambda run: load()) == []


def test_nor_is_it_with_observed_inputs():
    @checkpointed
    def clean():
        Path("orders.csv").write_text("cleaned")

    for _ in range(2):
        found = quiet(lambda run: [load_observed(), clean()])
        assert found.value[0] == "a,1"
    assert found.ran == {}
    os.unlink("orders.csv")
    assert quiet(lambda run: load_observed()).ran == {}


def test_nor_are_outputs_that_are_put_back():
    @checkpointed(outputs=["orders.csv"])
    def clean():
        Path("orders.csv").write_text("cleaned")

    def both(run):
        return [load_observed(), clean(), Path("orders.csv").read_text()]

    first = quiet(both)
    os.unlink("orders.csv")
    assert quiet(both) == (first.value, {}, [])


def test_a_step_that_updates_the_file_that_it_reads_is_skipped():
    @checkpointed(inputs="observed")
    def count():
        n = int(Path("n").read_text())
        Path("n").write_text(str(n + 1))
        return n

    change("0", "n")
    assert quiet(lambda run: count()).value == 0
    assert quiet(lambda run: count()) == (0, {}, [])
    change("7", "n")
    assert quiet(lambda run: count()).value == 7


def test_a_file_that_was_written_anew_counts_also_if_the_run_once_wrote_the_same_content():
    @checkpointed
    def clean():
        Path("orders.csv").write_text("cleaned")

    assert quiet(lambda run: [load_observed(), clean()]).value[0] == "a,1"
    change("cleaned")  # the user's own edit
    os.utime("orders.csv", (1_900_000_000, 1_900_000_000))  # a clock may not have moved on since
    found = quiet(lambda run: [load_observed(), clean()])
    assert (found.value[0], found.reasons) == ("cleaned", {"load_observed": CHANGED})


def test_each_version_of_a_file_that_an_earlier_attempt_wrote_is_no_change():
    @checkpointed(outputs=["orders.csv"])
    def write(n):
        Path("orders.csv").write_text(f"row {n % 2}")

    for last in (4, 2, 3):  # the scope is left after the first, the second, ... step
        found = quiet(lambda run: [load_observed(), *map(write, range(last))][0])
        assert found.value == "a,1"
    assert quiet(lambda run: load_observed()) == ("a,1", {}, [])


def test_what_this_attempt_wrote_counts_as_the_step_would_read_it_now():
    def body(text):
        @checkpointed
        def write(text):
            Path("orders.csv").write_text(text)

        return lambda run: (write(text), load_observed())[1]

    assert [quiet(body(text)).value for text in ("x", "y", "y")] == ["x", "y", "y"]


# -- with inputs="observed" it counts


def test_an_observed_file_counts_and_is_the_reason():
    assert quiet(lambda run: load_observed()).value == "a,1"
    assert quiet(lambda run: load_observed()).ran == {}
    change()
    again = quiet(lambda run: load_observed())
    assert (again.value, again.reasons) == ("b,2", {"load_observed": CHANGED})
    change("a,1")
    assert quiet(lambda run: load_observed()) == ("a,1", {}, [])  # the first checkpoint is still there


def test_a_scope_can_observe_for_all_its_steps():
    quiet(lambda run: load(), inputs="observed")
    change()
    assert quiet(lambda run: load(), inputs="observed").reasons == {"load": CHANGED}


def test_explain_says_it_before():
    quiet(lambda run: load_observed())
    change()
    assert quiet(lambda run: str(load_observed.explain())).value.endswith(CHANGED)


def test_another_word_than_observed_is_refused():
    with pytest.raises(UsageError, match="observed"):
        checkpointed(inputs="all")(lambda path: 1)
    with pytest.raises(UsageError, match="observed"):
        scope(lambda run: None, inputs="all")


def test_a_file_is_not_read_again_as_long_as_size_and_time_are_the_same():
    os.utime("orders.csv", (1, 1))
    quiet(lambda run: [load(), load_observed()])
    change("z,9")  # as long as it was
    os.utime("orders.csv", (1, 1))
    assert quiet(lambda run: [load(), load_observed()]).ran == {}


def test_a_file_that_was_written_a_moment_ago_is_compared_by_content():
    now = time.time_ns() + 60_000_000_000  # however long this test takes
    os.utime("orders.csv", ns=(now, now))
    quiet(lambda run: [load(), load_observed()])
    change("z,9")
    os.utime("orders.csv", ns=(now, now))  # as if the clock of the file system had not moved on
    with pytest.warns(match="step load was skipped"):
        assert scope(lambda run: [load(), load_observed()]).value == ["a,1", "z,9"]


def test_a_path_is_found_beside_arguments_with_many_values():
    @checkpointed
    def read(path, rows, more):
        return subprocess.run(["cat", path], capture_output=True, check=True).stdout

    def body(run):
        return read("orders.csv", list(range(10_000)), dict.fromkeys(range(10_000)))

    quiet(body)
    change()
    assert len(told(body)) == 1


def test_a_script_that_reads_its_store_in_a_step_is_told_nothing_about_that(here):
    @checkpointed
    def pack():
        shutil.copytree("store", "copy", dirs_exist_ok=True)

    for _ in range(2):
        with warnings.catch_warnings(), checkpoint_scope("run", store=here / "store") as run:
            warnings.simplefilter("error", CheckpointWarning)
            pack()
    assert run.ran == {}


def test_files_outside_the_project_count_by_their_full_path(tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "rates.csv"

    @checkpointed(inputs="observed")
    def read():
        return elsewhere.read_text()

    elsewhere.write_text("1")
    quiet(lambda run: read())
    elsewhere.write_text("2")
    assert quiet(lambda run: read()).reasons == {"read": f"file {elsewhere} changed"}


# -- at the same time, and elsewhere


@checkpointed
def load_one(number):
    return Path(f"{number}.csv").read_text()


@checkpointed
async def load_one_later(number):
    with open(f"{number}.csv") as file:
        await asyncio.sleep(0)
        first = file.read()
    await asyncio.sleep(0)
    return first + Path(f"{number}.more").read_text()


def both(run):
    async def all_at_once():
        return await asyncio.gather(*(load_one_later(number) for number in range(4)))

    return run.map(load_one, range(4), concurrency=4), asyncio.run(all_at_once())


def test_each_of_several_steps_at_a_time_has_its_own_files():
    for number in range(4):
        change("1", f"{number}.csv")
        change("2", f"{number}.more")
    quiet(both)
    change("3", "2.csv")
    messages = told(both)
    assert ["2.csv" in message for message in messages] == [True, True]
    change("1", "2.csv")
    change("3", "3.more")
    [message] = told(both)
    assert "step load_one_later " in message
    assert "3.more" in message


def test_what_a_script_reads_beside_a_step_in_a_thread_is_not_the_step_s():
    started, over = threading.Event(), threading.Event()

    @checkpointed(ignore=["started", "over"])
    def wait(started, over):
        started.set()
        over.wait(60)

    def body(run):
        thread = threading.Thread(target=wait, args=(started, over))
        thread.start()
        started.wait(60)
        Path("orders.csv").read_text()
        over.set()
        thread.join()

    quiet(body)
    change()
    assert told(lambda run: wait(started, over)) == []


def test_workers_of_a_process_pool_observe_what_the_scope_observes_and_writes(here):
    script = here / "pooled.py"
    script.write_text(
        "import sys\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from pathlib import Path\n"
        "from oncemore import checkpointed, checkpoint_scope\n"
        "@checkpointed\n"
        "def load(n):\n"
        "    return Path('orders.csv').read_text()\n"
        "@checkpointed(every_call=True)\n"
        "def save():\n"
        "    Path('saved').write_text('')\n"
        "if __name__ == '__main__':\n"
        "    with checkpoint_scope('run', store='store', inputs='observed'):\n"
        "        if sys.argv[1:]:\n"
        "            Path('orders.csv').write_text(sys.argv[1])\n"
        "            save()\n"
        "        with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:\n"
        "            print(*pool.map(load, [1]))\n"
    )
    found = []
    for written in ([], ["2"], ["3"], ["2"]):
        done = subprocess.run([sys.executable, script, *written], capture_output=True, text=True, check=True)
        found.append((done.stdout, done.stderr))
    change("4")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert [*found, (done.stdout, done.stderr)] == [(f"{each}\n", "") for each in ("a,1", "2", "3", "2", "4")]


# -- steps inside steps


@checkpointed
def outer():
    return load_observed() + "!"


@checkpointed(inputs="observed")
def outer_observed():
    return load() + "!"


@checkpointed(inputs=["path"])
def load_declared(path):
    return sorted(each.read_text() for each in path.iterdir()) if path.is_dir() else path.read_text()


@checkpointed
def outer_of_declared(path):
    return [load_declared(Path(path))]


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("step", [outer, outer_observed])
def test_what_an_inner_step_read_the_outer_one_read(step, skipped):
    if skipped:  # it is there already when the outer step runs
        quiet(lambda run: [load(), load_observed()])
    assert quiet(lambda run: step()).value == "a,1!"
    assert quiet(lambda run: step()).ran == {}
    change()
    assert quiet(lambda run: step()).value == "b,2!"


def test_what_was_kept_before_files_counted_is_compared_too():
    quiet(lambda run: load())
    change()
    assert quiet(lambda run: str(load.explain()), inputs="observed").value.endswith(CHANGED)
    assert quiet(lambda run: load(), inputs="observed").reasons == {"load": CHANGED}
    assert told(lambda run: load()) == []


@pytest.mark.parametrize("skipped", [False, True])
def test_what_an_inner_step_declares_the_outer_one_depends_on(skipped):
    if skipped:
        quiet(lambda run: load_declared(Path("orders.csv")))
    quiet(lambda run: outer_of_declared("orders.csv"))
    assert quiet(lambda run: outer_of_declared("orders.csv")).ran == {}
    change()
    again = quiet(lambda run: outer_of_declared("orders.csv"))
    assert (again.value, again.reasons["outer_of_declared"]) == (["b,2"], CHANGED)


def test_a_folder_that_an_inner_step_declares_counts_for_the_outer_one():
    os.mkdir("data")
    change("1", "data/a")
    quiet(lambda run: outer_of_declared("data"))
    assert quiet(lambda run: outer_of_declared("data")).ran == {}
    change("2", "data/b")
    assert quiet(lambda run: outer_of_declared("data")).value == [["1", "2"]]


def test_what_an_inner_step_wrote_is_nothing_that_the_outer_one_read():
    @checkpointed
    def write():
        Path("made.csv").write_text("1")

    @checkpointed(inputs="observed")
    def around():
        write()
        return Path("made.csv").read_text()

    quiet(lambda run: around())
    change("2", "made.csv")
    assert quiet(lambda run: around()).ran == {}


# -- the store


def test_the_notes_about_files_are_sound_entries_and_go_with_the_run(here):
    store = here / "store"

    @checkpointed(inputs="observed")
    def work():
        Path("made.csv").write_text("1")
        return Path("orders.csv").read_text()

    for _ in range(2):
        with checkpoint_scope("run", store=store) as run:
            work()
    assert run.ran == {}
    history = History(store)
    assert list(history.verify().findings) == []
    history.delete("run")
    assert [key for key, _ in run.store.scan("node/")] == []


def test_a_script_that_is_killed_knows_next_time_what_it_wrote(here):
    script = here / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from oncemore import checkpointed, checkpoint_scope\n"
        "@checkpointed(inputs='observed')\n"
        "def load():\n"
        "    print('load', flush=True)\n"
        "    return Path('orders.csv').read_text()\n"
        "@checkpointed\n"
        "def clean(text):\n"
        "    Path('orders.csv').write_text(text + ' cleaned')\n"
        "with checkpoint_scope('run', store='store'):\n"
        "    clean(load())\n"
        "    if sys.argv[1:]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print(load(), Path('orders.csv').read_text())\n"
    )
    first = subprocess.run([sys.executable, script, "kill"], capture_output=True, text=True, check=False)
    assert (first.returncode, first.stdout) == (-9, "load\n")
    second = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert second.stdout == "a,1 a,1 cleaned\n"
