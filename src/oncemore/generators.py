"""Generator steps: their items are recorded when the generator is exhausted, and replayed lazily.

Each item is pickled before the consumer gets it, so what the consumer does to it never reaches the store. Items are stored in
chunks, in the same transaction as the checkpoint; a generator that is closed early leaves nothing.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import codec
from .copies import copy_here, refers
from .errors import CodecError, StoreError, UsageError, warn
from .files.blobs import keeping
from .flight import Blocking, Request, Thrown
from .history.explain import Reason
from .node import ASKED, CheckpointData, inside
from .stores import Bytes, Hold
from .surroundings import CallContext, Watcher, depend, obstacles, restore
from .surroundings.process import applied

if TYPE_CHECKING:
    from .call import Call, Definition
    from .codec import Decoded
    from .session import Session

_CHUNK = 1 << 20  # bytes of pickled items in one chunk, about


class Item:
    """A request to yield one item to the consumer; the answer is what the consumer sends."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Resume:
    """A request to resume the user's generator until its next item."""

    def __init__(self, body: Any, sent: Any = None, thrown: BaseException | None = None) -> None:
        self._body, self._sent, self._thrown = body, sent, thrown

    def now(self) -> Any:
        try:
            return self._body.send(self._sent) if self._thrown is None else self._body.throw(self._thrown)
        except StopIteration as end:
            raise _Exhausted(end.value) from None

    async def later(self) -> Any:
        try:
            return await (self._body.asend(self._sent) if self._thrown is None else self._body.athrow(self._thrown))
        except StopAsyncIteration:
            raise _Exhausted(None) from None


class Close:
    """A request to close the user's generator early."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def now(self) -> None:
        self._body.close()

    async def later(self) -> None:
        await self._body.aclose()


class _Exhausted(Exception):
    """The user's generator returned. StopIteration itself must not pass through another generator."""


class _Closed(Exception):
    """The consumer closed the generator early. After a GeneratorExit itself, the path could not yield `Close`."""


ItemPath = Generator["Request | Item", Any, Any]


def drive(path: ItemPath) -> Generator[Any, Any, Any]:
    """Run a path as a generator."""
    thrown: Thrown | None = None
    try:
        request = next(path)
        while True:
            try:
                answer = (yield request.value) if isinstance(request, Item) else request.now()
            except BaseException as error:
                thrown = Thrown(error)
                request = path.throw(_Closed() if isinstance(error, GeneratorExit) else error)
            else:
                request = path.send(answer)
    except StopIteration as end:
        return end.value
    except _Closed:
        return None  # the path was garbage-collected first
    except BaseException as error:
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 would restore the whole traceback


async def drive_async(path: ItemPath) -> AsyncGenerator[Any, Any]:
    """Run a path as an async generator."""
    thrown: Thrown | None = None
    try:
        request = next(path)
        while True:
            try:
                answer = (yield request.value) if isinstance(request, Item) else await request.later()
            except BaseException as error:
                thrown = Thrown(error)
                request = path.throw(_Closed() if isinstance(error, GeneratorExit) else error)
            else:
                request = path.send(answer)
    except (StopIteration, _Closed):
        return
    except BaseException as error:
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 would restore the whole traceback


def path(
    step: Definition, body: Any, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool
) -> ItemPath:
    """Replay the recorded items, or yield those of `body` and record them."""
    call = step.identify(run, args, kwargs)
    if call is None or call.recursive:
        return (yield from _relay(body, None))
    try:
        recorded, why = (None, ASKED[0]) if fresh else (yield Blocking(_find, step, call))
        if recorded is not None:
            yield Close(body)
            return (yield from _replay(step, call, *recorded))
        reason: Reason = Reason(why) if why else (yield Blocking(step.reason, call))
        run.will_run(call.node, reason.text, once=False)
        recording = _Recording(step, call, reason)
        yield Blocking(recording.begin)
        try:
            return (yield from _relay(body, recording))
        finally:
            recording.close()
    except BaseException:
        step.give_back(call)
        raise


def _relay(body: Any, recording: _Recording | None) -> ItemPath:
    """Yield the items of `body`, and record them unless `recording` is None."""
    resume = Resume(body)
    while True:
        if recording is not None:
            recording.resume()
        try:
            item = yield resume
        except _Exhausted as end:
            if recording is not None:
                yield Blocking(recording.finish(end.args[0]))
            return end.args[0]
        except GeneratorExit:
            raise  # the path is being garbage-collected, and must not yield
        except BaseException as error:
            if recording is not None:
                yield Blocking(recording.fail(error))
            raise
        if recording is not None:
            recording = recording.add(item)
        try:
            sent = yield Item(item)
        except _Closed:
            return (yield Close(body))
        except GeneratorExit:
            raise
        except BaseException as error:
            sent, resume = error, Resume(body, thrown=error)
        else:
            resume = Resume(body, sent)
        if sent is not None:  # from here on, the items depend on the consumer as well
            recording = None


def _replay(step: Definition, call: Call, entry: Decoded, context: CallContext) -> ItemPath:
    """Yield the recorded items, and restore the effects of each."""
    again = step.repeated(call, entry)
    call.run.count_reuse(step.name, call.node.key, entry.time, entry.seconds)
    step.check_files(call, entry)
    applied(call.run, entry.key)
    depend(call.run, entry.meta.get("reads", ()))
    for number in range(entry.meta["chunks"]):
        chunk = yield Blocking(call.entries.chunk, entry, number)
        for item, effects in _items(step, call, chunk, context):
            restore(context, effects, repeated=again)
            try:
                sent = yield Item(item)
            except _Closed:
                return None
            if sent is not None:
                raise UsageError(f"step {step.name} is replayed from its checkpoint, so nothing can be sent to it")
    _match_state(step, entry.meta.get("roots", ()), context)
    value, effects = step.load(call, entry, context)
    restore(context, effects, repeated=again)
    return value


def read(step: Definition, call: Call, entry: Decoded) -> ItemPath:
    """Yield the recorded items. Nothing is restored or counted as reused."""
    context = step.match_objects(call, entry)
    for number in range(entry.meta["chunks"]):
        chunk = yield Blocking(call.entries.chunk, entry, number)
        for item, _ in _items(step, call, chunk, context):
            try:
                yield Item(item)
            except _Closed:
                return None
    _match_state(step, entry.meta.get("roots", ()), context)
    return step.load(call, entry, context)[0]


def _items(step: Definition, call: Call, chunk: Decoded, context: CallContext) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The items of one chunk with their effects; each is matched with the state at the time it is requested."""
    for pickled, roots in zip(chunk.load(), chunk.meta.get("roots") or itertools.repeat(())):
        _match_state(step, roots, context)
        with keeping(call.run.store):
            item, effects, *_ = codec.loads(pickled, chunk.meta.get("main", ""), context.roots.find)
        yield item, effects


def _match_state(step: Definition, roots: Iterable[tuple[str, str, str]], context: CallContext) -> None:
    """Find state and globals anew before an item: the consumer may have changed them since the last one."""
    context.roots.forget("state")
    context.roots.forget("global")
    try:
        context.roots.match(roots, ("global", "state"))
    except CodecError as error:
        raise StoreError(f"step {step.name} cannot be replayed any further: {error}") from None


def _find(step: Definition, call: Call) -> tuple[tuple[Decoded, CallContext] | None, str | None]:
    """The node's checkpoint if all of it is usable, since a replay must not break off midway; otherwise the reason."""
    entry, why = step.find(call)
    if entry is None:
        return None, why
    try:
        before_first = entry.meta.get("roots", ())
        for number in reversed(range(entry.meta["chunks"])):
            before_first = (call.entries.chunk(entry, number).meta.get("roots") or [()])[0]
        context = step.match_objects(call, entry)
        context.roots.match(before_first, ("global",))  # restoring an item brings them to where the next one began
        with keeping(call.run.store):  # the state gets there only during the replay
            loaded = entry.load(lambda name: context.roots.find(name) if name[0] == "argument" else None)
        effects = loaded[1] if entry.meta.get("effects") else {}
        why = next((why for _, why in obstacles(context, effects, step.repeated(call, entry))), None)
        effects.get("files", {}).pop("ready", None)  # removes the drafts; the end of the replay makes new ones
        if why is not None:
            raise CodecError(why)
    except (StoreError, CodecError) as error:
        if call.entries.replaced(entry):
            return _find(step, call)
        if call.run.strict and isinstance(error, StoreError):
            raise
        warn(f"step {step.name} runs again: its recorded items cannot be used: {error}")
        return None, str(error)
    return (entry, context), None


class _Recording:
    """Records the items of one generator.

    The consumer's code runs between two items, so surroundings are watched around each stretch of the generator's own code.
    """

    def __init__(self, step: Definition, call: Call, why: Reason) -> None:
        self._step, self._call, self._why = step, call, why
        self._dependencies = step.dependencies(call)  # now: the body may change what it depends on
        self._keys = call.entries.new_items()
        self._owner = self._keys.rstrip("/")  # owns the contents of files until the checkpoint is written
        self._hold: Hold | None = None
        self._seen: Bytes | None = None
        self._context = step.context(call, runs=True)
        self._context.per_item, self._context.node = True, self._owner
        self._whole_watcher = Watcher(self._context, per_item=False)
        self._item_watcher: Watcher
        self._exit_node: Callable[[], None]
        self._items: list[bytes] = []
        self._roots: list[list[tuple[str, str, str]]] = []  # for each item, the state and globals that it refers to
        self._size = 0
        self._chunks: list[codec.Encoded] = []
        self._blobs: list[str] = []  # contents of files that the items refer to
        self._started = time.perf_counter()

    def begin(self) -> None:
        """Note the node's entry: if it has been replaced by the time the generator is exhausted, the newer one stays."""
        store = self._call.run.store
        try:
            self._hold = store.hold(self._owner)  # protects the contents of files from removal
            self._seen = store.get(self._call.node.key)
        except StoreError:
            self._call.damaged = True

    def close(self) -> None:
        """The generator has ended, one way or another."""
        if self._hold is not None:
            self._hold.release()

    def resume(self) -> None:
        """The generator is about to continue."""
        self._context.roots.forget("state")
        self._context.roots.forget("global")
        self._context.first = not self._items and not self._chunks
        self._item_watcher = Watcher(self._context, per_item=True)
        self._exit_node = inside(self._call.node)

    def add(self, item: object) -> _Recording | None:
        """The generator has yielded. None if its items can't be recorded."""
        self._exit_node()
        try:
            self._item_watcher.returned()
            with keeping(self._call.run.store, self._blobs.extend, self._owner):
                effects, name = self._item_watcher.effects(), self._context.roots.name
                recorded: tuple[Any, ...] = (item, effects)
                if self._context.roots and refers(item, name):
                    recorded = (item, effects, copy_here(item))
                self._items.append(codec.dumps(recorded, name))
            self._roots.append([root for root in self._context.roots.listed if root[0] != "argument"])
        except (CodecError, StoreError) as error:
            warn(f"step {self._step.name}: its items were not saved: {error}")
            return None
        self._size += len(self._items[-1])
        if self._size >= _CHUNK:
            self._pack()
        return self

    def _pack(self) -> None:
        number = len(self._chunks)
        self._chunks.append(self._call.entries.encode_chunk(self._keys, number, self._items, self._roots))
        self._items, self._roots, self._size = [], [], 0

    def finish(self, value: object) -> Callable[[], None]:
        """The generator is exhausted. Returns the function that writes the checkpoint."""
        try:
            self._item_watcher.returned()
            self._whole_watcher.returned()
        except Exception as error:
            self.fail(error)()
            raise
        self._exit_node()
        run, node, elapsed = self._call.run, self._call.node, time.perf_counter() - self._started
        try:
            effects = {**self._item_watcher.effects(), **self._whole_watcher.effects()}
        except (CodecError, StoreError) as error:
            return functools.partial(run.not_saved, node, str(error), seconds=elapsed)
        if self._items:
            self._pack()
        data = CheckpointData.of(value, effects, self._context, self._dependencies, once=False)
        data.chunks, data.items = self._chunks, self._keys
        data.seen, data.damaged, data.owner = self._seen, self._call.damaged, self._owner
        if self._blobs:
            data.meta["blobs"] = self._blobs
        return functools.partial(run.record_result, node, data, reason=self._why, seconds=elapsed)

    def fail(self, error: BaseException) -> Callable[[], None]:
        """The generator raised. Returns the function that records the failure."""
        self._exit_node()
        self._item_watcher.failed()
        self._whole_watcher.failed()
        if not isinstance(error, Exception):
            return lambda: None
        run, elapsed = self._call.run, time.perf_counter() - self._started
        return functools.partial(run.record_failure, self._call.node, error, reason=self._why, seconds=elapsed)
