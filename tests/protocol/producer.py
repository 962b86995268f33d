"""A publisher in memory: the broker fences it, and ends its transactions when somebody else takes its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.engine.offsets import KafkaUnavailable
from tests.protocol.turns import Died

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from spark.engine.ports import Headers
    from tests.protocol.broker import Broker


class Producer:
    """The one producer of a name, until another one opens it."""

    def __init__(self, broker: Broker, name: str, topic: str) -> None:
        self._broker, self._name, self._topic, self._epoch = broker, name, topic, 0
        self._insist(self._open)

    def __enter__(self) -> Producer:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Abort what is not committed; a process that died does not."""
        if kind is not Died and self._broker.names[self._name, self._topic].epoch == self._epoch:
            self._broker.aborted(self._name, self._topic)

    def send(
        self, key: bytes | None, value: bytes | None, timestamp: int | None, headers: dict[str, str], more: Headers = ()
    ) -> None:
        """Send a record."""
        assert not more, "no table here is published with headers"
        assert key is not None, "a table's"
        assert timestamp is None, "nothing has a time here"
        text = None if value is None else value.decode()
        self._broker.sent(self._name, self._topic, self._epoch, int(key), text, headers)

    def commit(self, version: int, position: str) -> None:
        """Commit what was sent, and how far that is."""
        assert version >= 0
        self._insist(lambda: self._broker.told(self._name, self._topic, self._epoch, position))
        self._insist(self._end)

    def newest(self, header: str, value: str) -> dict[int, dict[str, str]]:
        """The headers of the newest record of every partition that has one in which a header has this value."""
        return self._broker.newest(self._topic, header, value)

    def _open(self) -> None:
        self._epoch = self._broker.opened(self._name, self._topic)

    def _end(self) -> None:
        self._broker.decided(self._name, self._topic, self._epoch)
        self._broker.turns.cross("in the broker", engine=True)
        self._broker.complete(self._name, self._topic)

    def _insist(self, do: Callable[[], object]) -> None:
        """Ask the broker, which does what it was asked once also if it hears of it twice, or its answer is lost."""
        client = self._broker.turns.client
        do()
        if client is not None and client.struck("sent again"):
            do()
        if client is not None and client.dead:
            raise Died
        if client is not None and client.struck("answer lost"):
            raise KafkaUnavailable("no answer")
