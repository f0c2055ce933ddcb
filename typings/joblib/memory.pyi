from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ._store_backends import StoreBackendBase

class Memory:
    _verbose: int
    mmap_mode: str | None
    compress: object
    location: object
    store_backend: Any
    def __init__(
        self,
        location: object = None,
        backend: str = "local",
        mmap_mode: str | None = None,
        compress: object = False,
        verbose: int = 1,
        backend_options: dict[str, Any] | None = None,
    ) -> None: ...
    def cache(
        self,
        func: Callable[..., Any] | None = None,
        ignore: Any = None,
        verbose: int | None = None,
        mmap_mode: str | bool | None = False,
        cache_validation_callback: Any = None,
    ) -> Any: ...
    def clear(self, warn: bool = True) -> None: ...
    def reduce_size(
        self,
        bytes_limit: int | str | None = None,
        items_limit: int | None = None,
        age_limit: timedelta | None = None,
    ) -> None: ...
    def eval(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...

class NotMemorizedFunc:
    def __init__(self, func: Callable[..., Any]) -> None: ...

class AsyncNotMemorizedFunc(NotMemorizedFunc): ...

class NotMemorizedResult:
    def __init__(self, value: object) -> None: ...

def expires_after(
    days: float = 0,
    seconds: float = 0,
    microseconds: float = 0,
    milliseconds: float = 0,
    minutes: float = 0,
    hours: float = 0,
    weeks: float = 0,
) -> Callable[[dict[str, Any]], bool]: ...
def register_store_backend(backend_name: str, backend: type[StoreBackendBase]) -> None: ...
