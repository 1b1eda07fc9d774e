"""Sends 1 kB to every node, as often as told, and waits for all answers each time."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure every exchange, and write the seconds to the file of the run's configuration."""
    nodes = []
    while len(nodes) < int(context.run_config["nodes"]):
        nodes = list(grid.get_node_ids())
        time.sleep(0.1)
    seconds = []
    for number in range(int(context.run_config["rounds"])):
        start = time.monotonic()
        exchange(grid, nodes, number)
        seconds.append(time.monotonic() - start)
    Path(str(context.run_config["coordinator"])).write_text(json.dumps(seconds))


def exchange(grid: Grid, nodes: list[int], number: int) -> None:
    """Send to all nodes at once, and look for their answers five times a second."""
    record = ConfigRecord({"frame": bytes([number % 256]) * 1000})
    messages = [
        Message(RecordDict({"bare": record}), dst_node_id=node, message_type=MessageType.TRAIN)
        for node in nodes
    ]
    waiting = set(grid.push_messages(messages))
    while waiting:
        time.sleep(0.2)
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
