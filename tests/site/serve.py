"""A site process for tests: the installed site, which may kill itself at a chosen moment."""

import logging
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pacdp.errors import PacdpError
from pacdp.site import Site, SiteSettings, serve


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class MortalSite(Site):
    """Kills itself: after the debit, or after the reply is stored, with or without its head."""

    moment = ""

    def _choose_interval(self):
        # Whatever this machine takes, for tests that send many requests.
        return self.settings.interval or super()._choose_interval()

    def _open(self):
        super()._open()
        if self.moment == "unpublished":
            self._head_file.write = lambda head: die()

    def _encode(self, reply, broadcast, request):
        if self.moment == "debited":
            die()
        return super()._encode(reply, broadcast, request)

    def _answer(self, broadcast, asked):
        content = super()._answer(broadcast, asked)
        if self.moment == "stored":
            die()
        return content


def main():
    logging.basicConfig(level=logging.CRITICAL)
    MortalSite.moment = sys.argv[2] if len(sys.argv) > 2 else ""
    try:
        with MortalSite(SiteSettings.load_toml(Path(sys.argv[1]))) as site:
            serve(site, on_ready=lambda: print("ready", flush=True))  # noqa: T201
    except PacdpError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
