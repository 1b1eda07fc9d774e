"""Objects of the user's own, by ``module:name``.

Importing a module runs its code, so it happens only where the user names it: on the command line,
in an experiment file, or in Python. What comes from elsewhere, such as a plan, may only refer to
modules that are already imported.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pacdp.errors import InputError


def is_path(name: str) -> bool:
    """Whether a name is a path to an object rather than the name of a registered one.

    >>> is_path("my_package.methods:BySize"), is_path("fixed")
    (True, False)
    """
    return ":" in name


def import_object(option: str, path: str) -> Any:
    """Import the module of ``module:name`` and return the object; ``option`` is for the message.

    >>> import_object("method", "math:tau")
    6.28...
    >>> import_object("method", "no_such_module:Method")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: method = 'no_such_module:Method': cannot be imported (No module ...
    """
    import_module(f"{option} = {path!r}", path.partition(":")[0])
    return find_object(option, path)


def import_module(where: str, module: str) -> None:
    """Import a module of the user's own; one in the working directory is found, too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    _import(where, module)


def find_object(option: str, path: str) -> Any:
    """Return the object at ``module:name`` if its module is imported already, and refuse otherwise.

    >>> find_object("method", "antigravity:fly")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: method = 'antigravity:fly': its module is not imported; ...
    """
    module, _, name = path.partition(":")
    if module not in sys.modules:
        raise InputError(
            f"{option} = {path!r}: its module is not imported; import it first, on the command "
            f"line with pacdp --import {module}"
        )
    if not hasattr(sys.modules[module], name):
        raise InputError(f"{option} = {path!r}: the module {module} has no {name!r}")
    return getattr(sys.modules[module], name)


def hash_module(module: str) -> str:
    """Return the SHA-256 of a module's file, in hexadecimal digits, without running any code.

    >>> len(hash_module("json.decoder"))
    64
    """
    spec = _find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise InputError(f"module {module}: is not a Python file that can be imported")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def import_pinned(modules: Mapping[str, str]) -> None:
    """Import modules whose files must have the given SHA-256; refuse all if one differs.

    >>> import_pinned({"json": hash_module("json"), "json.decoder": "0" * 64})
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: modules.json.decoder: its file has another SHA-256 than the one allowed
    """
    for module, digest in modules.items():
        parent = module.rpartition(".")[0]
        if parent and parent not in modules:
            # Python runs the code of a package before that of its modules.
            raise InputError(f"modules.{module}: its package {parent} must also be listed")
        if hash_module(module) != digest:
            raise InputError(f"modules.{module}: its file has another SHA-256 than the one allowed")
    # Imported only after all checks, because any of them may import the others.
    finder = _PinnedFinder(modules)
    sys.meta_path.insert(0, finder)
    try:
        for module in modules:
            _import(f"modules.{module}", module)
    finally:
        sys.meta_path.remove(finder)


class _PinnedFinder(MetaPathFinder):
    """Finds pinned modules, whose source runs only if it still has its hash."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a pinned module is loaded; None for any other."""
        if fullname not in self._modules:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _PinnedLoader(spec.loader, self._modules[fullname])
        return spec


class _PinnedLoader(SourceFileLoader):
    """Compiles exactly the bytes that were hashed.

    Python would prefer a cached compiled file, which may hold other code.
    """

    def __init__(self, original: SourceFileLoader, digest: str) -> None:
        super().__init__(original.name, original.path)
        self._digest = digest

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source."""
        source = self.get_data(self.path)
        if hashlib.sha256(source).hexdigest() != self._digest:
            raise InputError("its file has another SHA-256 than the one allowed")
        return self.source_to_code(source, self.path)


def _import(where: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # a module can fail in any way while it is imported
        said = " ".join(str(error).split())
        raise InputError(f"{where}: cannot be imported ({said})") from error


def _find_spec(module: str) -> ModuleSpec | None:
    """Find a module as Python would, but without importing the packages that it is in."""
    parent = module.rpartition(".")[0]
    try:
        if not parent:
            return importlib.util.find_spec(module)
        package = _find_spec(parent)
        locations = None if package is None else package.submodule_search_locations
        return None if locations is None else PathFinder.find_spec(module, locations)
    except (ImportError, ValueError):
        return None
