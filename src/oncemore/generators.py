"""Steps that yield: their items are kept when the generator is exhausted, and replayed lazily.

Each item is pickled before it is handed over, so that what the consumer does to it never reaches the store. Items are
kept in chunks, written together with the checkpoint in one transaction; a generator that is closed early leaves nothing.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import codec
from .blobs import keeping
from .errors import CodecError, StoreError, UsageError, warn
from .flight import Blocking, Request, Thrown
from .node import inside
from .reasons import Reason
from .stores import Bytes, Hold
from .surroundings import CallContext, Watcher, depend, obstacles, restore

if TYPE_CHECKING:
    from .call import Call, Definition
    from .codec import Decoded
    from .session import Session

_CHUNK = 1 << 20  # bytes of pickled items that are stored and loaded together


class Item:
    """A request to hand one item to the consumer; the answer is what the consumer sends back."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Resume:
    """Let the user's generator go on to its next item."""

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
    """Close the user's generator early."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def now(self) -> None:
        self._body.close()

    async def later(self) -> None:
        await self._body.aclose()


class _Exhausted(Exception):
    """The user's generator returned; StopIteration itself must not cross another generator."""


class _Closed(Exception):
    """The consumer closed the generator early; a GeneratorExit itself would forbid us to close the body in turn."""


ItemPath = Generator["Request | Item", Any, Any]


def drive(path: ItemPath) -> Generator[Any, Any, Any]:
    """Follow a path as a generator."""
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
        return None  # the path was collected before us
    except BaseException as error:
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 puts the whole traceback back


async def drive_async(path: ItemPath) -> AsyncGenerator[Any, Any]:
    """Follow a path as an async generator."""
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
        raise error  # not a bare `raise`: Python 3.10 puts the whole traceback back


def path(
    step: Definition, body: Any, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool
) -> ItemPath:
    """Replay the items that are kept, or relay those of `body` and keep them."""
    call = step.identify(run, args, kwargs)
    if call is None or call.recursive:
        return (yield from _relay(body, None))
    try:
        kept, why = (None, "refreshed") if fresh else (yield Blocking(_find, step, call))
        if kept is not None:
            yield Close(body)
            return (yield from _replay(step, call, *kept))
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
            raise  # this path is being collected, and may do nothing more
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
        if sent is not None and recording is not None:  # what comes now depends on the consumer, too
            recording = None


def _replay(step: Definition, call: Call, entry: Decoded, context: CallContext) -> ItemPath:
    again = step.repeated(call, entry)
    call.run.count_reuse(step.name, call.node.key, entry.seconds)
    step.reused_files(call, entry)
    call.run.applied.add(entry.key)
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
                raise UsageError(f"step {step.name} is being replayed: nothing can be sent into it")
    _match_state(step, entry.meta.get("roots", ()), context)
    value, effects, _ = step.load(call, entry, context)
    restore(context, effects, repeated=again)
    return value


def look(step: Definition, call: Call, entry: Decoded) -> ItemPath:
    """The kept items for one who only looks: nothing is restored, nothing counts as reused."""
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
    """The items of one chunk with their effects, each as the state is when it is asked for."""
    pickles = chunk.load()
    for pickled, roots in zip(pickles, chunk.meta.get("roots") or itertools.repeat(())):
        _match_state(step, roots, context)
        with keeping(call.run.store):
            loaded = codec.loads(pickled, chunk.meta.get("main", ""), context.roots.find)
        yield loaded


def _match_state(step: Definition, roots: Iterable[tuple[str, str, str]], context: CallContext) -> None:
    """The state is what the consumer has left: it may not be what the next item was kept with."""
    context.roots.forget("state")
    context.roots.forget("global")
    try:
        context.roots.match(roots, ("global", "state"))
    except CodecError as error:
        raise StoreError(f"step {step.name} cannot be replayed any further: {error}") from None


def _find(
    step: Definition, call: Call, warned: str | None = None
) -> tuple[tuple[Decoded, CallContext] | None, str | None]:
    """The node's checkpoint and the call, if all of it can be used: a replay must not break off midway. Else why not."""
    entry, why = step.find(call, warned)
    if entry is None:
        return None, why
    try:
        begin = entry.meta.get("roots", ())
        for number in reversed(range(entry.meta["chunks"])):
            begin = (call.entries.chunk(entry, number).meta.get("roots") or [()])[0]
        context = step.match_objects(call, entry)
        context.roots.match(
            begin, ("global",)
        )  # as they were before the first item; each item brings them on to the next
        with keeping(call.run.store):  # the state is not there yet
            loaded = entry.load(lambda name: context.roots.find(name) if name[0] == "argument" else None)
        effects = loaded[1] if entry.meta.get("effects") else {}
        why = next((why for _, why in obstacles(context, effects, step.repeated(call, entry))), None)
        effects.get("files", {}).pop("ready", None)  # its drafts go at once; there will be new ones at the end
        if why is not None:
            raise CodecError(why)
    except (StoreError, CodecError) as error:
        if call.entries.replaced(entry):
            return _find(step, call, warned)
        if call.run.strict and isinstance(error, StoreError):
            raise
        if str(error) != warned:
            warn(f"step {step.name} runs again, its items cannot be used: {error}")
        return None, str(error)
    return (entry, context), None


class _Recording:
    """The items of one generator on their way to the store.

    Between two items the consumer's code runs, so surroundings are looked at around each stretch of the generator's own.
    """

    def __init__(self, step: Definition, call: Call, why: Reason) -> None:
        self._step, self._call, self._why = step, call, why
        self._dependencies = step.dependencies(call)  # now: the body may change what it depends on
        self._keys = call.entries.new_items()
        self._owner = self._keys.rstrip("/")  # of the contents of files, until the checkpoint is there
        self._hold: Hold | None = None
        self._seen: Bytes | None = None
        self._context = step.context(call, runs=True)
        self._context.per_item, self._context.node = True, self._owner
        self._whole = Watcher(self._context, per_item=False)
        self._stretch: Watcher
        self._entered: Callable[[], None]
        self._items: list[bytes] = []
        self._roots: list[list[tuple[str, str, str]]] = []  # for each, the state that its names count in
        self._size = 0
        self._chunks: list[codec.Encoded] = []
        self._blobs: list[str] = []  # the contents of files that items refer to
        self._started = time.perf_counter()

    def begin(self) -> None:
        """Note what stands under the node's key: if it is something else when the generator is exhausted, that stays."""
        store = self._call.run.store
        try:
            self._hold = store.hold(self._owner)  # nobody removes the contents of files meanwhile
            self._seen = store.get(self._call.node.key)
        except StoreError:
            self._call.damaged = True

    def close(self) -> None:
        """It is over, however it ended."""
        if self._hold is not None:
            self._hold.release()

    def resume(self) -> None:
        """The generator is about to run on."""
        self._context.roots.forget("state")
        self._context.roots.forget("global")
        self._context.first = not self._items and not self._chunks
        self._stretch = Watcher(self._context, per_item=True)
        self._entered = inside(self._call.node)

    def add(self, item: object) -> _Recording | None:
        """The generator has yielded; None if its items cannot be kept."""
        self._entered()
        try:
            self._stretch.returned()
            with keeping(self._call.run.store, self._blobs.extend, self._owner):
                self._items.append(codec.dumps((item, self._stretch.effects()), self._context.roots.name))
            self._roots.append([root for root in self._context.roots.listed if root[0] != "argument"])
        except (CodecError, StoreError) as error:
            warn(f"step {self._step.name}: the items are not kept: {error}")
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
        """The generator is exhausted; what is returned writes the checkpoint."""
        try:
            self._stretch.returned()
            self._whole.returned()
        except Exception as error:
            self.fail(error)()
            raise
        self._entered()
        run, node, took = self._call.run, self._call.node, time.perf_counter() - self._started
        try:
            effects = {**self._stretch.effects(), **self._whole.effects()}
        except (CodecError, StoreError) as error:
            return functools.partial(run.not_kept, node, str(error), seconds=took)
        if self._items:
            self._pack()
        kept = self._step.kept(value, effects, self._context, self._dependencies)
        kept.chunks, kept.items = self._chunks, self._keys
        kept.seen, kept.damaged, kept.owner = self._seen, self._call.damaged, self._owner
        if self._blobs:
            kept.meta["blobs"] = self._blobs
        return functools.partial(run.record_result, node, kept, reason=self._why, seconds=took)

    def fail(self, error: BaseException) -> Callable[[], None]:
        """The generator raised; what is returned writes that down."""
        self._entered()
        self._stretch.failed()
        self._whole.failed()
        run, took = self._call.run, time.perf_counter() - self._started
        if not isinstance(error, Exception):
            return lambda: None
        return functools.partial(run.record_failure, self._call.node, error, reason=self._why, seconds=took)
