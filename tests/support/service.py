"""The read service in this process, and a client of it that knows HTTP and JSON alone."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn

from dagster_project.service import Limits, service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark.engine.ports import Lakehouse

    Query = Mapping[str, object]

TOKEN = "planted-token-of-the-tests"
LIMITS = Limits(rows=10_000, bytes=10_000_000, seconds=30)


@dataclass(frozen=True)
class Client:
    """A program in another language: it knows the address, the token, and JSON."""

    port: int
    token: str | None = TOKEN

    def send(self, path: str, query: Query | None = None, body: object = None) -> tuple[int, Any]:
        """Return the status and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        address = path if not query else f"{path}?{urlencode(query, doseq=True)}"
        if body is None:
            connection.request("GET", address, headers=headers)
        else:
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", address, text, headers | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def get(self, path: str, query: Query | None = None, body: object = None) -> Any:
        """Return the answer to a query that succeeds."""
        status, answer = self.send(path, query, body)
        assert status == 200, answer
        return answer

    def all(self, path: str, field: str, query: Query | None = None, body: object = None) -> tuple[list[Any], int]:
        """Return the rows, or changes, of an answer and of those that continue it, and how many answers they were."""
        answer = self.get(path, query, body)
        found, count = answer[field], 1
        while answer["next"] is not None:
            answer = self.get(answer["next"], body=body)
            found, count = found + answer[field], count + 1
        return found, count


@contextmanager
def serving(lakehouse: Lakehouse, limits: Limits = LIMITS) -> Iterator[Client]:
    """A service of this process."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_024) as listening:
        config = uvicorn.Config(service(lakehouse, TOKEN, limits), log_level="critical", access_log=False)
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
