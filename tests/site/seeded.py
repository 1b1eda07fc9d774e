"""A site process with seeded noise, to compare with a simulation. It is in no installed package.

Whoever knows the seed can take such noise off again, so the installed site has no way to use it:
a client refuses it with a durable ledger. Here the ledger is wrapped to pass for one in memory.
Everything else is the installed site. Start it as ``python tests/site/seeded.py site.toml``.
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pacdp.federation import Client
from pacdp.federation.client import simulated_noise
from pacdp.site import Site, SiteSettings, serve


class Volatile:
    """A ledger that claims to be kept in memory."""

    durable = False

    def __init__(self, ledger):
        self._ledger = ledger

    def __getattr__(self, name):
        return getattr(self._ledger, name)


class SeededSite(Site):
    def _make_client(self, ledger, *, checked=True):
        return Client(
            *(self.number, self.plan, self._records),
            ledger=Volatile(ledger),
            noise=simulated_noise(self.plan.seed, self.number),
            local_model=self._local_model,
            checked=checked,
        )


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    with SeededSite(SiteSettings.load_toml(Path(sys.argv[-1]))) as site:
        ready = f"{site.settings.client}: answers with SEEDED noise, for tests only"
        serve(site, on_ready=lambda: print(ready, flush=True))  # noqa: T201


if __name__ == "__main__":
    main()
