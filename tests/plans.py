"""Plans and proxy tasks from settings side by side, which tests vary one at a time."""

from pacdp.federation import Population, Recipe, make_plan
from pacdp.offline import ProxyTask


def plan_of(*, method, seed=0, provenance=None, tuning=None, again="", **parts):
    recipe = Recipe(**{name: parts.pop(name) for name in set(parts) & set(Recipe.model_fields)})
    given = {"provenance": provenance, "tuning": tuning, "again": again}
    return make_plan(recipe, method, Population(**parts), seed, **given)


def proxy_task_of(**parts):
    recipe = Recipe(**{name: parts.pop(name) for name in set(parts) & set(Recipe.model_fields)})
    return ProxyTask(recipe=recipe, **parts)
