"""A site: the data holder's process, which owns records, ledger and key, and answers a server.

It does not depend on the transport that carries bytes between the server and its socket.
"""

from pacdp.site.server import serve
from pacdp.site.settings import SiteSettings
from pacdp.site.site import Site

__all__ = ["Site", "SiteSettings", "serve"]
