"""A site under an operating-system user of its own, attacked by a process of another one.

That process is what a malicious app bundle would be: it runs as the user of the transport, which
may use the socket, and nothing else. The folders are laid out as the guide says.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.site.trial import make_trial

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None,
    reason="needs root and useradd, to create the users of a site and of a transport",
)

SITE, RELAY, STRANGER = "pacdp-test-site", "pacdp-test-relay", "pacdp-test-other"


# Imports what is needed, some of which only root may be able to read, and then becomes the user.
BECOME = """
import ctypes, json, os, signal, socket, sys, tempfile
from pathlib import Path
user, group = int(sys.argv.pop(1)), int(sys.argv.pop(1))
def become():
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)  # as visible in /proc as a program that the user has started
"""

SERVE = """
sys.path.insert(0, sys.argv[1])
from pacdp.site import Site, SiteSettings, serve
from tests.site.trial import make_trial
with tempfile.TemporaryDirectory() as name:
    # Everything that is loaded late is loaded now.
    trial = make_trial(Path(name))
    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        site.answer(b"")
        site.refusals.save()
become()
with Site(SiteSettings.load_toml(Path(sys.argv[2]))) as site:
    serve(site, on_ready=lambda: print("ready", flush=True))
"""


@dataclass
class User:
    number: int
    group: int

    def start(self, script, *arguments):
        """Start a script as this user, which calls become()."""
        command = [sys.executable, "-c", BECOME + script, self.number, self.group, *arguments]
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@contextmanager
def user(name):
    subprocess.run(["useradd", "--system", "--no-create-home", "--user-group", name], check=True)
    try:
        numbers = [
            int(subprocess.run(["id", option, name], capture_output=True, check=True).stdout)
            for option in ("-u", "-g")
        ]
        yield User(*numbers)
    finally:
        subprocess.run(["userdel", name], check=False)


@pytest.fixture(scope="module")
def users():
    with user(SITE) as site, user(RELAY) as relay, user(STRANGER) as stranger:
        yield {"site": site, "relay": relay, "stranger": stranger}


@pytest.fixture
def served(users):
    """A running site: its trial and its process."""
    site, relay = users["site"], users["relay"]
    # Not in pytest's own folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        outer.chmod(0o755)
        (folder := outer / "site").mkdir(mode=0o700)
        (meeting := outer / "run").mkdir()
        trial = make_trial(folder, socket=str(meeting / "site.sock"), peers=[relay.number])
        for path in (folder, *folder.rglob("*")):
            os.chown(path, site.number, site.group)
        # The transport's group may enter this folder, and the socket gets that group.
        os.chown(meeting, site.number, relay.group)
        meeting.chmod(0o2710)
        with site.start(SERVE, Path(__file__).parents[2], trial.toml) as process:
            try:
                assert process.stdout.readline(), process.stderr.read()
                yield trial, process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


ATTACK = """
become()
folder, pid, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
done = []
def attempt(name, action):
    try:
        action()
        done.append(name)
    except OSError:
        pass
files = sys.argv[4:]
for name in files:
    attempt(f"read {name}", lambda: open(name, "rb").read(1))
    attempt(f"write {name}", lambda: open(name, "ab"))
    attempt(f"delete {name}", lambda: os.unlink(name))
    attempt(f"mode of {name}", lambda: os.chmod(name, 0o777))
    attempt(f"look at {name}", lambda: os.stat(name))
attempt("list the site's folder", lambda: os.listdir(folder))
attempt("add to the site's folder", lambda: open(folder + "/new", "wb"))
attempt("list the socket's folder", lambda: os.listdir(os.path.dirname(path)))
attempt("replace the socket", lambda: os.rename(path, path + ".old"))
attempt("delete the socket", lambda: os.unlink(path))
for part in ("mem", "environ", "maps", "fd", "cwd", "root"):
    target = f"/proc/{pid}/{part}"
    if part in ("cwd", "root"):
        attempt(part, lambda: os.readlink(target))
    elif part == "fd":
        attempt(part, lambda: os.listdir(target))
    else:
        attempt(part, lambda: open(target, "rb").read(1))
attempt("signal", lambda: os.kill(pid, 15))
def ask():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(bytes(4))
    if len(connection.recv(4)) != 4:
        raise OSError
attempt("ask", ask)
print(json.dumps(done))
"""


def attack(who, trial, process):
    settings = trial.settings
    files = [
        *(settings.data, settings.ledger, settings.key, settings.plan, settings.head, trial.toml),
        trial.folder / "other",
        trial.folder / ".a.ledger.lock",
        trial.folder / "a.ledger.refusals.json",
    ]
    with who.start(ATTACK, trial.folder, process.pid, settings.socket, *files) as attacker:
        out, error = attacker.communicate(timeout=120)
    assert attacker.returncode == 0, error
    return json.loads(out)


def test_the_transports_user_can_ask_and_nothing_else(users, served):
    trial, process = served
    assert attack(users["relay"], trial, process) == ["ask"]
    assert attack(users["stranger"], trial, process) == []
    # As root, to see that the attack would find what is there.
    everything = attack(User(0, 0), trial, process)
    assert len(everything) > 20
    assert process.wait(60) == 0  # because it was told to end


def test_a_user_of_the_group_that_is_not_named_is_not_answered(users, served):
    trial, process = served
    stranger = User(users["stranger"].number, users["relay"].group)
    assert attack(stranger, trial, process) == []
