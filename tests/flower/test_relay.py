"""The relay's own code, which needs no Flower: sockets, framing, and the loop."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from pacdp.flower.app.pacdp_relay import relay
from pacdp.flower.app.pacdp_relay.relay import Relay, exchange, locate_site, pack, unpack
from tests.flower.loopback import SocketServer


@pytest.fixture
def served(tmp_path):
    """Start servers of raw bytes: each connection is handed to a function."""
    listeners = []

    def serve(handle: Callable[[socket.socket], None]) -> str:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = str(tmp_path / f"{len(listeners)}.sock")
        listener.bind(path)
        listener.listen()
        listeners.append(listener)

        def accept() -> None:
            connection, _ = listener.accept()
            # The other side may hang up.
            with connection, suppress(OSError):
                connection.recv(4)
                handle(connection)

        threading.Thread(target=accept, daemon=True).start()
        return path

    yield serve
    for listener in listeners:
        listener.close()


def test_an_exchange_carries_any_bytes(tmp_path):
    with SocketServer(tmp_path / "a.sock", lambda message: message[::-1]) as server:
        for message in (b"", b"ab\0", bytes(3 * 2**20)):
            assert exchange(str(server.path), message, seconds=10) == message[::-1]


def test_an_answer_that_is_too_large_is_not_read(served):
    path = served(lambda connection: connection.sendall(struct.pack(">I", 1001)))
    with pytest.raises(OSError, match="1001 bytes is larger than 1000"):
        exchange(path, b"", seconds=10, limit=1000)


def test_an_answer_that_trickles_in_is_given_up_in_time(served):
    def trickle(connection):
        connection.sendall(struct.pack(">I", 1000))
        for _ in range(100):
            time.sleep(0.05)
            connection.sendall(b".")

    start = time.monotonic()
    with pytest.raises(OSError, match=r"timed out|Resource temporarily unavailable"):
        exchange(served(trickle), b"", seconds=0.3)
    assert time.monotonic() - start < 2


def test_an_answer_that_breaks_off_is_refused(served):
    path = served(lambda connection: connection.sendall(struct.pack(">I", 5) + b"abc"))
    with pytest.raises(ConnectionError):
        exchange(path, b"", seconds=5)


@pytest.mark.parametrize("message", [b"", b"\0\0\0", b"\0\0\0\5{}", b"\0\0\0\2[]", b"\0\0\0\1{"])
def test_a_damaged_message_of_the_coordinator_is_refused(message):
    with pytest.raises(ValueError, match="malformed"):
        unpack(message)


def test_a_node_knows_its_site():
    assert locate_site({"site": "a", "socket": "/a.sock"}, {"sites": "x"}) == ("a", "/a.sock")
    with pytest.raises(IndexError):
        locate_site({"partition-id": 2}, {"sites": "a,b", "folder": "/f"})


class FakeNodes:
    """Nodes that answer at once; what one of them does in a round can be replaced."""

    def __init__(self, *sites: str) -> None:
        self.sites = dict(enumerate(sites))
        self.marks = dict.fromkeys(self.sites, "first start")
        self.asked: list[tuple[str, int | None]] = []
        self.behaviour: dict[tuple[str, int | None], list[Callable[[threading.Event], bytes]]] = {}

    def list_online(self):
        return dict(self.marks)

    def ask(self, node, request, seconds, cancelled):
        name = self.sites[node]
        self.asked.append((name, request.round))
        for behave in self.behaviour.get((name, request.round), [])[:1]:
            self.behaviour[name, request.round].remove(behave)
            return behave(cancelled)
        return name.encode() if request.round is None else name.encode() + b" " + request.frame


class FakeCoordinator:
    """Opens round after round; each is over when all its sites have answered."""

    def __init__(self, *rounds: set[str], end: str = "ended") -> None:
        self.rounds, self.end = list(rounds), end
        self.answers: list[dict[str, bytes]] = [{} for _ in rounds]
        self.refuse: list[tuple[str, int]] = []
        self.unreachable = 0
        self.close_round_after: dict[int, float] = {}
        self.number, self._opened = 1, time.monotonic()

    def __call__(self, message: bytes) -> bytes:
        if self.unreachable:
            self.unreachable -= 1
            raise ConnectionRefusedError
        header, answer = unpack(message)
        if self.number <= len(self.rounds):
            self._take(header, answer)
        if self.number > len(self.rounds):
            return pack({"state": self.end})
        wanted = sorted(self.rounds[self.number - 1] - set(self.answers[self.number - 1]))
        reply = {"state": "open", "round": self.number, "sites": wanted, "seconds": 5.0}
        return pack(reply, b"" if header["round"] == self.number else b"%d" % self.number)

    def _take(self, header, answer):
        site, answers = header["site"], self.answers[self.number - 1]
        if header["round"] == self.number and site in self.rounds[self.number - 1]:
            if (site, self.number) in self.refuse:
                self.refuse.remove((site, self.number))
            else:
                answers[site] = answer
        late = time.monotonic() - self._opened > self.close_round_after.get(self.number, 1e9)
        if len(answers) == len(self.rounds[self.number - 1]) or late:
            self.number, self._opened = self.number + 1, time.monotonic()


def run(nodes, coordinator, **settings):
    settings = {"pause": 0.05, "longest_pause": 0.1, "tick": 0.01, "refresh": 0.02} | settings
    result = []
    thread = threading.Thread(
        target=lambda: result.append(Relay(nodes, coordinator, **settings).run()), daemon=True
    )
    thread.start()
    thread.join(20)
    assert result, "the relay did not end"
    return result[0]


def test_every_wanted_site_is_asked_once_and_no_other():
    nodes = FakeNodes("a", "b", "c")
    coordinator = FakeCoordinator({"a", "b"}, {"c"}, {"a", "c"})
    assert run(nodes, coordinator) == "ended"
    assert coordinator.answers == [
        {"a": b"a 1", "b": b"b 1"},
        {"c": b"c 2"},
        {"a": b"a 3", "c": b"c 3"},
    ]
    rounds = sorted(asked for asked in nodes.asked if asked[1] is not None)
    assert rounds == [("a", 1), ("a", 3), ("b", 1), ("c", 2), ("c", 3)]
    assert sorted(name for name, number in nodes.asked if number is None) == ["a", "b", "c"]


def test_a_run_that_the_coordinator_gives_up_ends_the_relay():
    assert run(FakeNodes("a"), FakeCoordinator(end="failed")) == "failed"


def fail(cancelled):
    raise RuntimeError("a node that Flower cannot reach")


@pytest.mark.parametrize("behave", [fail, lambda cancelled: b""])
@pytest.mark.parametrize("number", [None, 1])
def test_a_node_without_an_answer_is_asked_again(behave, number):
    nodes = FakeNodes("a", "b")
    nodes.behaviour["a", number] = [behave, behave]
    coordinator = FakeCoordinator({"a", "b"})
    assert run(nodes, coordinator) == "ended"
    assert nodes.asked.count(("a", number)) == 3
    assert coordinator.answers == [{"a": b"a 1", "b": b"b 1"}]


def test_an_answer_that_the_coordinator_does_not_take_is_asked_for_again_after_a_pause():
    nodes, coordinator = FakeNodes("a"), FakeCoordinator({"a"})
    coordinator.refuse = [("a", 1)] * 2
    start = time.monotonic()
    assert run(nodes, coordinator, pause=0.2, longest_pause=1.0) == "ended"
    assert time.monotonic() - start > 0.6
    assert nodes.asked.count(("a", 1)) == 3


def hang(cancelled):
    cancelled.wait(20)
    return b"too late"


def test_a_node_that_hangs_delays_no_other_and_no_later_round():
    nodes, coordinator = FakeNodes("a", "b"), FakeCoordinator({"a", "b"}, {"a", "b"})
    nodes.behaviour["a", 1] = [hang]
    coordinator.close_round_after[1] = 0.3
    assert run(nodes, coordinator) == "ended"
    assert coordinator.answers == [{"b": b"b 1"}, {"a": b"a 2", "b": b"b 2"}]


def test_a_node_that_hangs_for_too_long_is_asked_again(monkeypatch):
    monkeypatch.setattr(relay, "MARGIN_SECONDS", -0.8)
    nodes, coordinator = FakeNodes("a"), FakeCoordinator({"a"})
    nodes.behaviour["a", 1] = [hang]
    assert run(nodes, coordinator, patience=1.0) == "ended"
    assert coordinator.answers == [{"a": b"a 1"}]


def test_a_restarted_node_is_asked_again():
    nodes, coordinator = FakeNodes("a"), FakeCoordinator({"a"})

    def restart(cancelled):
        nodes.marks[0] = "second start"
        return hang(cancelled)

    nodes.behaviour["a", 1] = [restart]
    assert run(nodes, coordinator) == "ended"
    assert nodes.asked.count(("a", 1)) == 2


def test_a_node_that_goes_and_comes_back_is_asked_when_it_is_back():
    nodes, coordinator = FakeNodes("a", "b"), FakeCoordinator({"a", "b"})
    mark = nodes.marks.pop(0)
    threading.Timer(0.3, lambda: nodes.marks.update({0: mark})).start()
    assert run(nodes, coordinator) == "ended"
    assert coordinator.answers == [{"a": b"a 1", "b": b"b 1"}]


def test_no_answer_is_lost_while_the_coordinator_is_restarted():
    nodes, coordinator = FakeNodes("a"), FakeCoordinator({"a"}, {"a"})

    def stop_coordinator(cancelled):
        coordinator.unreachable = 30
        return b"answer"

    nodes.behaviour["a", 1] = [stop_coordinator]
    assert run(nodes, coordinator) == "ended"
    assert coordinator.answers == [{"a": b"answer"}, {"a": b"a 2"}]
    assert nodes.asked.count(("a", 1)) == 1


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\2{}", pack({"state": "open"})])
def test_a_coordinator_that_answers_nonsense_is_asked_again(answer):
    coordinator = FakeCoordinator({"a"})
    nonsense = [answer] * 3
    assert run(FakeNodes("a"), lambda m: nonsense.pop() if nonsense else coordinator(m)) == "ended"


def test_the_next_round_is_noticed_at_once():
    coordinator = FakeCoordinator({"a"}, {"a"})
    waiting = [True] * 5

    def call(message: bytes) -> bytes:
        if coordinator.answers[0] and waiting:
            waiting.pop()
            return pack({"state": "waiting"})
        return coordinator(message)

    start = time.monotonic()
    assert run(FakeNodes("a"), call, refresh=3.0) == "ended"
    assert time.monotonic() - start < 2


def test_two_nodes_that_claim_one_site_are_both_asked():
    nodes, coordinator = FakeNodes("a", "a"), FakeCoordinator({"a"})
    coordinator.refuse = [("a", 1)]
    assert run(nodes, coordinator, pause=20.0, longest_pause=20.0) == "ended"
    assert nodes.asked.count(("a", 1)) == 2


def test_a_node_may_fail_any_number_of_times():
    patient = Relay(FakeNodes(), lambda message: b"", longest_pause=15.0)
    for _ in range(2000):
        patient._back_off(1)
    assert patient._failures[1].resume <= time.monotonic() + 15.0


def test_errors_of_flower_are_survived_unless_they_stay():
    class Broken(FakeNodes):
        errors = 5

        def list_online(self):
            self.errors -= 1
            if self.errors >= 0:
                raise RuntimeError("no database")
            return super().list_online()

    assert run(Broken("a"), FakeCoordinator({"a"})) == "ended"
    nodes = Broken("a")
    nodes.errors = 100
    with pytest.raises(RuntimeError, match="no database"):
        Relay(nodes, FakeCoordinator({"a"}), tick=0.01, refresh=0.01).run()
