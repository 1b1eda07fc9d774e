"""The relay of the coordinator: a ServerApp that carries broadcasts and answers."""

import functools
import logging
import sys
import threading
import time
from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from pacdp_relay.relay import COORDINATOR_SECONDS, Relay, Request, exchange

# The largest clock difference between a node and this machine at which Flower accepts replies.
CLOCK_SKEW_SECONDS = 600.0

# No node answers faster than the first of these. The longer one takes, the less often it is polled.
FIRST_PAUSE, SHORTEST_PAUSE = 1.0, 0.25

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Relay until the coordinator reports the end of the run."""
    log = logging.getLogger("pacdp_relay")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler(sys.stdout))
    coordinator = functools.partial(
        exchange, str(context.run_config["coordinator"]), seconds=COORDINATOR_SECONDS
    )
    relay = Relay(GridNodes(grid), coordinator, patience=float(context.run_config["patience"]))
    if relay.run() == "failed":
        raise RuntimeError("the coordinator reported that the run failed")


class GridNodes:
    """The nodes of a Flower federation; each request is one message."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def list_online(self) -> Mapping[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def ask(self, node: int, request: Request, seconds: float, cancelled: threading.Event) -> bytes:
        kind = MessageType.QUERY if request.round is None else MessageType.TRAIN
        record = ConfigRecord({"frame": request.frame, "seconds": request.seconds})
        message = Message(
            RecordDict({"pacdp": record}),
            dst_node_id=node,
            message_type=kind,
            ttl=seconds + CLOCK_SKEW_SECONDS,
            group_id="" if request.round is None else str(request.round),
        )
        (identifier,) = tuple(self._grid.push_messages([message])) or (None,)
        start = time.monotonic()
        pause = FIRST_PAUSE
        # Replies are pulled one by one, because pulling blocks until a reply is complete.
        while identifier and not cancelled.wait(pause):
            for reply in self._grid.pull_messages([identifier]):
                # An error reply that SuperLink itself generates does not contain the node's ID.
                if reply.metadata.reply_to_message_id == identifier:
                    return b"" if reply.has_error() else _read_answer(reply)
            passed = time.monotonic() - start
            if passed > seconds:
                break
            pause = max(SHORTEST_PAUSE, passed / 40)
        return b""


def _read_answer(reply: Message) -> bytes:
    try:
        answer = reply.content["pacdp"]["answer"]
    except KeyError:
        return b""
    return answer if isinstance(answer, bytes) else b""
