"""A site: the process of a data holder that owns records, ledger and key, and answers a server.

It knows nothing of the transport that carries bytes between the server and its socket.
"""

from pacdp.site.server import serve
from pacdp.site.settings import SiteSettings
from pacdp.site.site import Site

__all__ = ["Site", "SiteSettings", "serve"]
