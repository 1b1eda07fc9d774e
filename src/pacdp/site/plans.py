"""Reading a plan at a site: allowed plug-ins only, and nothing that does not follow from it."""

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pacdp.errors import DataError, InputError
from pacdp.federation import Plan
from pacdp.federation.verification import verify_plan
from pacdp.federation.wire import plan_digest
from pacdp.plugins import is_path
from pacdp.site.settings import SiteSettings


def read_plan(path: Path, settings: SiteSettings) -> Plan:
    """Read and verify a plan; it may only name plug-ins that the settings allow.

    Only then is their code imported, and only if each file has the hash that the settings give.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no plan ({error})") from None
    for name in _named_plugins(content):
        module = name.partition(":")[0]
        if module not in settings.modules:
            raise InputError(
                f"{path}: names the plug-in {name}, which site.toml does not allow; add its module "
                "to modules with the SHA-256 of its file if you trust it"
            )
    for module in sorted(settings.modules):
        _import_allowed(module, settings.modules)
    plan = Plan.load(path)
    if not plan.algorithm.private:
        raise InputError(f"{path}: {plan.method} has no guarantee, which a site does not accept")
    verify_plan(plan)
    return plan


def read_accepted_plan(settings: SiteSettings) -> Plan:
    """Read the plan that the owner has accepted, and no other."""
    if settings.accepted is None:
        raise InputError(f"{settings.plan}: is not accepted yet; use pacdp site accept")
    plan = read_plan(settings.plan, settings)
    if plan_digest(plan) != settings.accepted:
        raise InputError(
            f"{settings.plan}: is not the plan that was accepted; use pacdp site accept again"
        )
    return plan


def find_client(plan: Plan, name: str) -> int:
    """Return the number of a client in the plan."""
    names = [client.name for client in plan.clients]
    if name not in names:
        raise InputError(f"client = {name!r}: is not in the plan")
    return names.index(name)


def _named_plugins(content: Any) -> Iterator[str]:
    """Yield whatever a plan names by ``module:name``, before any of it is looked up."""
    if not isinstance(content, Mapping):
        return
    model = content.get("model")
    named = [content.get("method"), model.get("name") if isinstance(model, Mapping) else None]
    for part in ("representation", "hot_start"):
        settings = content.get(part)
        named += list(settings.values()) if isinstance(settings, Mapping) else []
    yield from (name for name in named if isinstance(name, str) and is_path(name))


def _import_allowed(module: str, allowed: Mapping[str, str]) -> None:
    """Import a module if its file has the hash that is allowed."""
    where = f"modules.{module}"
    parent = module.rpartition(".")[0]
    if parent and parent not in allowed:
        # Python runs the code of a package before that of its modules.
        raise InputError(f"{where}: its package {parent} must be listed, too")
    if parent:
        _import_allowed(parent, allowed)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise InputError(f"{where}: is not a Python file that can be imported")
    if hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest() != allowed[module]:
        raise InputError(f"{where}: {spec.origin} has another SHA-256 than the one allowed")
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except Exception as error:  # a module can fail in any way while it is imported
        said = " ".join(str(error).split())
        raise InputError(f"{where}: cannot be imported ({said})") from error
