"""``pacdp federation up`` with sites whose noise is seeded, to compare with a simulation."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pacdp.deployment import running
from pacdp.deployment.layout import FederationFolder

SITE = Path(__file__).parents[1] / "site" / "seeded.py"


def seed_sites(make_roles):
    def make_seeded(folder, settings):
        return [
            replace(role, arguments=[sys.executable, str(SITE), role.arguments[-1]])
            if role.name.startswith("site ")
            else role
            for role in make_roles(folder, settings)
        ]

    return make_seeded


if __name__ == "__main__":
    running.list_pacdp_roles = seed_sites(running.list_pacdp_roles)
    folder = FederationFolder(Path(sys.argv[1]))
    sys.exit(running.run_federation(folder, transport=sys.argv[2], report=print))
