"""``python -m benchmarks.flower_round``: a round through the relay against Flower's bare exchange.

Both run through the same SuperLink and the same four SuperNodes on this machine, with TLS and node
authentication, in turns. The variable PACDP_FLOWER_ENV names the environment of Flower.
"""

import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pacdp.flower.environment import ensure_environment
from tests.flower.loopback import Coordinator, Flower, SocketServer, wait_until

SITES = ["north", "east", "south", "west"]
# The first round of a run also fetches the app, and is not counted.
ROUNDS, TURNS, GOAL = 5, 3, 1.3
BARE = Path(__file__).parent / "peers" / "flower_bare"


def main() -> None:
    """Measure both in turns, and print medians and ratio."""
    bare: list[float] = []
    ours: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pacdp-")))
        for site in SITES:
            path = folder / f"{site}.sock"
            stack.enter_context(SocketServer(path, lambda message: message))
        flower = stack.enter_context(Flower(ensure_environment(), folder))
        flower.create_files()
        flower.start_superlink()
        flower.register(*SITES)
        flower.start_superexec()
        for site in SITES:
            flower.start_supernode(site, folder / f"{site}.sock")
        for turn in range(TURNS):
            bare += _measure_bare(flower, folder / f"seconds-{turn}.json")[1:]
            ours += _measure_relay(flower, folder / f"coordinator-{turn}.sock")[1:]
    ratio = statistics.median(ours) / statistics.median(bare)
    result = {
        "sites": len(SITES),
        "rounds": len(ours),
        "seconds_bare": round(statistics.median(bare), 2),
        "seconds_relay": round(statistics.median(ours), 2),
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "holds": ratio <= GOAL,
    }
    print(json.dumps(result, indent=2))
    print("bare ", [round(value, 2) for value in bare], file=sys.stderr)
    print("relay", [round(value, 2) for value in ours], file=sys.stderr)


def _measure_bare(flower: Flower, path: Path) -> list[float]:
    flower.start_run(path, BARE)
    wait_until(path.exists, 60 + 30 * ROUNDS)
    wait_until(lambda: path.read_text(), 5)
    return [float(value) for value in json.loads(path.read_text())]


def _measure_relay(flower: Flower, path: Path) -> list[float]:
    coordinator = Coordinator(path, SITES, ROUNDS)
    with coordinator.server:
        flower.start_run(path)
        wait_until(coordinator.ended.is_set, 60 + 30 * ROUNDS)
    return coordinator.durations()


if __name__ == "__main__":
    main()
