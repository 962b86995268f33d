"""The command that serves queries to programs in other languages."""

from __future__ import annotations

import socket
from contextlib import suppress

import click
from rich.markup import escape

from dagster_project.cli.arguments import json_option
from dagster_project.cli.output import print_result, progress
from dagster_project.settings import Settings
from spark.query.errors import PackageMissing

PORT = 8321
GRACE = 5  # seconds for the answers that are under way when the service is stopped


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen at this address; 0.0.0.0 is all of them.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="Listen at this port; 0 is any."
)
@json_option
def serve(host: str, port: int, as_json: bool) -> None:
    """Answer queries of the lake's tables over HTTP, until interrupted. Starts no other server, and writes nothing.

    Clients send the token of the setting serve_token, as in Authorization: Bearer TOKEN. The page /docs has every
    query. It speaks HTTP without TLS: beyond this machine, put a proxy with TLS before it.
    """
    settings = Settings.from_environment()
    token = settings.token()
    try:
        import uvicorn

        from dagster_project.service import Limits, service
    except ImportError as error:
        raise PackageMissing(f"`tidetable serve` needs {error.name}: pip install 'tidetable[serve]'") from error
    limits = Limits(settings.serve_rows, settings.serve_bytes, settings.serve_seconds)
    lakehouse = settings.tidetable().lakehouse
    app = service(lakehouse, token, limits)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {host}, port {port}: {error.strerror}") from error
    with listening:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        progress.print(escape(f"serves {settings.lake} at {address}; {address}/docs has the queries"), soft_wrap=True)
        print_result(as_json, {"lake": str(settings.lake), "address": address})
        config = uvicorn.Config(
            app,
            access_log=False,  # addresses have keys of rows
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises it, or not, after it has stopped
            uvicorn.Server(config).run(sockets=[listening])
        progress.print("stopped")
