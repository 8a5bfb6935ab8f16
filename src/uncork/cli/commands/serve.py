"""`uncork serve`: web pages and a JSON API over a store, and the playground."""

from __future__ import annotations

import socket
import sys
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.help import RUN
from uncork.core.errors import UncorkError
from uncork.core.text import printable


def serve(
    store: options.StoreToRead = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. The default can be reached from this machine only.",
            metavar="ADDRESS",
            rich_help_panel=RUN,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on; 0: any free one.",
            metavar="PORT",
            rich_help_panel=RUN,
        ),
    ] = 8765,
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Listen on a --host that other machines can reach. There is no password: anyone "
            "who reaches it can read the whole store.",
            rich_help_panel=RUN,
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve a store as web pages and as JSON, with the playground.

    Nothing in the store can be changed from there.
    Example: uncork serve --store results.db
    """
    from uncork.web.guard import is_loopback

    try:
        import uvicorn

        from uncork.web.app import make_app
        from uncork.web.patience import Impatient
    except ImportError as error:
        raise UncorkError(
            f"uncork serve needs {error.name or 'fastapi'}: pip install 'uncork[web]'"
        ) from None
    from uncork.store import Store

    if not is_loopback(host) and not allow_remote:
        raise UncorkError(
            f"--host {host} may be reached by other machines, and there is no password: add "
            "--allow-remote if you want that"
        )
    opened = Store(options.chosen_store(store), create=False)
    try:
        listening = _listen(host, port)
    except UncorkError:
        opened.close()
        raise
    with listening:
        shown = f"[{host}]" if ":" in host else host
        if not quiet:
            at = f"http://{shown}:{listening.getsockname()[1]}/"
            sys.stdout.write(f"{printable(opened.name)} at {at}  (Ctrl-C ends it)\n")
            sys.stdout.flush()
        config = uvicorn.Config(
            make_app(opened, shown), log_level="error", access_log=False, server_header=False,
            timeout_graceful_shutdown=2, http=Impatient, ws="none",
        )  # fmt: skip
        server = uvicorn.Server(config)
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # uvicorn has shut down by then, and raises it once more
        finally:
            opened.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket, bound before anything is printed: a port in use is reported first."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UncorkError(f"--host {host}: {error.strerror or error}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UncorkError(
            f"port {port} of {host} cannot be listened on: {error.strerror or error} "
            "(choose another with --port; 0: any free one)"
        ) from None
    return listening
