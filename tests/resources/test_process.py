"""A server of the lake, with a small one of Python's in its place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

import resources.process
from resources.process import Launch, Server, ServerFailed, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LISTEN = """
import signal, socket, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True: server.accept()
"""


def launch(server: Server, *words: str) -> Launch:
    """A server that accepts and says nothing."""
    port = free_port()
    return Launch(f"127.0.0.1:{port}", [sys.executable, "-c", LISTEN, str(port), server.mark, *words])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server("small", tmp_path / "a lake" / "_small")
    yield server
    server.stop()


def alive(server: Server) -> list[int]:
    return [pid for pid in psutil.pids() if server._is_ours(pid)]


def test_a_server_outlives_its_starter_and_is_found_by_another_process(server: Server) -> None:
    starter = f"""
from pathlib import Path
from resources.process import Server
from tests.resources.test_process import launch
server = Server({server.name!r}, Path({str(server.home)!r}))
print(server.start(lambda: launch(server)).pid)
"""
    pid = int(subprocess.check_output([sys.executable, "-c", starter]))
    running = server.running()
    assert running is not None
    assert running.pid == pid
    assert answers(running.address)


def test_starting_it_again_changes_nothing(server: Server) -> None:
    assert server.start(lambda: launch(server)) == server.start(lambda: launch(server))


def test_starters_at_the_same_time_start_one(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        started = set(pool.map(lambda _: server.start(lambda: launch(server)), range(8)))
    assert len(started) == 1
    assert alive(server) == [started.pop().pid]


def test_a_killed_server_is_not_running_and_is_started_anew(server: Server) -> None:
    first = server.start(lambda: launch(server))
    os.kill(first.pid, signal.SIGKILL)
    assert server._have_ended([first.pid])
    assert server.running() is None
    assert server.start(lambda: launch(server)).pid != first.pid


def test_a_silent_server_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server.start(lambda: launch(server))
    record = server.home / "server.json"
    record.write_text(json.dumps({"pid": first.pid, "address": f"127.0.0.1:{free_port()}"}))
    monkeypatch.setattr(resources.process, "START", 1.0)
    second = server.start(lambda: launch(server))
    assert alive(server) == [second.pid]
    assert second.pid != first.pid


def test_a_server_whose_record_was_deleted_with_its_lake_is_replaced_not_doubled(server: Server) -> None:
    first = server.start(lambda: launch(server))
    (server.home / "server.json").unlink()
    second = server.start(lambda: launch(server))
    assert alive(server) == [second.pid]
    assert second.pid != first.pid


def test_another_process_with_the_recorded_id_is_left_alone(server: Server) -> None:
    server.home.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        (server.home / "server.json").write_text(json.dumps({"pid": stranger.pid, "address": "127.0.0.1:1"}))
        assert server.running() is None
        server.stop()
        assert stranger.poll() is None
        stranger.kill()


def test_the_server_of_a_lake_with_a_longer_name_is_left_alone(server: Server) -> None:
    other = Server("small", server.home.with_name("_small2"))
    running = other.start(lambda: launch(other))
    server.stop()
    try:
        assert other.running() == running
    finally:
        other.stop()


def test_a_server_that_does_not_go_is_killed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start(lambda: launch(server, "stubborn"))
    monkeypatch.setattr(resources.process, "STOP", 1.0)
    server.stop()
    assert alive(server) == []


def test_a_server_goes_when_asked_whatever_its_starter_ignores(server: Server) -> None:
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        running = server.start(lambda: launch(server))
    finally:
        signal.signal(signal.SIGTERM, ignored)
    os.kill(running.pid, signal.SIGTERM)
    assert server._have_ended([running.pid])


def test_stopping_what_does_not_run_does_nothing(server: Server) -> None:
    server.stop()
    assert server.running() is None


def test_a_server_that_dies_at_its_start_is_quoted(server: Server) -> None:
    last_words = "import sys; sys.exit('no room at the inn')"
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServerFailed, match=r"(?s)small ended while starting.*no room at the inn"):
        server.start(lambda: Launch(address, [sys.executable, "-c", last_words, server.mark]))


def test_a_place_that_is_just_being_left_is_waited_for(server: Server) -> None:
    """As that of a process that was killed: the kernel closes its socket after it took its command line."""
    found = launch(server)
    host, port = found.address.split(":")
    listening = socket.create_server((host, int(port)))
    leaving = threading.Timer(0.3, listening.close)
    leaving.start()
    assert server.start(lambda: found).address == found.address
    leaving.join()


def test_a_place_that_is_taken_is_named(server: Server, tmp_path: Path) -> None:
    other = Server("other", tmp_path / "_other")
    taken = other.start(lambda: launch(other)).address
    try:
        with pytest.raises(ServerFailed, match=f"another process listens at {taken}"):
            server.start(lambda: Launch(taken, [sys.executable, "-c", LISTEN, server.mark]))
    finally:
        other.stop()
