"""What oncemore uses of cloudpickle, which comes without types."""

import pickle
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any

class Pickler(pickle.Pickler):
    def __init__(
        self,
        file: IO[bytes],
        protocol: int | None = None,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None: ...
    def dump(self, obj: Any, /) -> None: ...
    def reducer_override(self, obj: Any, /) -> Any: ...

CloudPickler = Pickler

def dump(
    obj: Any,
    file: IO[bytes],
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None: ...
def dumps(
    obj: Any,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes: ...
def loads(data: bytes | bytearray | memoryview, /, *, buffers: Any = None) -> Any: ...
def register_pickle_by_value(module: ModuleType) -> None: ...
def unregister_pickle_by_value(module: ModuleType) -> None: ...
