"""A LangGraph checkpointer: the threads of graphs in a store of oncemore, signed and verified like everything else.

A checkpoint is one entry. The values of its channels are entries of their own, written when they change, which later
checkpoints refer to. Values are serialized by LangGraph, and signed and compressed by our codec: no byte reaches the serializer
before its signature is verified.
"""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from .. import current
from ..codec import Decoded, encode
from ..codec.keyed import keyed
from ..errors import IntegrityError, UsageError, warn
from ..flight import Blocking
from ..keys import (
    GRAPHS,
    channel_key,
    channels_of,
    graph_checkpoint_key,
    graph_checkpoints_of,
    newest_first,
    thread_stamp,
    write_key,
    writes_of,
)
from ..records import stamp
from ..settings import secret
from ..stores import Bytes, Frames, Store, default_target, open_store

__all__ = ["OncemoreSaver"]


class _Saved(NamedTuple):
    """A stored checkpoint: where it is, and its verified entry."""

    key: str
    entry: Decoded

    @property
    def thread(self) -> str:
        return str(self.entry.meta["thread"])

    @property
    def namespace(self) -> str:
        return str(self.entry.meta["namespace"])

    @property
    def values(self) -> dict[str, str]:
        """The keys of its channels' values."""
        return dict(self.entry.meta["values"])

    def config(self, which: str = "id") -> RunnableConfig:
        """The config of the checkpoint, or of its parent."""
        where = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": self.entry.meta[which]}
        return {"configurable": where}


class OncemoreSaver(BaseCheckpointSaver[str]):
    """Keeps the threads of LangGraph graphs in a store: `builder.compile(checkpointer=OncemoreSaver("./.oncemore"))`.

    `store` is a path, a URL or a `Store` (default: the default store). `serde` is LangGraph's serializer.
    All methods exist as coroutines too. A thread may be used by several processes at a time. A checkpoint that was altered in
    the store raises `IntegrityError` when it is to be resumed; `list` leaves it out with a warning.

    >>> from langgraph.graph import START, StateGraph
    >>> builder = StateGraph(dict).add_node("double", lambda state: {"n": 2 * state["n"]}).add_edge(START, "double")
    >>> graph = builder.compile(checkpointer=OncemoreSaver("memory://graphs"))
    >>> config = {"configurable": {"thread_id": "1"}}
    >>> graph.invoke({"n": 4}, config)
    {'n': 8}
    >>> graph.get_state(config).values
    {'n': 8}
    """

    def __init__(
        self, store: str | os.PathLike[str] | Store | None = None, *, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        opened = keyed(open_store(default_target() if store is None else store), writing=current.rehearsal is None)
        self.store = opened if current.rehearsal is None else current.rehearsal.over(opened)

    # -- read

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the newest of its thread and namespace; None if there is none."""
        thread, namespace = _where(config)
        checkpoint = get_checkpoint_id(config)
        if checkpoint:
            key = graph_checkpoint_key(thread, namespace, checkpoint)
            data = self.store.get(key)
            return None if data is None else self._load(self._saved(key, data))
        for key, _ in self.store.scan(graph_checkpoints_of(thread, namespace), limit=1, most=0):
            data = self.store.get(key)
            if data is None:  # removed since
                return self.get_tuple(config)
            return self._load(self._saved(key, data))
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, newest first; those of one namespace if `config` names one. Without `config`, of all
        threads. `filter` has values that the metadata must have; `before` is the config of a later checkpoint.
        """
        thread, namespace = (None, None) if config is None else (_where(config)[0], _namespace(config))
        only = None if config is None else get_checkpoint_id(config)
        end = None if before is None else get_checkpoint_id(before)
        prefix = graph_checkpoints_of(thread, namespace)
        found = ((key.rpartition("/")[2], key) for key, _ in self.store.scan(prefix, most=0))
        wanted = (
            each
            for each in found
            if (not only or each[0] == newest_first(only)) and (not end or each[0] > newest_first(end))
        )
        for _, key in sorted(wanted):
            if limit is not None and limit <= 0:
                return
            for saved in self._readable([(key, self.store.get(key))]):
                metadata = self._metadata(saved) if filter else {}
                if all(metadata.get(name) == value for name, value in (filter or {}).items()):
                    limit = None if limit is None else limit - 1
                    yield self._load(saved)

    def _readable(self, entries: Iterable[tuple[str, Bytes | None]]) -> Iterator[_Saved]:
        """The checkpoints among these entries, without those that were removed meanwhile, or are damaged: with a warning."""
        for key, data in entries:
            try:
                if data is not None:
                    yield self._saved(key, data)
            except IntegrityError as error:
                warn(f"a LangGraph checkpoint is left out: {error}. `oncemore verify` lists what is damaged")

    def _saved(self, key: str, data: Bytes) -> _Saved:
        return _Saved(key, Decoded(data, key=key, secret=secret()))

    def _metadata(self, saved: _Saved) -> Mapping[str, Any]:
        found: dict[str, Any] = self.serde.loads_typed(saved.entry.load()[1])
        return found

    def _load(self, saved: _Saved) -> CheckpointTuple:
        checkpoint, metadata = saved.entry.load()
        found = self.store.get_many(saved.values.values())
        values = {channel: self._value(key, found.get(key), channel) for channel, key in saved.values.items()}
        writes = [Decoded(data, key=key, secret=secret()) for key, data in self._entries(writes_of(saved.key))]
        writes.sort(key=lambda write: (write.meta["path"], write.meta["task"], write.meta["index"]))
        return CheckpointTuple(
            config=saved.config(),
            checkpoint=cast("Checkpoint", {**self.serde.loads_typed(checkpoint), "channel_values": values}),
            metadata=self.serde.loads_typed(metadata),
            parent_config=saved.config("parent") if saved.entry.meta["parent"] else None,
            pending_writes=[
                (write.meta["task"], write.meta["channel"], self.serde.loads_typed(write.load())) for write in writes
            ],
        )

    def _value(self, key: str, found: Bytes | None, channel: str) -> Any:
        data = self.store.get(key) if found is None else found
        if data is None:
            raise IntegrityError(f"the value of LangGraph channel {channel} is missing from {self.store.url}: {key}")
        return self.serde.loads_typed(Decoded(data, key=key, secret=secret()).load())

    # -- write

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint, whose parent is the one that `config` names. Returns the config of the new one."""
        thread, namespace = _where(config)
        content: dict[str, Any] = {**checkpoint}
        values: dict[str, Any] = content.pop("channel_values")
        versions, about = checkpoint["channel_versions"], get_checkpoint_metadata(config, metadata)
        keys = {channel: channel_key(thread, namespace, channel, versions.get(channel)) for channel in values}
        key = graph_checkpoint_key(thread, namespace, checkpoint["id"])
        meta = {
            "thread": thread,
            "namespace": namespace,
            "id": checkpoint["id"],
            "parent": get_checkpoint_id(config),
            "run": about.get("run_id"),
            "values": keys,
            "deltas": sorted(about.get("counters_since_delta_snapshot") or ()),
        }
        put = self._entry(key, (self.serde.dumps_typed(content), self.serde.dumps_typed(about)), meta)
        for channel in keys.keys() & new_versions.keys():
            put |= self._entry(keys[channel], self.serde.dumps_typed(values[channel]))
        while True:
            then = self.store.get(GRAPHS)
            rest = {keys[channel]: channel for channel in keys if keys[channel] not in put}
            for lacking in rest.keys() - self.store.get_many(rest, most=0).keys():
                put |= self._entry(lacking, self.serde.dumps_typed(values[rest[lacking]]))
            if self.store.commit(put={**put, thread_stamp(thread): stamp()}, expect={GRAPHS: then} if rest else {}):
                where = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}
                return {"configurable": where}

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task has written since a checkpoint. What the task has already saved there stays as it is."""
        thread, namespace = _where(config)
        checkpoint = graph_checkpoint_key(thread, namespace, _named(config)["checkpoint_id"])
        final: dict[str, Frames] = {}  # never replaced
        special: dict[str, Frames] = {}  # errors, interrupts: the last one counts
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            key = write_key(checkpoint, task_id, index)
            meta = {"task": task_id, "path": task_path, "channel": channel, "index": index, "thread": thread}
            (final if index >= 0 else special).update(self._entry(key, self.serde.dumps_typed(value), meta))
        while True:
            existing = self.store.get_many(final, most=0)
            new = {key: frames for key, frames in final.items() if key not in existing}
            if self.store.commit(put={**special, **new}, expect=dict.fromkeys(new)):
                return

    def _entry(self, key: str, value: object, meta: Mapping[str, Any] = {}) -> dict[str, Frames]:
        return {key: encode(value, meta, key=key, secret=secret(), time=time.time()).frames}

    def get_next_version(self, current: Any, channel: None) -> str:
        """The version of a channel after `current`. It is unique, so that processes with the same thread don't share values."""
        number = int(str(current).partition(".")[0]) if current else 0
        return f"{number + 1:032}.{os.urandom(8).hex()}"

    # -- remove and copy

    def delete_thread(self, thread_id: str) -> None:
        """Remove everything of a thread."""
        self._remove(str(thread_id), lambda saved: set(saved), everything=True)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs of a graph have made, in all threads, and what was written since them."""
        runs = set(run_ids)

        def doomed(saved: Mapping[str, _Saved]) -> set[str]:
            return {key for key, each in saved.items() if each.entry.meta["run"] in runs}

        every = self._readable(self._entries(graph_checkpoints_of(None)))
        for thread in sorted({saved.thread for saved in every if saved.entry.meta["run"] in runs}):
            self._remove(thread, doomed)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads except the newest of each namespace ("keep_latest"), or all ("delete").

        Of a graph with delta channels, the earlier checkpoints stay from which the newest one's values are computed.
        """
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"prune has no strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._remove(thread, lambda saved: saved.keys() - _needed(saved))

    def _remove(
        self, thread: str, choose: Callable[[Mapping[str, _Saved]], set[str]], *, everything: bool = False
    ) -> None:
        """Remove the chosen checkpoints of a thread, their writes, and values that no other refers to, in one transaction."""
        while True:
            then = self.store.get(thread_stamp(thread))
            if everything:
                kinds = channels_of(thread), graph_checkpoints_of(thread), writes_of(graph_checkpoints_of(thread))
                gone = [key for prefix in kinds for key, _ in self.store.scan(prefix, most=0)]
            else:
                saved = {each.key: each for each in self._readable(self._entries(graph_checkpoints_of(thread)))}
                doomed = choose(saved)
                needed = {value for key in saved.keys() - doomed for value in saved[key].values.values()}
                gone = [*doomed, *({value for key in doomed for value in saved[key].values.values()} - needed)]
                gone += [write for key in doomed for write, _ in self.store.scan(writes_of(key), most=0)]
            if not gone or self.store.commit(
                put={GRAPHS: stamp(), **({} if everything else {thread_stamp(thread): stamp()})},
                delete=[*gone, thread_stamp(thread)] if everything else gone,
                expect={thread_stamp(thread): then},
            ):
                return

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another, with what was written since them. Existing ones there stay."""
        source, target = str(source_thread_id), str(target_thread_id)
        old, new = graph_checkpoints_of(source), graph_checkpoints_of(target)
        prefixes = {old: new, writes_of(old): writes_of(new), channels_of(source): channels_of(target)}
        while True:
            then, put = self.store.get(thread_stamp(source)), dict[str, Frames]()
            for before, after in prefixes.items():
                for key, data in self._entries(before):
                    entry = Decoded(data, key=key, secret=secret())
                    meta: dict[str, Any] = {**entry.meta, **({"thread": target} if "thread" in entry.meta else {})}
                    if "values" in meta:
                        values: dict[str, str] = meta["values"]
                        here = {name: value.removeprefix(channels_of(source)) for name, value in values.items()}
                        meta["values"] = {name: channels_of(target) + value for name, value in here.items()}
                    put |= self._entry(after + key.removeprefix(before), entry.load(), meta)
            if not put or self.store.commit(
                put={**put, thread_stamp(target): stamp()}, expect={thread_stamp(source): then}
            ):
                return

    def _entries(self, prefix: str) -> Iterator[tuple[str, Bytes]]:
        for key, data in self.store.scan(prefix):
            read = self.store.get(key) if data is None else data
            if read is not None:  # not removed since
                yield key, read

    # -- the same, awaited: in a thread, because a store may wait for a disk or network

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return await Blocking(self.get_tuple, config).later()

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)

        def following() -> CheckpointTuple | None:
            return next(found, None)

        while (each := await Blocking(following).later()) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        return await Blocking(self.put, config, checkpoint, metadata, new_versions).later()

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See `put_writes`."""
        await Blocking(self.put_writes, config, writes, task_id, task_path).later()

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await Blocking(self.delete_thread, thread_id).later()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`."""
        await Blocking(self.delete_for_runs, run_ids).later()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await Blocking(self.copy_thread, source_thread_id, target_thread_id).later()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await Blocking(lambda: self.prune(thread_ids, strategy=strategy)).later()


def _where(config: RunnableConfig) -> tuple[str, str]:
    """The thread and namespace that a config names."""
    return str(_named(config)["thread_id"]), _namespace(config) or ""


def _namespace(config: RunnableConfig) -> str | None:
    return cast("str | None", _named(config).get("checkpoint_ns"))


def _named(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable", {})


def _needed(saved: Mapping[str, _Saved]) -> set[str]:
    """The newest checkpoint of each namespace, and those from which the values of its delta channels are computed.

    A delta channel is stored now and then; its value is that, and what was written to it since then.
    """
    needed: set[str] = set()
    for key in _newest(saved):
        needed.add(key)
        lacking = set(saved[key].entry.meta["deltas"]) - saved[key].values.keys()
        while lacking and (parent := saved[key].entry.meta["parent"]):
            key = graph_checkpoint_key(saved[key].thread, saved[key].namespace, parent)
            if key not in saved:
                break
            needed.add(key)
            lacking -= saved[key].values.keys()
    return needed


def _newest(saved: Mapping[str, _Saved]) -> builtins.list[str]:
    first: dict[str, str] = {}
    for key in sorted(saved):
        first.setdefault(saved[key].namespace, key)
    return builtins.list(first.values())
