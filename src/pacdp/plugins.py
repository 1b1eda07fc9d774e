"""Objects of the user's own, by ``module:name``.

Importing a module runs its code, so it happens only where the user names it: on the command line,
in an experiment file, or in Python. What comes from elsewhere, such as a plan, may only refer to
modules that are already imported.
"""

import importlib
import sys
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
    try:
        importlib.import_module(module)
    except Exception as error:  # a module can fail in any way while it is imported
        said = " ".join(str(error).split())
        raise InputError(f"{where}: cannot be imported ({said})") from error


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
