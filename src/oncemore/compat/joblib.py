"""`Memory` with the interface of `joblib.Memory`, and a store backend for `joblib.Memory` itself.

A cached function is a step with `share=True` whose results are in the store at the memory's location. Everything that holds
for `@memoized` functions holds for it, and all their verbs work on it.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, cast
from urllib.parse import unquote

import joblib
from joblib._store_backends import CacheItemInfo, StoreBackendBase, StoreBackendMixin
from joblib.memory import (
    AsyncNotMemorizedFunc,
    NotMemorizedFunc,
    NotMemorizedResult,
    expires_after,
    register_store_backend,
)

from ..call import Recorded, default_name
from ..codec import Decoded, encode
from ..codec.keyed import keyed
from ..errors import IntegrityError, NotRecorded, UsageError, warn
from ..history import memo
from ..keys import FILES_OF_JOBLIB, SHARED, joblib_key, quoted
from ..modules import canonical_name
from ..result import Result
from ..scope import StoreLike, shared_results
from ..session import Session
from ..settings import secret
from ..step import DEFAULTS, Step, _by_name, _OwnFunction
from ..stores import Bytes, Store, open_store

__all__ = ["MemorizedFunc", "MemorizedResult", "Memory", "OncemoreStoreBackend", "expires_after"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

Validation = Callable[[dict[str, Any]], object]


class Memory(joblib.Memory):
    """Caches the results of functions in a store: `memory = Memory("cache")`, then `@memory.cache`.

    `location` is a path, a URL or a `Store`; None caches nothing. Accepted so that programs need no change, without effect:
    `verbose`, `compress` (results are always compressed), `backend_options` and, with a warning, `mmap_mode`: a result is
    verified, which a mapped file could not be.

    >>> from oncemore.compat.joblib import Memory
    >>> memory = Memory("memory://of-joblib", verbose=0)
    >>> @memory.cache
    ... def double(x):
    ...     print("computing")
    ...     return 2 * x
    >>> double(4), double(4)
    computing
    (8, 8)
    """

    def __init__(
        self,
        location: StoreLike | None = None,
        backend: str = "local",
        mmap_mode: str | None = None,
        compress: object = False,
        verbose: int = 1,
        backend_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(None, backend, None, False, verbose, backend_options and dict(backend_options))
        if backend not in ("local", "oncemore"):
            raise UsageError(f"Memory has no backend {backend!r}; the URL in location= says what kind of store it is")
        _warn_mapped(mmap_mode)
        self.mmap_mode, self.compress, self.location = mmap_mode, compress, location
        self.store_backend = None if location is None else Results(open_store(location))

    def cache(
        self,
        func: Callable[..., Any] | None = None,
        ignore: Collection[str] | None = None,
        verbose: int | None = None,
        mmap_mode: str | None | bool = False,
        cache_validation_callback: Validation | None = None,
    ) -> Any:
        """Cache the results of a function; also as a decorator, with or without options. See `joblib.Memory.cache`."""
        if cache_validation_callback is not None and not callable(cache_validation_callback):
            raise UsageError(f"cache_validation_callback needs to be callable. Got {cache_validation_callback}.")
        if func is None:
            return functools.partial(
                self.cache,
                ignore=ignore,
                verbose=verbose,
                mmap_mode=mmap_mode,
                cache_validation_callback=cache_validation_callback,
            )
        _warn_mapped(mmap_mode or None)
        if self.store_backend is None:
            return (AsyncNotMemorizedFunc if inspect.iscoroutinefunction(func) else NotMemorizedFunc)(func)
        return MemorizedFunc(
            func.func if isinstance(func, MemorizedFunc) else func,
            self.store_backend.store,
            ignore=ignore,
            mmap_mode=cast("str | None", self.mmap_mode if mmap_mode is False else mmap_mode),
            verbose=self._verbose if verbose is None else verbose,
            cache_validation_callback=cache_validation_callback,
        )

    def clear(self, warn: bool = True) -> None:
        """Remove all memoized results from the store, whichever memory or `@memoized` function recorded them."""
        if self.store_backend is not None:
            self.store_backend.clear()

    def reduce_size(
        self,
        bytes_limit: int | str | None = None,
        items_limit: int | None = None,
        age_limit: timedelta | None = None,
    ) -> None:
        """Remove the oldest results, until these limits are met. A result is as old as its computation."""
        super().reduce_size(bytes_limit, items_limit, age_limit)


class MemorizedFunc(Step[P, R]):
    """A function whose results are recorded in a store. It is called, inspected and typed like the function itself."""

    def __init__(
        self,
        func: Callable[P, R],
        location: StoreLike,
        backend: str = "local",
        ignore: Collection[str] | None = None,
        mmap_mode: str | None = None,
        compress: object = False,
        verbose: int = 1,
        timestamp: float | None = None,
        cache_validation_callback: Validation | None = None,
        *,
        name: str | None = None,
    ) -> None:
        options: dict[str, Any] = {**DEFAULTS, "share": True, "ignore": _parameters(func, ignore or ())}
        options["name"] = name or _name(func)
        if cache_validation_callback is not None:
            options["validate"] = functools.partial(_valid, cache_validation_callback)
        super().__init__(func, options)
        self._self_store = open_store(location)
        self._self_given: dict[str, Any] = {
            "ignore": list(ignore or ()),
            "mmap_mode": mmap_mode,
            "verbose": verbose,
            "cache_validation_callback": cache_validation_callback,
            "name": options["name"],  # in a worker, the function may be from a `__main__` of another name
        }

    def _self_find_run(self) -> Session | None:
        run = shared_results(self._self_store)
        return None if run.disabled else run

    def __reduce_ex__(self, protocol: Any) -> Any:
        function: Any = self._self_function
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        own = _by_name(module, name) is self
        if own and module != "__main__":
            return _by_name, (module, name)
        return _restored, (_OwnFunction(function) if own else function, self._self_store, self._self_given)

    @property
    def func(self) -> Callable[P, R]:
        """The function itself."""
        return self._self_function

    @property
    def func_id(self) -> str:
        """The name under which its results are recorded."""
        return self.name

    @property
    def ignore(self) -> list[str]:
        """The parameters that don't count."""
        return cast("list[str]", self._self_given["ignore"])

    @property
    def mmap_mode(self) -> str | None:
        """As it was given; without effect."""
        return cast("str | None", self._self_given["mmap_mode"])

    @property
    def _verbose(self) -> int:
        return cast(int, self._self_given["verbose"])

    @property
    def store_backend(self) -> Results:
        """The results of all functions in the same store."""
        return Results(self._self_store)

    def check_call_in_cache(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call has a valid result."""
        return self._self_find_run() is not None and self.is_done(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function even if there is a result, and record the new one. Returns it with its metadata.

        For a coroutine function, that is to be awaited.
        """
        value: Any = self.refresh(*args, **kwargs)
        if not inspect.iscoroutinefunction(self._self_function):
            return value, self._self_metadata(args, kwargs)

        async def called() -> Any:
            return await value, self._self_metadata(args, kwargs)

        return called()

    def call_and_shelve(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return a small, picklable reference to the result of this call, which runs first unless there is one.

        For a coroutine function, that is to be awaited.
        """
        if not inspect.iscoroutinefunction(self._self_function):
            return self._self_shelved(None if self.check_call_in_cache(*args, **kwargs) else self(*args, **kwargs), args, kwargs)

        async def called() -> Any:
            value: Any = self(*args, **kwargs)
            return self._self_shelved(await value, args, kwargs)

        return called()

    def clear(self, warn: bool = True) -> None:
        """Remove all results of this function."""
        self.store_backend.clear(self.name)

    def _self_shelved(self, value: Any, args: Any, kwargs: Any) -> Any:
        """A reference to the result; to the value in memory if it could not be saved."""
        if self._self_find_run() is not None:
            definition, call = self._self_identify(args, kwargs)
            entry, _ = definition.find(call)
            if entry is not None:
                return MemorizedResult(self._self_store, (self.name, entry.key.rpartition("/")[2]))
        return NotMemorizedResult(value)

    def _self_metadata(self, args: Any, kwargs: Any) -> dict[str, Any]:
        if self._self_find_run() is None:
            return {}
        definition, call = self._self_identify(args, kwargs)
        entry, _ = definition.find(call)
        bound = dict(zip(definition.identity.names, call.arguments.bound))
        return {} if entry is None else _metadata(entry.seconds, entry.time, bound)

    def __repr__(self) -> str:
        return f"MemorizedFunc(func={self._self_function}, location={self._self_store.url})"

    __str__ = __repr__


class MemorizedResult:
    """A reference to the recorded result of a call; made by `call_and_shelve`. It can be pickled."""

    def __init__(self, location: StoreLike, call_id: tuple[str, str], **options: Any) -> None:
        self.store_backend = Results(open_store(location))
        self.func_id, self.args_id = call_id

    @property
    def func(self) -> str:
        """The name of the function."""
        return self.func_id

    @property
    def _key(self) -> str:
        return f"{SHARED}{quoted(self.func_id)}/{self.args_id}"

    def get(self) -> Any:
        """Read, verify and return the result; KeyError if it was removed."""
        try:
            return Result(self.func_id, shared_results(self.store_backend.store).store, self._key).get()
        except NotRecorded as error:
            raise KeyError(str(error)) from error

    def clear(self) -> None:
        """Remove the result. The next such call runs."""
        arguments, _, code = self.args_id.partition("@")[0].partition(".")
        shared = shared_results(self.store_backend.store).shared
        shared.forget(shared.node(self.func_id, arguments, code))

    def __repr__(self) -> str:
        return f'MemorizedResult(location="{self.store_backend.location}", func="{self.func}", args_id="{self.args_id}")'


class Results(StoreBackendMixin):
    """The memoized results in a store, in the words of joblib's store backends."""

    def __init__(self, store: Store) -> None:
        self.store, self.location = store, store.url

    def get_items(self) -> list[CacheItemInfo]:
        """All results: key, size, and when each was computed."""
        return [CacheItemInfo(c.key, c.bytes, c.recorded.astimezone().replace(tzinfo=None)) for c in self._calls()]

    def enforce_store_limits(
        self, bytes_limit: int | str | None, items_limit: int | None = None, age_limit: timedelta | None = None
    ) -> None:
        """See `Memory.reduce_size`."""
        doomed = {item.path for item in self._get_items_to_delete(bytes_limit, items_limit, age_limit)}
        memo.clear(self._keyed, [call for call in self._calls() if call.key in doomed])

    def clear(self, function: str | None = None) -> None:
        """Remove all results, or those of one function."""
        memo.clear(self._keyed, [call for call in self._calls() if function in (None, call.function)])

    def _calls(self) -> list[memo.MemoizedCall]:
        return memo.calls(self._keyed, None, None, None, None)

    @property
    def _keyed(self) -> Store:
        return shared_results(self.store).store


def _restored(function: Callable[..., Any], store: Store, given: dict[str, Any]) -> MemorizedFunc[..., Any]:
    return MemorizedFunc(function, store, **given)


def _name(function: Callable[..., Any]) -> str:
    """The name of a function with that of its module, as joblib tells functions apart."""
    module = canonical_name(getattr(function, "__module__", None) or "")
    return ".".join(filter(None, (module, default_name(function))))


def _parameters(function: Callable[..., Any], ignore: Collection[str]) -> list[str]:
    """The ignored parameters by name; joblib calls `*args` "*" and `**kwargs` "**"."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    known = inspect.signature(function).parameters.values() if {"*", "**"} & set(ignore) else ()
    names = {stars[each.kind]: each.name for each in known if each.kind in stars}
    return [names.get(name, name) for name in ignore]


def _valid(callback: Validation, recorded: Recorded) -> bool:
    return bool(callback(_metadata(recorded.seconds, recorded.time, recorded.arguments)))


def _metadata(seconds: float, recorded: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What joblib keeps with a result."""
    return {"duration": seconds, "time": recorded, "input_args": {name: repr(each) for name, each in arguments.items()}}


def _warn_mapped(mode: str | bool | None) -> None:
    if mode is not None:
        warn(
            f"mmap_mode={mode!r} has no effect: each result is read into memory of its own and verified there. "
            "Leave it out"
        )


# -- for joblib.Memory itself


class OncemoreStoreBackend(StoreBackendMixin, StoreBackendBase):
    """A store of oncemore behind `joblib.Memory(location, backend="oncemore")`.

    What joblib would write to files are signed, compressed entries, which are verified before joblib unpickles them.
    """

    location: str

    def configure(
        self, location: str, verbose: int = 0, backend_options: Mapping[str, Any] | None = None
    ) -> None:
        """Use the store at a path or URL."""
        given = backend_options or {}
        _warn_mapped(given.get("mmap_mode"))
        # joblib appends a folder, as if every location were a path.
        url = re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", location) is not None
        self.location = location.removesuffix(f"{os.sep}joblib") if url else os.path.abspath(location)
        self.verbose, self.compress, self.mmap_mode = verbose, False, None

    @property
    def _store(self) -> Store:
        return keyed(open_store(self.location), writing=True)

    def _key(self, location: str) -> str:
        return joblib_key(location.removeprefix(self.location).lstrip(os.sep).replace(os.sep, "/"))

    def _prefix(self, location: str) -> str:
        return FILES_OF_JOBLIB if location == self.location else f"{self._key(location)}/"

    def _open_item(self, location: str, mode: str) -> io.BytesIO:
        """A file that is written to the store as a whole when it is closed, or read as a whole."""
        if "w" in mode:
            return _Draft(lambda content: self._write(location, content))
        entry = self._entry(location)
        if entry is None:
            raise FileNotFoundError(f"{location} is not in the store")
        return io.BytesIO(entry.load())

    def _entry(self, location: str) -> Decoded | None:
        key = self._key(location)
        data = self._store.get(key)
        return None if data is None else Decoded(data, key=key, secret=secret())

    def _write(self, location: str, content: bytes) -> None:
        key = self._key(location)
        self._store.commit(put={key: encode(content, {}, key=key, secret=secret(), time=time.time()).frames})

    def _concurrency_safe_write(self, to_write: Any, filename: str, write_func: Callable[[Any, str], object]) -> None:
        """Write in place: nobody sees a half-written entry."""
        write_func(to_write, filename)

    def _item_exists(self, location: str) -> bool:
        if self._key(location) in self._store.get_many([self._key(location)], most=0):
            return True
        return next(self._store.scan(self._prefix(location), limit=1, most=0), None) is not None

    def _move_item(self, src: str, dst: str) -> None:
        entry, key = self._entry(src), self._key(dst)
        if entry is None:
            raise FileNotFoundError(f"{src} is not in the store")
        moved = encode(entry.load(), {}, key=key, secret=secret(), time=entry.time)
        self._store.commit(put={key: moved.frames}, delete=[self._key(src)])

    def create_location(self, location: str) -> None:
        """Nothing: there are no folders in a store."""

    def clear_location(self, location: str) -> None:
        """Remove a file, or all in a folder."""
        store = self._store
        store.commit(delete=[self._key(location), *(key for key, _ in store.scan(self._prefix(location), most=0))])

    def get_items(self) -> list[CacheItemInfo]:
        """The results: where each is, its size, and when it was written, since reads leave no trace."""
        sizes: dict[str, int] = {}
        written: dict[str, float] = {}
        for key, data in self._store.scan(FILES_OF_JOBLIB):
            folder = unquote(key.removeprefix(FILES_OF_JOBLIB).rpartition("/")[0])
            found = data if data is not None else self._store.get(key) or b""
            if re.fullmatch("[a-f0-9]{32}", folder.rpartition("/")[2]):
                sizes[folder] = sizes.get(folder, 0) + len(found)
                written[folder] = max(written.get(folder, 0.0), _time(key, found))
        return [
            CacheItemInfo(os.path.join(self.location, folder), size, datetime.fromtimestamp(written[folder]))
            for folder, size in sizes.items()
        ]


class _Draft(io.BytesIO):
    """A file in memory that is handed over when it is closed, unless writing it failed."""

    def __init__(self, save: Callable[[bytes], object]) -> None:
        super().__init__()
        self._save: Callable[[bytes], object] | None = save

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self._save = None
        self.close()

    def close(self) -> None:
        """Hand over what was written."""
        save, self._save = self._save, None
        if save is not None:
            save(self.getvalue())
        super().close()


def _time(key: str, data: Bytes) -> float:
    """When an entry was written; 1970 if it is damaged, so that it is the first to go."""
    try:
        return Decoded(data, key=key, secret=secret()).time
    except IntegrityError:
        return 0.0


register_store_backend("oncemore", OncemoreStoreBackend)
