"""Reading a plan at a site: it may use allowed plug-ins only, and must be consistent."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pacdp.errors import DataError, InputError
from pacdp.federation import Plan
from pacdp.federation.verification import verify_plan
from pacdp.federation.wire import plan_digest
from pacdp.plugins import import_pinned, is_path
from pacdp.site.settings import SiteSettings


def read_plan(path: Path, settings: SiteSettings) -> Plan:
    """Read and verify a plan, which may only use plug-ins that the settings allow.

    Plug-ins are imported only after that check, and only if their files have the expected hashes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a plan ({error})") from None
    for name in find_plugin_names(content):
        module = name.partition(":")[0]
        if module not in settings.modules:
            raise InputError(
                f"{path}: uses the plug-in {name}, which site.toml does not allow; add its module "
                "to modules with the SHA-256 of its file if you trust it"
            )
    import_pinned(settings.modules)
    # What was read above: the file may be another by now, if others can write it.
    plan = Plan.load(path, content=content or {})
    if not plan.algorithm.private:
        raise InputError(
            f"{path}: {plan.method} has no privacy guarantee, so a site cannot accept it"
        )
    verify_plan(plan)
    return plan


def read_accepted_plan(settings: SiteSettings) -> Plan:
    """Read the plan, and refuse any other than the one that the owner accepted."""
    if settings.accepted is None:
        raise InputError(f"{settings.plan}: has not been accepted yet; use pacdp site accept")
    plan = read_plan(settings.plan, settings)
    if plan_digest(plan, settings.modules) != settings.accepted:
        raise InputError(
            f"{settings.plan}: the plan, its plug-ins or the version of pacdp changed since it was "
            "accepted; use pacdp site accept again"
        )
    return plan


def find_client(plan: Plan, name: str) -> int:
    """Return the number of a client in the plan."""
    names = [client.name for client in plan.clients]
    if name not in names:
        raise InputError(f"client = {name!r}: is not in the plan")
    return names.index(name)


def find_plugin_names(content: Any) -> Iterator[str]:
    """Yield every ``module:name`` in the JSON of a plan, without importing any of them."""
    if not isinstance(content, Mapping):
        return
    model = content.get("model")
    named = [content.get("method"), model.get("name") if isinstance(model, Mapping) else None]
    for part in ("representation", "hot_start"):
        settings = content.get(part)
        named += list(settings.values()) if isinstance(settings, Mapping) else []
    yield from (name for name in named if isinstance(name, str) and is_path(name))
