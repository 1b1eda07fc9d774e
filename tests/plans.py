"""Plans and proxy tasks from settings side by side, which tests vary one at a time."""

from pacdp.federation import Population, Recipe, make_plan
from pacdp.methods import build_method
from pacdp.offline import ProxyTask


def plan_of(*, method, seed=0, provenance=None, tuning=None, again="", **parts):
    recipe = Recipe(**{name: parts.pop(name) for name in set(parts) & set(Recipe.model_fields)})
    given = {"provenance": provenance, "tuning": tuning, "again": again}
    return make_plan(recipe, method, Population(**parts), seed, **given)


def plan_for(data, partition, *, method="fixed", **parts):
    """Plan a run on these clients; ``method`` is a method or the name of one."""
    method = build_method(method) if isinstance(method, str) else method
    clients = {"sizes": partition.sizes_by_client, "shape": data.shape, "task": data.task}
    return plan_of(method=method, **clients | parts)


def proxy_task_of(**parts):
    recipe = Recipe(**{name: parts.pop(name) for name in set(parts) & set(Recipe.model_fields)})
    return ProxyTask(recipe=recipe, **parts)
