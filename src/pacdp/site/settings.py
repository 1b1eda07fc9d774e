"""``site.toml``: the data owner's settings, which no server can change."""

import re
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pacdp.config import Real, Settings, Whole
from pacdp.errors import InputError
from pacdp.keys import PublicKeys
from pacdp.storage import write_atomically

Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SiteSettings(Settings):
    """The settings of a site. Paths are relative to the folder of the file."""

    client: str = Field(min_length=1, description="Name of this client in the plan.")
    data: Path = Field(description="The client's own records: a .csv or .npz file.")
    ledger: Path = Field(description="The ledger, made by pacdp ledger create.")
    plan: Path = Field(description="The plan; pacdp site accept writes it here.")
    accepted: Hash | None = Field(
        None, description="SHA-256 of the plan that the owner accepted, by pacdp site accept."
    )
    coordinator: PublicKeys = Field(
        description="The coordinator's public key, in hexadecimal digits, or a list of several "
        "while it is being replaced."
    )
    key: Path = Field(description="The file with the site's private key.")
    socket: Path = Field(description="The Unix socket on which the site answers.")
    head: Path = Field(
        description="The file with the newest head of the ledger, on separate storage."
    )
    interval: Real | None = Field(
        None,
        gt=0,
        le=3600,
        description="Minimum response time in seconds; the site uses four times the measured time "
        "of an answer with synthetic records if that is longer.",
    )
    modules: dict[str, Hash] = Field(
        {}, description="Modules that the plan may use, each with the SHA-256 of its file."
    )
    peers: tuple[Whole, ...] = Field(
        (), description="IDs of the users that may use the socket, besides the site's own."
    )


def record_acceptance(path: Path, digest: str) -> None:
    """Write the hash of the accepted plan into the file, and leave the rest unchanged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "site.toml"
    >>> written = path.write_text("# ours\\nclient = 'north'\\n")
    >>> record_acceptance(path, "0" * 64)
    >>> path.read_text().splitlines()[1:]
    ['# ours', "client = 'north'"]
    """
    text = path.read_text(encoding="utf-8")
    line = f'accepted = "{digest}"'
    # Only keys before the first table are top-level.
    start = re.search(r"^\s*\[", text, re.MULTILINE)
    end = len(text) if start is None else start.start()
    top, count = re.subn(r"^[ \t]*accepted[ \t]*=.*$", line, text[:end], flags=re.MULTILINE)
    changed = top + text[end:] if count else f"{line}\n{text}"
    try:
        written = tomllib.loads(changed).get("accepted") == digest
    except tomllib.TOMLDecodeError:
        written = False
    if not written:
        raise InputError(f"{path}: cannot be edited automatically; add {line} to it yourself")
    write_atomically(path, changed, private=True)
