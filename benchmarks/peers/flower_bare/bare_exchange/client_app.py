"""Answers with what it was sent."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Send the content back."""
    return Message(message.content, reply_to=message)
