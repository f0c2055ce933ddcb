"""The conformance suite for stores. To test a store, subclass it:

    from oncemore.testing import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(...)

`make_store` is called with pytest's `tmp_path`; two calls with the same path must open the same store. A store whose contents
other processes cannot see has the class attribute `shared_between_processes = False`.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from .errors import HoldLost, UsageError
from .stores import Store, open_store

_CHILD = "import pickle, sys; work, *args = pickle.load(sys.stdin.buffer); work(*args)"
ODD_KEYS = ("%", "_", "a%b", "a_b", "é", "ü/ü", "😀", "\ud7ff", "\ue000", "\U0010ffff", "a\0b", "a b")  # fmt: skip
ALPHABETS = ("abcdefghijklmnopqrstuvwxyz0123456789/%", "äöüßéèñç", "日本語の鍵", "😀🎉🚀🧪")


class StoreContract:
    """Tests of the contract `oncemore.stores.Store`. Subclass it and define `make_store`."""

    def make_store(self, tmp_path: Path) -> Store:
        """Open a store for this test."""
        raise NotImplementedError

    def test_it_is_a_store(self, tmp_path: Path) -> None:
        assert isinstance(self.make_store(tmp_path), Store)

    def test_a_missing_key_is_none(self, tmp_path: Path) -> None:
        assert self.make_store(tmp_path).get("nothing") is None

    def test_what_is_put_comes_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.commit(put={"a": [b"one"], "b": [b"t", b"w", b"o"], "empty": [b""], "none": []})
        assert [bytes_of(store, key) for key in ("a", "b", "empty", "none")] == [b"one", b"two", b"", b""]

    def test_a_put_replaces(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for value in (b"small", b"x" * 100_000, b"y" * 200_000, b"small again"):
            store.commit(put={"a": [value]})
            assert bytes_of(store, "a") == value
        assert keys_of(store, "") == ["a"]

    def test_a_deleted_key_is_gone(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={"a": [b"1"], "b": [b"2" * 100_000], "c": [b"3"]})
        assert store.commit(delete=["a", "b", "never there"])
        assert store.get("a") is None
        assert store.get("b") is None
        assert keys_of(store, "") == ["c"]

    def test_ten_thousand_keys_go_at_once(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={f"k{number}": [b"v"] for number in range(10_000)} | {"stays": [b"v"]})
        store.commit(delete=[f"k{number}" for number in range(10_000)])
        assert keys_of(store, "") == ["stays"]

    def test_large_values_of_several_frames_come_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for size in (1 << 15, (1 << 15) - 1, 1 << 20, 40_000_000):
            data = random.Random(size).randbytes(size)
            third = size // 3
            frames: list[Any] = [data[:third], memoryview(data)[third : 2 * third], bytearray(data[2 * third :])]
            store.commit(put={"large": frames})
            assert bytes_of(store, "large") == data

    def test_a_frame_is_measured_in_bytes_not_items(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for count in (10, 100_000):
            numbers: Any = memoryview(bytearray(range(8)) * count).cast("d")
            store.commit(put={"numbers": [numbers]})
            assert bytes_of(store, "numbers") == bytes(numbers)

    def test_a_large_value_is_the_callers_own(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for size in (100_000, 3_000_000):
            store.commit(put={"a": [b"x" * size]})
            view = memoryview(store.get("a") or b"")
            assert not view.readonly
            view[:5] = b"wrote"
            assert bytes_of(store, "a") == b"x" * size
            store.commit(put={"a": [b"y" * size]})
            assert bytes(view[:6]) == b"wrotex"

    def test_keys_may_be_any_text(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={key: [key.encode()] for key in ODD_KEYS})
        assert keys_of(store, "") == sorted(ODD_KEYS)
        for key in ODD_KEYS:
            assert bytes_of(store, key) == key.encode()
            assert keys_of(store, key) == sorted(other for other in ODD_KEYS if other.startswith(key))

    def test_a_key_has_up_to_1024_bytes(self, tmp_path: Path) -> None:
        store, random_ = self.make_store(tmp_path), random.Random(1)
        longest = [random_key(random_, 1024, alphabet) for alphabet in ALPHABETS for _ in range(5)]
        store.commit(put={key: [key.encode()] for key in longest})
        assert keys_of(store, "") == sorted(longest)
        assert [bytes_of(store, key) for key in longest] == [key.encode() for key in longest]
        assert set(store.get_many(longest)) == set(longest)
        for key in longest:
            hold = store.hold(key)
            assert hold is not None
            assert store.held([key]) == {key}
            hold.release()
        log = random_key(random_, 1008, ALPHABETS[0])
        store.commit(append={log: [b"1"]})
        assert keys_of(store, log) == [f"{log}{1:016x}"]

    def test_a_longer_key_is_refused(self, tmp_path: Path) -> None:
        store, random_ = self.make_store(tmp_path), random.Random(2)
        for long in (random_key(random_, 1025, alphabet) for alphabet in ALPHABETS):
            attempts: list[Callable[[], object]] = [
                partial(store.get, long),
                partial(store.get_many, [long]),
                partial(store.hold, long),
                partial(store.held, [long]),
                partial(store.commit, put={"a": [b""], long: [b""]}),
                partial(store.commit, put={"a": [b""]}, append={long[4:]: [b""]}),
                partial(store.commit, put={"a": [b""]}, delete=[long]),
                partial(store.commit, put={"a": [b""]}, expect={long: None}),
            ]
            for attempt in attempts:
                try:
                    attempt()
                except UsageError:
                    continue
                raise AssertionError(f"a key of 1,025 bytes was accepted by {attempt}")
        assert keys_of(store, "") == []

    def test_what_is_not_text_is_refused_as_a_key(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        changes: list[Any] = [{"put": {"\ud800": [b""]}}, {"append": {"\ud800": [b""]}}]
        for change in changes:
            try:
                store.commit(**change)
            except UsageError:
                continue
            raise AssertionError("a lone surrogate was accepted in a key")

    def test_a_scan_gives_the_range_in_order(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        names = [f"run/{number:04}" for number in range(1200)]
        store.commit(put={key: [key.encode()] for key in ["qux", "run", "run.", "run0", *names]})
        assert keys_of(store, "run/") == names
        assert keys_of(store, "run/", after="run/0009") == names[10:]
        assert keys_of(store, "run/", after="run/00095") == names[10:]
        assert keys_of(store, "run/", after="a") == names
        assert keys_of(store, "run/", after="run/", limit=3) == names[:3]
        assert keys_of(store, "run/", limit=700) == names[:700]
        assert keys_of(store, "run/", limit=0) == keys_of(store, "run/", after="z") == []

    def test_a_scan_leaves_out_what_is_larger_than_asked_for(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        sizes = {"a": 0, "b": 10, "c": 11, "d": 50_000}
        store.commit(put={key: [b"x" * size] for key, size in sizes.items()})
        found = {key: None if value is None else len(value) for key, value in store.scan("", most=10)}
        assert found == {"a": 0, "b": 10, "c": None, "d": None}
        assert {key: len(value or b"") for key, value in store.scan("")} == sizes

    def test_many_are_read_at_once(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        values = {f"k{number:04}": b"%d" % number for number in range(1300)} | {"empty": b"", "large": b"x" * 100_000}
        store.commit(put={key: [value] for key, value in values.items()})
        wanted = [*values, "nothing", "k", "k00001"]
        assert {key: bytes(value or b"") for key, value in store.get_many(wanted).items()} == values
        assert store.get_many(["k0001", "nothing", "k0001"]) == {"k0001": b"1"}
        assert store.get_many([]) == store.get_many(["nothing"]) == {}
        assert store.get_many(["empty", "k0100", "k1000", "large"], most=3) == {
            "empty": b"",
            "k0100": b"100",
            "k1000": None,
            "large": None,
        }

    def test_a_scan_may_be_left_and_mixed_with_commits(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={f"k{number:04}": [b"v"] for number in range(1500)})
        other = self.make_store(tmp_path)
        next(store.scan("k"))
        seen: list[str] = []
        for key, _ in store.scan("k"):
            seen.append(key)
            if len(seen) % 100 == 0:
                assert other.commit(put={"from another": [b"1"]})
                assert store.commit(delete=seen)
        assert len(seen) == 1500
        assert keys_of(store, "k") == []

    def test_appended_entries_are_numbered_without_gaps(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        near = {"log/0000000000000001/x": [b""], "log/zzzzzzzzzzzzzzzz": [b""], "log/00000000000000zz": [b""]}
        store.commit(put=near)
        store.commit(append={"log/": [b"a", b"b"], "other/": [b"c"]})
        store.commit(append={"log/": [b"x" * 50_000]})
        assert [bytes_of(store, f"log/{number:016x}") for number in (1, 2, 3)] == [b"a", b"b", b"x" * 50_000]
        assert keys_of(store, "other/") == ["other/0000000000000001"]
        store.commit(append={"log/": [b""] * 14})
        assert store.get("log/0000000000000011") == b""

    def test_threads_append_without_gaps(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        in_threads(6, lambda number: append_many(store, f"thread {number}", 20))
        check_log(store, 6, 20)

    def test_processes_append_without_gaps(self, tmp_path: Path) -> None:
        store = shared(self.make_store(tmp_path))
        in_processes(4, lambda number: (append_many, store, f"process {number}", 25))
        check_log(store, 4, 25)

    def test_a_change_happens_only_on_what_is_expected(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        large = b"x" * 100_000
        assert store.commit(put={"a": [b"1"], "large": [large]}, expect={"a": None})
        for wrong in ({"a": None}, {"a": b"2"}, {"a": b"1", "b": b""}, {"large": large[:-1] + b"y"}, {"large": b"x"}):
            assert not store.commit(put={"a": [b"no"], "b": [b"no"]}, append={"log/": [b"no"]}, expect=wrong)
        assert keys_of(store, "") == ["a", "large"]
        right = {"a": memoryview(b"1"), "large": bytearray(large), "b": None}
        assert store.commit(put={"a": [b"2"]}, delete=["large"], expect=right)
        assert bytes_of(store, "a") == b"2"

    def test_no_increment_is_lost_between_threads(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        in_threads(6, lambda _: increment(store, 15))
        assert bytes_of(store, "counter") == b"90"

    def test_no_increment_is_lost_between_processes(self, tmp_path: Path) -> None:
        store = shared(self.make_store(tmp_path))
        in_processes(8, lambda _: (increment, store, 15))
        assert bytes_of(store, "counter") == b"120"

    def test_an_error_in_the_middle_leaves_nothing(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={"a": [b"before"]})
        bad: list[Any] = [{"put": {"a": [b"x"], "b": [1]}}, {"put": {"a": [b"x" * 99_999]}, "append": {"l": [1]}}]
        for change in bad:
            try:
                store.commit(**change)
            except TypeError:
                assert [(key, bytes(value or b"")) for key, value in store.scan("")] == [("a", b"before")]
                continue
            raise AssertionError("a value that is not bytes was accepted")
        assert store.commit(put={"a": [b"after"]})

    def test_two_instances_see_each_others_writes(self, tmp_path: Path) -> None:
        one, other = self.make_store(tmp_path), self.make_store(tmp_path)
        for number in range(5):
            one.commit(put={"a": [b"%d" % number]})
            assert bytes_of(other, "a") == b"%d" % number
            other.commit(put={"b": [b"%d" % number * 50_000]})
            assert bytes_of(one, "b") == b"%d" % number * 50_000

    def test_a_closed_store_opens_again(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={"a": [b"1"]})
        store.close()
        store.close()
        assert store.get("a") == b"1"
        assert store.commit(put={"a": [b"2"]})

    def test_it_travels_by_url_and_by_pickle(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={"a": [b"1"]})
        assert open_store(store.url).get("a") == b"1"
        assert pickle.loads(pickle.dumps(store)).get("a") == b"1"

    def test_a_key_is_held_once(self, tmp_path: Path) -> None:
        store, twin = self.make_store(tmp_path), self.make_store(tmp_path)
        hold, other = store.hold("a"), store.hold("b")
        assert hold is not None
        assert other is not None
        assert store.hold("a") is None
        assert twin.hold("a") is None
        other.release()
        assert twin.hold("a") is None
        hold.release()
        again = twin.hold("a")
        assert again is not None
        hold.release()  # the second time, it does not affect the new holder
        assert store.hold("a") is None
        again.release()

    def test_a_hold_knows_the_entry_that_an_earlier_holder_left(self, tmp_path: Path) -> None:
        store, twin = self.make_store(tmp_path), self.make_store(tmp_path)
        first = store.hold("a")
        assert first is not None
        assert first.entry is None
        for value in (b"small", b"x" * 100_000):
            store.commit(put={"a": [value]})
            first.release()
            first = twin.hold("a")
            assert first is not None
            assert bytes(first.entry or b"") == value
        assert first.entry is not None
        store.commit(delete=["a"])
        first.release()
        last = store.hold("a")
        assert last is not None
        assert last.entry is None
        last.release()

    def test_a_commit_under_a_hold_ends_it(self, tmp_path: Path) -> None:
        store, twin = self.make_store(tmp_path), self.make_store(tmp_path)
        hold = store.hold("a")
        assert hold is not None
        assert not store.commit(put={"a": [b"no"]}, expect={"a": b"there"}, under=hold)
        assert twin.hold("a") is None  # still held, so that its holder may try again
        assert store.commit(put={"a": [b"1"]}, append={"log/": [b"a"]}, expect={"a": None}, under=hold)
        after = twin.hold("a")
        assert after is not None
        assert after.entry == b"1"
        hold.release()  # does not affect the new holder
        assert store.held(["a"]) == {"a"}
        after.release()

    def test_a_stale_owner_writes_nothing(self, tmp_path: Path) -> None:
        store, twin = self.make_store(tmp_path), self.make_store(tmp_path)
        stale = store.hold("a")
        assert stale is not None
        stale.release()
        newer = twin.hold("a")
        assert newer is not None
        for _ in range(2):  # while another holds it, and after that one has committed
            try:
                store.commit(put={"a": [b"stale"], "b": [b"x" * 100_000]}, append={"log/": [b"stale"]}, under=stale)
            except HoldLost:
                pass
            else:
                raise AssertionError("a stale holder wrote")
            twin.commit(put={"a": [b"newer"]}, under=newer if twin.held(["a"]) else None)
        assert [(key, bytes(value or b"")) for key, value in store.scan("")] == [("a", b"newer")]

    def test_looking_at_what_is_held_takes_nothing(self, tmp_path: Path) -> None:
        store, twin = self.make_store(tmp_path), self.make_store(tmp_path)
        assert store.held(["a", "b"]) == store.held([]) == set()
        hold, other = store.hold("a"), store.hold("c")
        assert hold is not None
        assert other is not None
        assert store.held(["a", "b", "c"]) == twin.held({"a", "b", "c"}) == {"a", "c"}
        free = twin.hold("b")
        assert free is not None
        hold.release()
        assert store.held(["a", "b", "c"]) == {"b", "c"}
        free.release()
        other.release()
        assert twin.held(["a", "b", "c"]) == set()

    def test_what_another_process_holds_is_seen_until_it_dies(self, tmp_path: Path) -> None:
        store = shared(self.make_store(tmp_path))
        holder = start((hold_forever, store, "a"))
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        mine = store.hold("mine")
        assert mine is not None
        assert store.held(["a", "b", "mine"]) == {"a", "mine"}
        assert in_fork(lambda: 7 if store.held(["a", "b", "mine"]) == {"a", "mine"} else 0) == 7
        holder.kill()
        finish(holder)
        assert store.held(["a", "b", "mine"]) == {"mine"}
        assert store.hold("mine") is None  # `held` has not released it
        mine.release()
        assert store.held(["mine"]) == set()

    def test_a_hold_counts_in_other_processes_and_ends_with_its_own(self, tmp_path: Path) -> None:
        store = shared(self.make_store(tmp_path))
        for stop in (signal.SIGTERM, signal.SIGKILL):
            holder = start((hold_forever, store, "a"))
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            assert store.hold("a") is None
            free = store.hold("b")
            assert free is not None
            holder.send_signal(stop)
            finish(holder)
            hold = store.hold("a")
            assert hold is not None
            hold.release()
            free.release()

    def test_a_forked_child_works_with_an_open_store(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.commit(put={"a": [b"1"], "large": [b"x" * 50_000]})
        hold = store.hold("key")
        assert hold is not None
        for number in range(3):
            assert in_fork(partial(child_of_fork, store, number)) == 0
        if getattr(store, "shared_between_processes", True):
            assert in_fork(lambda: 7 if store.hold("key") is None else 0) == 7
            assert [bytes_of(store, f"child {number}") for number in range(3)] == [b"x" * 40_000] * 3
        assert store.hold("key") is None
        hold.release()
        assert bytes_of(store, "a") == b"1"


def bytes_of(store: Store, key: str) -> bytes:
    """The bytes under a key, which must exist."""
    value = store.get(key)
    assert value is not None, key
    return bytes(value)


def random_key(random_: random.Random, size: int, alphabet: str) -> str:
    """A key of `size` bytes from one alphabet that does not compress well."""
    key = "".join(random_.choices(alphabet, k=size))
    while len(key.encode()) > size:
        key = key[:-1]
    return key + "x" * (size - len(key.encode()))


def keys_of(store: Store, prefix: str, **options: Any) -> list[str]:
    """The keys of a scan."""
    return [key for key, _ in store.scan(prefix, **options)]


def shared(store: Store) -> Store:
    """Return the store if it is shared between processes; otherwise skip the test."""
    if not getattr(store, "shared_between_processes", True):
        import pytest

        pytest.skip("this store is not shared between processes")
    return store


def append_many(store: Store, name: str, count: int) -> None:
    """Append entries to the log `log/`."""
    for number in range(count):
        store.commit(append={"log/": [f"{name} {number}".encode()]})


def check_log(store: Store, writers: int, each: int) -> None:
    """Check that nothing is lost or duplicated, and that each writer's entries are in order."""
    entries = [(key, bytes(value or b"").decode()) for key, value in store.scan("log/")]
    assert [key for key, _ in entries] == [f"log/{number:016x}" for number in range(1, writers * each + 1)]
    assert len({text for _, text in entries}) == writers * each
    by_writer: dict[str, list[int]] = {}
    for _, text in entries:
        writer, _, number = text.rpartition(" ")
        by_writer.setdefault(writer, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_writer.values())


def increment(store: Store, times: int) -> None:
    """Increment a counter with compare-and-set."""
    for _ in range(times):
        while True:
            found = store.get("counter")
            following = b"%d" % (int(bytes(found or b"0")) + 1)
            if store.commit(put={"counter": [following]}, expect={"counter": found}):
                break


def hold_forever(store: Store, key: str) -> None:
    """Hold a key until killed."""
    hold = store.hold(key)
    print("held" if hold else "refused", flush=True)
    threading.Event().wait()


def child_of_fork(store: Store, number: int) -> int:
    """Use the parent's store in a forked child; returns 0 on success."""
    assert bytes_of(store, "a") == b"1"
    assert bytes_of(store, "large") == b"x" * 50_000
    assert store.commit(put={f"child {number}": [b"x" * 40_000]}, append={"log/": [b"child"]})
    hold = store.hold(f"child {number}")
    assert hold is not None
    hold.release()
    return 0


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(0..count-1)` concurrently and raise the first failure."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()


def start(work: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    """Call `work[0](*work[1:])` in a new process, to which it is sent as a pickle."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _CHILD]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(work))
    process.stdin.close()
    return process


def finish(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that `start` started."""
    assert process.stdout is not None
    with process.stdout:
        return process.wait(60)


def in_processes(count: int, work: Callable[[int], tuple[Any, ...]]) -> None:
    """Run `work(0..count-1)` concurrently, each in its own process."""
    processes = [start(work(number)) for number in range(count)]
    assert [finish(process) for process in processes] == [0] * count


def in_fork(work: Callable[[], int]) -> int:
    """Run `work` in a forked child; returns its result, or 1 if it failed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
