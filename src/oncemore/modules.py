"""The names of modules, and which modules belong to the user's project.

A file has one name here, however it was loaded: run as a script, with `python -m`, or imported. The identity of code and
the pickles in checkpoints depend on it; otherwise a script could not recall what it recorded when imported.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, resolve_name
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def loaded(name: str) -> Any:
    """The module if it is fully loaded; None if not, or if another thread is still loading it."""
    module = sys.modules.get(name)
    if module is None:
        return None
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def module_of(kind: type) -> str:
    """The name in a class's `__module__`; empty if that is not a string, or wrongly "types".

    Before Python 3.12, `dataclasses.make_dataclass` makes classes that claim to be from `types`.
    """
    name: Any = kind.__module__
    if name == "types" and kind.__qualname__ not in vars(types):
        return ""
    return name if isinstance(name, str) else ""


def of_class(kind: type, name: str) -> Any:
    """The raw attribute of a class or its bases; None if there is none.

    `getattr` would call descriptors and metaclasses, some of which have an answer to every name.
    """
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def once_per_type(function: Callable[[type], T]) -> Callable[[type], T]:
    """Cache a function of types."""
    known: dict[int, tuple[type, T]] = {}  # by id, because a metaclass may define equality

    def cached(kind: type) -> T:
        found = known.get(id(kind))
        if found is None:
            if len(known) > 4096:  # the program keeps making classes
                known.clear()
            found = known[id(kind)] = kind, function(kind)
        return found[1]

    return cached


def global_generators() -> dict[str, Any]:
    """The random generators behind the functions of `random` and `numpy.random`, by name.

    Their states are tracked separately. So an object that merely refers to one, such as a scipy distribution, does not
    change when numbers are drawn, and refers to the same generator when it is restored.
    """
    found: dict[str, Any] = {"random": random._inst}
    shared = getattr(loaded("numpy.random.mtrand"), "_rand", None)
    if shared is not None:
        found["numpy.random"], found["numpy.random bits"] = shared, shared._bit_generator
    return found


def global_generator(value: object) -> str | None:
    """The name of a global random generator; None for any other object."""
    return next((name for name, each in global_generators().items() if each is value), None)


@cache
def name_of_file(path: str) -> str:
    """The dotted name of a source file, including the packages (folders with `__init__.py`) that contain it."""
    folder, base = os.path.split(os.path.abspath(path))
    stem = os.path.splitext(base)[0]
    names = [] if stem == "__init__" else [stem]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        names.insert(0, package)
    return ".".join(names)


def canonical_name(module: str) -> str:
    """The name by which everything we store refers to `module`."""
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    path = getattr(main, "__file__", None)
    if path and _sent_from and not is_project_file(path):
        path = _sent_from[-1]
    return name_of_file(path) if path else "__main__"


_sent_from: list[str] = []


def came_from(space: Mapping[str, Any]) -> None:
    """Note that a script's step, with these globals, was sent to this process: in a worker, `__main__` means that script."""
    path = space.get("__file__")
    if space.get("__name__") == "__main__" and isinstance(path, str) and path not in _sent_from:
        _sent_from.append(path)


def script_folder() -> str | None:
    """The folder of the running script; in a worker without one, that of the script which started it or sent it steps.

    For a module of a package (`python -m pkg`), the folder that the package is in. None in notebooks and interactive sessions,
    and if the script is an installed program such as pytest.
    """
    main = sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    for path in (getattr(main, "__file__", None), _script_of_parent(), *reversed(_sent_from)):
        if path is not None and not hasattr(sys, "frozen") and _is_script(path):
            folder = os.path.dirname(os.path.realpath(path))
            while os.path.isfile(os.path.join(folder, "__init__.py")):
                folder = os.path.dirname(folder)
            return folder
    return None


def _script_of_parent() -> str | None:
    """In a process that multiprocessing or joblib has started, the script that did so: it passes on its `sys.argv`."""
    multiprocessing = loaded("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return None
    path = os.path.join(multiprocessing.process.ORIGINAL_DIR or "", *sys.argv[:1])
    return path if os.path.isfile(path) else None


@cache
def _is_script(path: str) -> bool:
    """Whether the program is the user's own, not one that an installation has put among its programs."""
    programs = [os.path.dirname(sys.executable), *(os.path.join(p, "bin") for p in (sys.prefix, sys.base_prefix))]
    programs.append(os.path.expanduser(os.path.join("~", ".local", "bin")))
    return is_project_file(path) and os.path.dirname(os.path.abspath(path)) not in programs


def name_of_namespace(space: Mapping[str, Any]) -> str:
    """The canonical name of the module with these globals, even if they were sent to this process without their module."""
    path = space.get("__file__")
    if isinstance(path, str) and is_project_file(path):
        return name_of_file(path)
    return str(space.get("__name__", ""))


def project_folder(space: Mapping[str, Any]) -> str | None:
    """The folder that moves as a whole when the project moves: the one its imports start from, or the parent of `src`."""
    path = space.get("__file__")
    if not isinstance(path, str):
        return None
    folder = os.path.dirname(os.path.abspath(path))
    for _ in range(name_of_file(path).count(".") + (os.path.basename(path) == "__init__.py")):
        folder = os.path.dirname(folder)
    return os.path.dirname(folder) if os.path.basename(folder) == "src" else folder


def package_of(space: Mapping[str, Any]) -> str:
    """The package from which relative imports in a namespace start; empty if there is none."""
    return str(space.get("__package__") or getattr(space.get("__spec__"), "parent", None) or "")


def absolute_name(module: str, level: int, package: str) -> str | None:
    """The full name in `from ..module import x`, with `level` dots; None if that leads out of the package."""
    try:
        return resolve_name("." * level + module, package)
    except ImportError:
        return None


def find_module(name: str) -> ModuleType:
    """The module with a canonical name, imported if necessary. The running script is found by its own name."""
    for alias in ("__main__", "__mp_main__"):
        if alias in sys.modules and canonical_name(alias) == name:
            return sys.modules[alias]
    __import__(name)
    return sys.modules[name]


# -- scripts that are imported only because a value needs their classes

_for_classes: ContextVar[bool] = ContextVar("oncemore_for_classes", default=False)
_importing = threading.RLock()
ended_early: set[str] = set()  # the scripts whose import has ended where they would have opened a run


class RunOpened(BaseException):
    """Ends the import of a script that would open a run. Not an `Exception`, so that the script does not handle it."""


def import_for_classes(name: str) -> None:
    """Import a script, because a value needs its classes. Reading must not run it: the import ends where it opens a run.

    What it has defined until then can be used. A module that does not exist is left to the caller.
    """
    with _importing:
        if name in sys.modules:
            return
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return
        if spec is None or spec.loader is None:
            return
        module = sys.modules[name] = module_from_spec(spec)
        token = _for_classes.set(True)
        try:
            spec.loader.exec_module(module)
        except RunOpened:
            ended_early.add(name)
        except SystemExit:
            pass  # the script has come to its end
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _for_classes.reset(token)


def about_to_open_run() -> None:
    """End the import of a script that is only imported for its classes. For all others, nothing happens."""
    if _for_classes.get():
        raise RunOpened


@cache
def _foreign_folders() -> tuple[str, ...]:
    """The folders of the standard library and of oncemore. (Importing `sysconfig` would take a millisecond.)"""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = {os.path.join(prefix, sys.platlibdir, name) for prefix in (sys.exec_prefix, sys.base_exec_prefix)}
    folders |= {os.path.dirname(os.path.abspath(path)) for path in (os.__file__, __file__)}
    real = {os.path.realpath(p) for p in folders}
    return tuple(os.path.join(p, "") for p in folders | real)


@cache
def is_project_file(path: str) -> bool:
    """Whether a source file is the user's own: not the standard library, an installed distribution, or oncemore."""
    if path.startswith("<frozen"):
        return False
    if path.startswith("<"):  # stdin, exec, a notebook cell
        return True
    full = os.path.abspath(path)
    if f"{os.sep}site-packages{os.sep}" in full or f"{os.sep}dist-packages{os.sep}" in full:
        return False
    return not full.startswith(_foreign_folders())


def is_project_module(name: object) -> bool:
    """Whether the module is the user's own code.

    The script always is, because a worker has another `__main__`; and so is anything that is not a string, because a
    class may have anything as its `__module__`.
    """
    if not isinstance(name, str) or name in ("__main__", "__mp_main__"):
        return True
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path:
        return is_project_file(path)
    if name in sys.builtin_module_names:
        return False
    folders = getattr(module, "__path__", None)
    if folders:  # a package without __init__.py
        return any(is_project_file(os.path.join(folder, "x.py")) for folder in folders)
    return module is None


def is_importable_project(name: str) -> bool:
    """Whether `import name` would load the user's own code. Only the packages that contain it are loaded to find out."""
    if name in sys.modules:
        return is_project_module(name)
    try:
        spec = find_spec(name)
    except Exception:  # a package that contains it raises; so will the import itself
        return False
    if spec is None:
        return False
    inside = [os.path.join(folder, "x.py") for folder in spec.submodule_search_locations or ()]
    files = [spec.origin] if spec.has_location else inside
    return any(file is not None and is_project_file(file) for file in files)


def load_project_module(name: str) -> ModuleType | None:
    """The user's own module with that name; None if there is none, or it fails to load."""
    try:
        return import_module(name) if is_importable_project(name) else None
    except Exception:  # the step's own import will raise it
        return None
