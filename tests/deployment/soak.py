"""Long runs of a whole federation: many rounds, many sites, and processes that are killed.

``make soak`` runs the long form; the tests run a short form of each.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file

from pacdp.data import load_dataset, partition_records
from pacdp.deployment.layout import FederationFolder
from pacdp.deployment.processes import ProcessTable
from pacdp.federation import Plan, simulate

PACDP = [sys.executable, "-m", "pacdp"]
SEEDED = Path(__file__).with_name("seeded_up.py")
EXPERIMENT = ("--experiment", "heart", "--method", "fixed")


def create(folder, *options):
    """Make a federation on the Heart data."""
    command = [*PACDP, "federation", "init", folder, *EXPERIMENT, *map(str, options)]
    subprocess.run(command, check=True, capture_output=True)
    return FederationFolder(Path(folder))


def start(folder, *, transport, seeded):
    """Start it in the background, and return its supervisor's process."""
    path = str(folder.path)
    command = [*PACDP, "federation", "up", path, "--transport", transport]
    if seeded:
        command = [sys.executable, str(SEEDED), path, transport]
    log = (folder.logs / "supervisor.log").open("ab")
    with log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def count_rounds(folder):
    text = (folder.logs / "supervisor.log").read_text(errors="replace")
    rounds = re.findall(r"^round (\d+) of", text, re.MULTILINE)
    return int(rounds[-1]) if rounds else 0


def kill_one(folder, kind, random_numbers):
    """Kill a process of a kind, such as a site, with SIGKILL; whether there was one."""
    table = ProcessTable.load(folder.processes).processes
    names = [name for name in table if name.split()[0] == kind and table[name].is_alive()]
    if not names:
        return False
    os.kill(table[random_numbers.choice(names)].pid, signal.SIGKILL)
    return True


def disturb(folder, process, kinds, *, seed, patience):
    """Kill a process of each kind, one after the other, while the run goes on."""
    random_numbers, killed = random.Random(seed), []
    deadline = time.monotonic() + patience
    while count_rounds(folder) < 1:
        assert process.poll() is None, "the run has ended already"
        assert time.monotonic() < deadline, "the run does not start"
        time.sleep(0.2)
    for kind in kinds:
        time.sleep(random_numbers.uniform(0.5, 4.0))
        while process.poll() is None and time.monotonic() < deadline:
            if kill_one(folder, kind, random_numbers):
                killed.append(kind)
                break
            time.sleep(0.2)
    return killed


def verify(folder):
    """Ledgers, outboxes and the run agree, or this fails."""
    command = [*PACDP, "federation", "verify", str(folder.path), "--json"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr + process.stdout
    return json.loads(process.stdout)


def equals_simulation(folder):
    """Whether the model of a seeded federation is that of a simulation of its plan, bit for bit."""
    plan = Plan.load(folder.path / "plan.json")
    data = load_dataset("heart")
    names = [client.name for client in plan.clients]
    assert names == list(data.clients)
    result = simulate(plan, data, partition_records(data, "natural"), engine="serial")
    model = load_file(folder.path / "coordinator" / "results" / "model.safetensors")
    return all(torch.equal(model[name], value) for name, value in result.model.items())


def measure(folder):
    """Memory in MB and open files of each process of the federation."""
    table, sizes = ProcessTable.load(folder.processes), {}
    processes = dict(table.processes) | {"supervisor": table.supervisor}
    for name, process in processes.items():
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        except OSError:
            continue
        memory = re.search(r"VmRSS:\s+(\d+) kB", status)
        if memory:
            sizes[name] = (int(memory[1]) / 1024, files)
    return sizes


def watch(folder, process, *, every=10.0):
    """Measure until the run ends; return the samples of each kind of process."""
    samples, rounds = defaultdict(list), 0
    while process.poll() is None:
        time.sleep(1.0)
        if count_rounds(folder) >= rounds + every:
            rounds = count_rounds(folder)
            kinds = defaultdict(list)
            for name, size in measure(folder).items():
                kinds[name.split()[0]].append(size)
            for kind, sizes in kinds.items():
                memory, files = (max(values) for values in zip(*sizes, strict=True))
                samples[kind].append((rounds, memory, files))
            print(rounds, {kind: values[-1][1:] for kind, values in samples.items()}, flush=True)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--transport", default="flower")
    parser.add_argument("--port", type=int, default=21000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    given = ["--rounds", options.rounds, "--port", options.port, "--seed", options.seed]
    if options.sites != 4:
        given += ["--set", "data.partition=iid", "--set", f"data.clients={options.sites}"]
    seeded = options.kills > 0
    if seeded:
        given += ["--minimum", options.sites]
    folder = create(options.folder, *given)
    began = time.monotonic()
    process = start(folder, transport=options.transport, seeded=seeded)
    if options.kills:
        kinds = ["site", "coordinator", "supernode", "superlink", "superexec", "site"]
        if options.transport == "direct":
            kinds = ["site", "coordinator", "relay"]
        chosen = [kinds[number % len(kinds)] for number in range(options.kills)]
        killed = disturb(folder, process, chosen, seed=options.seed, patience=4 * 3600)
        assert process.wait() == 0
        print("killed", len(killed), {kind: killed.count(kind) for kind in kinds})
        print("equals the simulation:", equals_simulation(folder))
    else:
        samples = watch(folder, process)
        assert process.wait() == 0
        for kind, values in samples.items():
            third = max(1, len(values) // 3)
            early, late = values[:third], values[-third:]
            print(
                kind,
                "MB",
                *(round(statistics.fmean(v[1] for v in part), 1) for part in (early, late)),
                "files",
                *(max(v[2] for v in part) for part in (early, late)),
            )
    seconds = time.monotonic() - began
    print(f"{options.rounds} rounds in {seconds:.0f} s; {seconds / options.rounds:.2f} s a round")
    print("verified:", json.dumps(verify(folder))[:400])


if __name__ == "__main__":
    main()
