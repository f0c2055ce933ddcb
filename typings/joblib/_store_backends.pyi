from datetime import datetime, timedelta
from typing import Any, NamedTuple

class CacheItemInfo(NamedTuple):
    path: str
    size: int
    last_access: datetime

class StoreBackendBase: ...

class StoreBackendMixin:
    location: str
    verbose: int
    def enforce_store_limits(
        self, bytes_limit: int | str | None, items_limit: int | None = None, age_limit: timedelta | None = None
    ) -> None: ...
    def _get_items_to_delete(
        self, bytes_limit: int | str | None, items_limit: int | None = None, age_limit: timedelta | None = None
    ) -> list[CacheItemInfo]: ...
    def _concurrency_safe_write(self, to_write: Any, filename: str, write_func: Any) -> None: ...
