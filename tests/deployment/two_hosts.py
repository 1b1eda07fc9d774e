"""Follows docs/federation-guide.md in two network namespaces in place of two machines.

``python -m tests.deployment.two_hosts`` as root, with Flower's environment in the variable
PACDP_FLOWER_ENV. The command lines, users, credentials and folders are those of the units; a unit
with PrivateNetwork gets a network of its own. Users are numbers, for which no account is made.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pacdp
from pacdp.data import load_dataset, partition_records
from pacdp.federation import Plan, Population, Privacy, Recipe, Training, make_plan
from pacdp.flower.environment import locate_environment
from pacdp.methods import build_method
from pacdp.privacy import SQLiteLedger

ADDRESSES = {"server": "10.213.77.1", "site": "10.213.77.2"}
PORT = 9092
GROUP = 52100
USERS = {
    name: 52101 + number
    for number, name in enumerate(
        ("pacdp-site", "pacdp-node", "pacdp-app", "pacdp-coordinator", "pacdp-superlink")
    )
}
ROUNDS = 3


def call(*arguments, **settings):
    """Run a command, and return what it prints."""
    words = list(map(str, arguments))
    process = subprocess.run(words, capture_output=True, text=True, timeout=300, **settings)
    if process.returncode:
        raise RuntimeError(
            f"{shlex.join(words)}: {process.stdout[-2000:]} {process.stderr[-2000:]}"
        )
    return process.stdout


@dataclass
class Host:
    """A machine: a network namespace, and a folder that stands for its root."""

    name: str
    root: Path
    programs: Path
    processes: dict = field(default_factory=dict)

    @property
    def namespace(self):
        return f"pacdp-{self.name}-{os.getpid()}"

    def path(self, absolute):
        return self.root / absolute.lstrip("/")

    def translate(self, text):
        """Return a text with the paths of this machine."""
        return re.sub(r"(?<![\w/])/(etc|var/lib|run|srv)/pacdp", rf"{self.root}/\1/pacdp", text)

    def install(self, source, target, user=None, group=GROUP):
        """Copy files into a folder that belongs to a user."""
        folder = self.path(target)
        folder.mkdir(parents=True, exist_ok=True)
        for file in source:
            shutil.copy(file, folder)
            (folder / file.name).chmod(0o600)
        if user is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, USERS[user], group)
        folder.chmod(0o700)
        return folder

    def start(self, unit):
        """Start a unit as systemd would, as far as possible without it."""
        settings = read_unit(self.translate(unit.read_text()))
        user = settings["User"][0]
        group = GROUP if settings.get("Group") == ["pacdp-relay"] else USERS[user]
        groups = str(GROUP) if "pacdp-relay" in settings.get("SupplementaryGroups", []) else ""
        variables = {"PATH": f"{self.programs}/flower/bin:/usr/bin:/bin", "LOGNAME": user}
        variables |= {"HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
        for line in settings.get("Environment", []):
            variables |= dict(part.split("=", 1) for part in shlex.split(line))
        for file in settings.get("EnvironmentFile", []):
            for line in Path(file).read_text().splitlines():
                name, _, value = line.partition("=")
                variables[name] = value.strip('"')
        for kind, place in (("StateDirectory", "var/lib"), ("RuntimeDirectory", "run")):
            for name in settings.get(kind, []):
                folder = self.root / place / name
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(int(settings[f"{kind}Mode"][0], 8))
                os.chown(folder, USERS[user], group)
        credentials = self.root / "run/credentials" / unit.stem
        credentials.mkdir(parents=True, exist_ok=True)
        for line in settings.get("LoadCredential", []):
            name, _, source = line.partition(":")
            shutil.copy(source, credentials / name)
            os.chown(credentials / name, USERS[user], group)
            (credentials / name).chmod(0o400)
        command = " ".join(settings["ExecStart"]).replace("%d", str(credentials))
        command = command.replace("/opt/", f"{self.programs}/")
        for name, value in variables.items():
            command = command.replace(f"${{{name}}}", value)
        network = ["ip", "netns", "exec", self.namespace]
        if settings.get("PrivateNetwork") == ["yes"]:
            network = ["unshare", "--net"]
        rights = ["setpriv", f"--reuid={USERS[user]}", f"--regid={group}", "--no-new-privs"]
        rights += [f"--groups={groups}"] if groups else ["--clear-groups"]
        with (self.root / f"{unit.stem}.log").open("ab") as log:
            self.processes[unit.stem] = subprocess.Popen(
                [*network, *rights, "--bounding-set=-all", *shlex.split(command)],
                env=variables,
                cwd=settings["WorkingDirectory"][0],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=int(settings["UMask"][0], 8),
            )

    def log(self, unit):
        return (self.root / f"{unit}.log").read_text(errors="replace")

    def can_read(self, user, path):
        """Whether a user of this machine can read a file."""
        rights = [f"--reuid={USERS[user]}", f"--regid={USERS[user]}", f"--groups={GROUP}"]
        process = subprocess.run(["setpriv", *rights, "cat", path], capture_output=True)
        return process.returncode == 0

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, 15)
        deadline = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def install_programs(folder):
    """Make /opt/pacdp and /opt/flower from the present environments, for all users.

    The interpreter of these environments may be one that other users cannot reach.
    """
    candidates = [Path(sys.executable).resolve(), f"/usr/bin/python3.{sys.version_info.minor}"]
    rights = ["setpriv", f"--reuid={USERS['pacdp-app']}", f"--regid={GROUP}", "--clear-groups"]
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    for python in map(str, candidates):
        test = subprocess.run([*rights, python, "-c", again], capture_output=True)
        if test.returncode == 0:
            break
    else:
        raise RuntimeError("no Python that other users can start")
    source = Path(pacdp.__file__).resolve().parents[1]
    for name, environment, first in (
        ("pacdp", Path(sys.prefix), [source]),
        ("flower", locate_environment(), []),
    ):
        call(python, "-m", "venv", "--without-pip", folder / name)
        (packages,) = (folder / name).glob("lib/python*/site-packages")
        (original,) = environment.glob("lib/python*/site-packages")
        lines = [str(path) for path in (*first, original)]
        (packages / "original.pth").write_text("\n".join(lines) + "\n")
        for script in (environment / "bin").iterdir():
            if script.name.startswith(("pacdp", "flwr", "flower")):
                _, _, rest = script.read_bytes().partition(b"\n")
                target = folder / name / "bin" / script.name
                target.write_bytes(f"#!{folder / name}/bin/python\n".encode() + rest)
                target.chmod(0o755)


def read_unit(text):
    """Return the settings of a unit, each with all its values."""
    settings = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    return settings


def connect(hosts):
    """Join the two machines by a cable."""
    ends = {name: f"pd{name[:2]}{os.getpid()}"[:15] for name in hosts}
    for host in hosts.values():
        call("ip", "netns", "add", host.namespace)
        call("ip", "-n", host.namespace, "link", "set", "lo", "up")
    call("ip", "link", "add", ends["server"], "type", "veth", "peer", "name", ends["site"])
    for name, host in hosts.items():
        call("ip", "link", "set", ends[name], "netns", host.namespace)
        address = f"{ADDRESSES[name]}/24"
        call("ip", "-n", host.namespace, "address", "add", address, "dev", ends[name])
        call("ip", "-n", host.namespace, "link", "set", ends[name], "up")


def wait_until(condition, what, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: took too long")
        time.sleep(0.2)


def run_guide(base, report):
    """Go through the guide, step by step."""
    base.chmod(0o755)
    report("1. both install the programs")
    install_programs(base / "opt")
    hosts = {}
    for name in ADDRESSES:
        hosts[name] = Host(name, base / name, base / "opt")
        hosts[name].root.mkdir()
    server, site = hosts["server"], hosts["site"]
    try:
        connect(hosts)
        return follow_guide(base, server, site, report)
    finally:
        for host in hosts.values():
            host.end()
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)


def follow_guide(base, server, site, report):
    program = base / "opt/pacdp/bin/pacdp"
    report("2. Ada makes the coordinator's key")
    public = call(program, "site", "key", base / "coordinator.key").strip()
    report("3. Ben makes his keys")
    address = f"{ADDRESSES['server']}:{PORT}"
    options = ("--site", "north", "--server", address, "--coordinator", public)
    site_key = call(program, "federation", "node", base / "b", *options).split()[2]
    report("4. Ada makes the plan and her settings")
    data = load_dataset("heart")
    records = partition_records(data, "natural").client_records(data)[1]
    training = Training(rounds=ROUNDS, local_epochs=1, upload="coarse")
    population = Population(sizes={"north": len(records)}, shape=data.shape, task=data.task)
    recipe = Recipe(training=training, privacy=Privacy(epsilon=1.0))
    make_plan(recipe, build_method("fixed"), population).save(base / "plan.json")
    given = ("--plan", base / "plan.json", "--key", base / "coordinator.key")
    given += ("--site", f"north={site_key}", "--host", ADDRESSES["server"], "--port", PORT)
    call(program, "federation", "server", base / "a", *given)
    server.install((base / "a/superlink").iterdir(), "/etc/pacdp-superlink")
    own = server.install(
        (base / "a/coordinator").iterdir(), "/var/lib/pacdp-coordinator", "pacdp-coordinator"
    )
    prepare_settings(server, own / "coordinator.toml")
    server.start(base / "a/systemd/pacdp-superlink.service")
    probe = ("ip", "netns", "exec", site.namespace, sys.executable, "-c", PROBE, address)
    wait_until(lambda: subprocess.run(probe).returncode == 0, "superlink")
    server.start(base / "a/systemd/pacdp-serverapp.service")
    server.start(base / "a/systemd/pacdp-coordinator.service")
    report("5. Ben accepts the plan, and starts")
    np.savez(base / "records.npz", features=records.features, labels=records.labels)
    site.install([], "/srv/pacdp-head", "pacdp-site")
    files = [*(base / "b/site").iterdir(), base / "records.npz"]
    own = site.install(files, "/var/lib/pacdp-site", "pacdp-site")
    site.install([*(base / "b/node").iterdir(), base / "a/superlink/ca.crt"], "/etc/pacdp-node")
    prepare_settings(site, own / "site.toml")
    text = (own / "site.toml").read_text().replace("records.csv", "records.npz")
    (own / "site.toml").write_text(text)
    shutil.copy(base / "plan.json", base / "sent.json")
    (base / "sent.json").chmod(0o644)
    ledger = ("ledger", "create", "site.ledger", "--client", "north", "--epsilon", 1)
    for command in (ledger, ("site", "accept", base / "sent.json", "--yes")):
        rights = {"user": USERS["pacdp-site"], "group": GROUP, "extra_groups": [], "umask": 0o077}
        call(program, *command, cwd=own, **rights)
    for unit in ("pacdp-site", "pacdp-supernode"):
        site.start(base / f"b/systemd/{unit}.service")
    wait_until(lambda: site.processes["pacdp-supernode"].poll() is not None, "supernode")
    refused = re.search(r"Exit Code: (\d+)", site.log("pacdp-supernode"))
    assert refused is not None, site.log("pacdp-supernode")
    assert refused.group(1) == "305"
    report(f"   not registered: SuperNode ends with Flower's code {refused.group(1)}")
    report("6. Ada registers the node, and starts the run")
    home = base / "a/flwr"
    config = home / "config.toml"
    config.write_text(server.translate(config.read_text()))
    flwr = ("ip", "netns", "exec", server.namespace, base / "opt/flower/bin/flwr")
    variables = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "HOME": str(base)}
    variables |= {"PATH": f"{base}/opt/flower/bin:/usr/bin:/bin"}
    node = ("register", base / "b/node/node.key.pub", "federation", "--name", "north")
    call(*flwr, "supernode", *node, env=variables)
    site.start(base / "b/systemd/pacdp-supernode.service")
    site.start(base / "b/systemd/pacdp-clientapp.service")
    socket = server.path("/run/pacdp-coordinator/coordinator.sock")
    submit = ("run", base / "a/app", "federation", "--run-config", f"coordinator='{socket}'")
    call(*flwr, *submit, env=variables)
    coordinator = server.processes["pacdp-coordinator"]
    wait_until(lambda: coordinator.poll() is not None, "the run", 300)
    report(server.log("pacdp-coordinator"))
    assert coordinator.returncode == 0
    return check(server, site)


PROBE = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
try:
    socket.create_connection((host, int(port)), 2).close()
except OSError:
    sys.exit(1)
"""


def prepare_settings(host, path):
    text = host.translate(path.read_text())
    path.write_text(re.sub("peers = .*", f"peers = [{USERS['pacdp-app']}]", text))


def check(server, site):
    """Return what must be true afterwards, with what is."""
    folder = site.path("/var/lib/pacdp-site")
    secrets = [folder / "records.npz", folder / "site.ledger", folder / "site.key"]
    secrets += [folder / "plan.json", site.path("/etc/pacdp-node/node.key")]
    secrets += [site.path("/run/credentials/pacdp-supernode/node.key")]
    ledger = SQLiteLedger(folder / "site.ledger")
    plan = Plan.load(server.path("/var/lib/pacdp-coordinator/plan.json"))
    return {
        "results": server.path("/var/lib/pacdp-coordinator/results/result.json").is_file(),
        "rounds": len(ledger.rounds) == plan.rounds == ROUNDS,
        "within budget": ledger.filter.within_budget,
        "the app reads no secret": not any(site.can_read("pacdp-app", path) for path in secrets),
        "the node reads no record": not any(
            site.can_read("pacdp-node", path) for path in secrets[:4]
        ),
        "the site reads its own": site.can_read("pacdp-site", secrets[0]),
    }


def main():
    base = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    try:
        checks = run_guide(base, lambda line: sys.stdout.write(f"{line}\n"))
    except BaseException:
        sys.stdout.write(f"what was written is in {base}\n")
        raise
    for name, value in checks.items():
        sys.stdout.write(f"{name}: {value}\n")
    shutil.rmtree(base)
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
