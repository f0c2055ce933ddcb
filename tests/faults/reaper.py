"""Runs `pipeline.main` in forked children and kills them with SIGKILL; stands alone, like the pipeline.

This process has imported everything and opens no store, so that a child costs a fork and not a start of Python.
After each death it looks at what was left: the log says that no completed step ran again, a copy of the database is
whole, and every row has its value file. A history ends with a child that runs to its end, silently and with the answer of
an uninterrupted run. For `calls` and `errors`, calls.c has to be loaded (see `tests.faults.calls`).

    python reaper.py random KILLS SEED        at random moments, sometimes beside a second child that lives on
    python reaper.py lines KILLS SEED         at lines of oncemore's own code, spread over a whole run
    python reaper.py calls KILLS SEED SKIP    at system calls that touch the store, in a random order, without the first SKIP
    python reaper.py errors FAULTS SEED SKIP  a system call that touches the store fails instead: the disk is full, or broken
    python reaper.py crowd KILLS SEED         one of eight children at a time, at random moments, until one comes to its end
    python reaper.py orphan                   when the value files are written and their rows are not
"""

import ctypes
import errno
import itertools
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import warnings
from pathlib import Path

import pipeline

import oncemore
from oncemore.stores.cache import Cache
from oncemore.stores.disk import DiskStore

PACKAGE = os.path.dirname(oncemore.__file__) + os.sep
PATIENCE = 60
ROUNDS = 3
REFUSED = 3  # exit code of a script that ended with an error of ours
SHIM = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None


class History:
    """One run of the pipeline, from an empty folder to its end."""

    def __init__(self, number, rounds=ROUNDS, durable="process", beside=False):
        self.folder = Path(f"history-{number}").resolve()
        self.folder.mkdir()
        self.store = self.folder / "store"
        self.url = f"disk://{self.store}?durable={durable}"
        self.log = self.folder / "log"
        self.rounds = rounds
        self.beside = beside

    def start(self, before=lambda: None, after=lambda: None):
        """A child that runs the pipeline; any warning is an error there."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.environ.update(PIPELINE_LOG=str(self.log), XDG_CONFIG_HOME=str(self.folder / "config"))
            warnings.simplefilter("error")
            before()
            answer = pipeline.main(self.url, self.rounds)
            sys.settrace(None)
            after()
            (self.folder / "answer").write_text(answer)
            code = 0
        except oncemore.OncemoreError as error:
            code = REFUSED
            print(f"{type(error).__name__}: {error}")
        except BaseException:
            sys.settrace(None)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def completed(self, pid, killed=False, refused=False):
        """Wait for a child: True if it came to its end, False if it was killed or refused. Anything else must not be."""
        code = os.waitstatus_to_exitcode(wait(pid))
        allowed = {0, *([-signal.SIGKILL] if killed else []), *([REFUSED] if refused else [])}
        assert code in allowed, f"the pipeline ended with {code} in {self.folder}"
        return code == 0

    def check(self):
        """What has to hold after every death."""
        done = set()
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            what, _, call = line.partition(" ")
            if self.beside and call.startswith("items"):
                continue  # a generator waits for nobody: two processes that ask at once both run it
            assert not (what == "began" and call in done), f"{call} ran again although it had returned: {self.log}"
            if what == "returned":
                done.add(call)
        if (self.store / "cache.db").exists():
            for filename, size in self.rows():
                assert (self.store / filename).stat().st_size == size, f"{filename} is not complete in {self.store}"

    def rows(self):
        """The value files that rows name. Looked up in a copy: opening the database itself would mend its journal."""
        copy = self.folder / "copy"
        copy.mkdir(exist_ok=True)
        for name in ("cache.db", "cache.db-wal"):
            (copy / name).unlink(missing_ok=True)
            if (self.store / name).exists():
                shutil.copy(self.store / name, copy)
        connection = sqlite3.connect(copy / "cache.db")
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], self.store
            return connection.execute("SELECT filename, size FROM Cache WHERE filename IS NOT NULL").fetchall()
        finally:
            connection.close()

    def orphans(self):
        """Value files without a row, and halves of databases."""
        files = {str(path.relative_to(self.store)) for path in self.store.glob("??/??/*")}
        files |= {path.name for path in self.store.glob("cache.db.new-*")}
        return files - {filename for filename, _ in self.rows()}

    def end(self, expected):
        """Run to the end, tidy, run once more: nothing is executed then, and the answer is the same."""
        if not (self.folder / "answer").exists():
            assert self.completed(self.start())
        self.check()
        left = self.orphans()
        assert in_child(lambda: expect_equal(DiskStore(self.store).maintain(older_than=-1).orphans_removed, len(left)))
        assert not self.orphans()
        before = self.log.read_text().count("began")
        (answer := self.folder / "answer").unlink()
        assert self.completed(self.start())
        assert self.log.read_text().count("began") == before, f"something ran again: {self.log}"
        assert answer.read_text() == expected, f"another answer in {self.folder}"
        shutil.rmtree(self.folder)
        return len(left)


def wait(pid):
    deadline = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("a child hangs")
        time.sleep(0.001)


def in_child(function):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return wait(pid) == 0


def expect_equal(a, b):
    assert a == b, f"{a} != {b}"


def uninterrupted(rounds):
    """The answer, and how long it takes."""
    history = History(f"uninterrupted-{rounds}", rounds)
    started = time.monotonic()
    assert history.completed(history.start())
    took = time.monotonic() - started
    history.check()
    return (history.folder / "answer").read_text(), took


def at_random_moments(kills, chance):
    answer, took = uninterrupted(ROUNDS)
    killed = orphans = 0
    for number in itertools.count():
        beside = chance.random() < 0.25
        history = History(number, durable="power" if number % 4 == 3 else "process", beside=beside)
        while killed < kills:
            children = [history.start() for _ in range(1 + beside)]
            time.sleep(chance.random() ** 2 * took)
            os.kill(children[0], signal.SIGKILL)
            done = [history.completed(pid, killed=pid == children[0]) for pid in children]
            killed += not done[0]
            history.check()
            if any(done):
                break
        orphans += history.end(answer)
        if killed >= kills:
            return f"{killed} kills in {number + 1} histories left {orphans} orphans"


def in_a_crowd(kills, chance):
    """Eight processes on one run; whenever one is killed, another takes its place."""
    answer, took = uninterrupted(1)
    killed = 0
    for number in itertools.count():
        history = History(number, 1, beside=True)
        children = [history.start() for _ in range(8)]
        while killed < kills and not (history.folder / "answer").exists():
            time.sleep(chance.random() * took)
            os.kill(child := children.pop(chance.randrange(8)), signal.SIGKILL)
            killed += not history.completed(child, killed=True)
            children.append(history.start())
        assert all([history.completed(child) for child in children])
        history.check()
        history.end(answer)
        if killed >= kills:
            return f"{killed} kills in {number + 1} crowds of 8"


def at_lines(kills, chance):
    """SIGKILL to itself, before the n-th line of ours; the fingerprint's own lines write nothing, and are many."""
    answer, _ = uninterrupted(1)
    counting = History("counting", 1)
    lines = os.open(counting.folder / "lines", os.O_RDWR | os.O_CREAT)  # opened once: 18,000 times take a minute
    assert counting.completed(counting.start(before=lambda: count_lines(lambda n: os.pwrite(lines, b"%d" % n, 0))))
    total = int(os.pread(lines, 20, 0))
    for number in range(kills):
        chosen = int((number + chance.random()) * total / kills)
        history = History(number, 1)
        history.completed(history.start(before=lambda: count_lines(die_at(chosen))), killed=True)
        history.check()
        history.end(answer)
    return f"{kills} kills in {total} lines"


def count_lines(visit):
    counter = itertools.count()

    def local(frame, event, argument):
        if event == "line":
            visit(next(counter))
        return local

    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and "identity" not in name and "references.py" not in name:
            return local
        return None

    sys.settrace(trace)
    visit(-1)


def die_at(chosen):
    def visit(number):
        if number == chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    return visit


def at_calls(kills, chance, skip):
    """SIGKILL to itself in the n-th system call that touches the store."""
    answer, total, chosen = counted_calls(kills, chance, skip)
    for number in chosen:
        history = History(number, 1)
        history.completed(history.start(before=lambda: arm(history, number)), killed=True)
        history.check()
        history.end(answer)
    return f"{len(chosen)} kills in {total} calls"


def at_errors(faults, chance, skip):
    """One system call fails. The script ends well or with an error of ours, and the next one ends well."""
    answer, total, chosen = counted_calls(faults, chance, skip)
    refused = 0
    for number in chosen:
        history = History(number, 1)
        error = chance.choice([errno.EIO, errno.ENOSPC])
        ended = history.completed(history.start(before=lambda: tolerate(history, number, error)), refused=True)
        refused += not ended
        if ended:
            assert (history.folder / "answer").read_text() == answer, f"another answer in {history.folder}"
            (history.folder / "answer").unlink()
        history.log.unlink(missing_ok=True)  # what could not be saved may run again
        history.end(answer)
    return f"{len(chosen)} failures in {total} calls, {refused} ended the script"


def counted_calls(number, chance, skip):
    """The answer, how many system calls touch the store, and the numbers of some of them."""
    answer, _ = uninterrupted(1)
    counting = History("counting", 1)
    told = counting.folder / "calls"
    after = lambda: told.write_text(str(SHIM.calls_seen()))
    assert counting.completed(counting.start(before=lambda: arm(counting, 0), after=after))
    total = int(told.read_text())
    order = chance.sample(range(1, total + 1), total)
    return answer, total, [order[(skip + each) % total] for each in range(min(number, total))]


def arm(history, number, error=0):
    SHIM.calls_arm(os.fsencode(history.store), ctypes.c_long(number), error)


def tolerate(history, number, error):
    warnings.simplefilter("ignore")
    arm(history, number, error)


def between_files_and_rows():
    answer, _ = uninterrupted(1)
    for number in range(1, 4):
        history = History(number, 1)

        def before(number=number):
            change, large = Cache.change, itertools.count(1)

            def killing(cache, work):
                if cache.values.touched.names and next(large) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return change(cache, work)

            Cache.change = killing

        assert not history.completed(history.start(before), killed=True)
        history.check()
        assert history.orphans(), "the files of the killed commit are gone already"
        assert history.end(answer), "maintenance found nothing to remove"
    return "3 kills"


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "orphan":
        print(between_files_and_rows())
    else:
        kills, seed, *skip = map(int, rest)
        kinds = {
            "random": at_random_moments,
            "lines": at_lines,
            "calls": at_calls,
            "errors": at_errors,
            "crowd": in_a_crowd,
        }
        print(kinds[kind](kills, random.Random(seed), *skip))
