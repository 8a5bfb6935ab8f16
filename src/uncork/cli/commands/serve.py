"""`uncork serve`: web pages and a JSON API over a store, and the playground; or pages as files."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from uncork.cli import options
from uncork.cli.help import OUTPUT, RUN
from uncork.core.errors import UncorkError
from uncork.core.text import printable

_MOST = 100_000  # label audits of one export


def serve(
    store: options.StoreToRead = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Serve nothing: write the pages into this folder, as files for any web space. It "
            "must be new, empty, or an earlier export, which is replaced.",
            metavar="FOLDER",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    audit: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="With --export: only this audit, by its number; again for more.",
            metavar="N",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="With --export: only audits with this in their name.",
            metavar="TEXT",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
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

    Nothing in the store can be changed from there. With --export the pages become files instead.
    Examples: uncork serve --store results.db; uncork serve --store results.db --export site
    """
    from uncork.web.guard import is_loopback

    if export is not None:
        _export(options.chosen_store(store), export, audit or [], name, quiet)
        return
    if audit or name is not None:
        raise UncorkError(f"{'--audit' if audit else '--name'} goes with --export FOLDER")

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


def _export(url: str, folder: str, numbers: list[int], name: str | None, quiet: bool) -> None:
    """Write the pages of the audits with these numbers and that name, or of all."""
    from uncork.store import Store
    from uncork.web.export.folder import check_folder
    from uncork.web.export.write import export_pages
    from uncork.web.label_sets.queries import label_audit_page

    check_folder(folder)
    with Store(url, create=False) as store:
        for number in numbers:
            store.audit(number)
        chosen = [
            audit for audit in store.audits(name=name) if not numbers or audit.id in numbers
        ]  # fmt: skip

        def tell(text: str) -> None:
            if not quiet and sys.stderr.isatty():
                sys.stderr.write(f"writing {printable(text)}\n")

        sets = [] if numbers else label_audit_page(store, name, _MOST, 0)[1]
        count = export_pages(store, chosen, folder, sets, tell)
    if not quiet:
        audits = len({audit.id for audit in chosen})
        what = "1 audit" if audits == 1 else f"{audits:,} audits"
        if sets:
            what += f" and {len(sets):,} label audit{'s' if len(sets) > 1 else ''}"
        start = printable(str(Path(folder) / "index.html"))
        sys.stdout.write(f"{what} in {count:,} files: open {start}\n")


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
