"""The relay of a site: hands a broadcast to the site's process, and returns its answer.

The answer is empty if the site cannot be reached; the server learns nothing else about the failure.
"""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pacdp_relay.relay import exchange, locate_site

app = ClientApp()


@app.query()
def name_site(message: Message, context: Context) -> Message:
    """Answer with the name of this node's site."""
    return _reply(message, lambda: locate_site(context.node_config, context.run_config)[0].encode())


@app.train()
def relay_broadcast(message: Message, context: Context) -> Message:
    """Return the site's answer to the broadcast."""

    def ask() -> bytes:
        record = message.content["pacdp"]
        _, path = locate_site(context.node_config, context.run_config)
        return exchange(path, record["frame"], seconds=float(record["seconds"]))

    return _reply(message, ask)


def _reply(message: Message, ask: Callable[[], bytes]) -> Message:
    try:
        answer = ask()
    except Exception:
        # Flower would send the text of an exception to the server.
        answer = b""
    return Message(RecordDict({"pacdp": ConfigRecord({"answer": answer})}), reply_to=message)
