"""report: a sweep as a page, as figures, or as an Optuna study."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.inspect import load
from tunelight.cli.printing import print_either, print_json
from tunelight.errors import SettingsError, StorageError, refuse_unknown, unknown
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    from tunelight.extras.web.server import Serving


@command("report last --open      tunelight report last --figures history,importances --format png")
def report(
    sweep: options.Sweeps,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file. Default: report.html in the sweep's folder; of several sweeps, in the working directory. "
            "With --figures the folder, plots.",
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option("--figures", metavar="A,B,...", help="Write these figures instead, one file each; 'all' for all."),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="Of figures: html, json, or with kaleido png, svg or pdf.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            help="Write the trials as an Optuna study instead, for optuna-dashboard: a journal file, or an address as "
            "sqlite:///studies.db. An earlier study of the sweep there is replaced.",
        ),
    ] = None,
    open: options.Open = False,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Write a report of a sweep: one HTML file with all figures, a table of the trials and a section for each."""
    if study is not None and (figures is not None or out is not None or open):
        raise SettingsError("--study writes a study alone, to where it says: leave out --figures, --out and --open.")
    if format is not None and figures is None:
        raise SettingsError("--format is for figures. Give --figures all, or some of their names, too.")
    if len(sweep) > 1 and study is None:
        raise SettingsError("A report is of one sweep, and so are figures. Name one, or --study for all of them.")
    results = [load(name, storage) for name in sweep]
    if study is not None:
        for each in results:
            each.to_study(study)
        shown, count = masked(study), len(results)
        text = f"Wrote {count} {'study' if count == 1 else 'studies'} to {shown}"
        print_either({"study": shown, "sweeps": [each.name for each in results]}, text, as_json=json)
        return
    if figures is not None:
        paths = _write_figures(results[0], figures, out or Path("plots"), format or "html")
        print_either({"figures": paths}, "\n".join(f"Wrote {path}" for path in paths), as_json=json)
        return
    from tunelight import reporting

    path = reporting.report(results[0], out or results[0].folder / "report.html")
    print_either({"report": path}, f"Wrote {path}", as_json=json)
    if open:
        webbrowser.open(Path(path).absolute().as_uri())


def _write_figures(results: Any, names: str, out: Path, format: str) -> list[Path]:
    """Write figures of a sweep, one file each. Raises: StorageError; ReportError without kaleido."""
    from tunelight import reporting
    from tunelight.extras.figures import FIGURES

    chosen = list(FIGURES) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in FIGURES:
            raise SettingsError(unknown("There is no figure", name, [*FIGURES, "all"]))
    refuse_unknown("There is no format", [format], _FORMATS)
    paths = [out / f"{name}.{format}" for name in chosen]
    for name, path in zip(chosen, paths, strict=True):
        figure = FIGURES[name](results)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if format == "html":
                figure.write_html(path, include_plotlyjs=True)
            elif format == "json":
                figure.write_json(path)
            else:
                reporting.write_image(figure, path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}. Choose another --out.") from error
    return paths


# --- serve: sweeps in the browser -----------------------------------------------------------------

_OPENED_S: Final = 60.0
"""How long a browser may take to read the file that it is sent to."""


def _open(address: str) -> None:
    """Open a browser by a file, so that the token is in no list of processes; it may run in this terminal."""
    file, name = tempfile.mkstemp(prefix="tunelight-", suffix=".html")
    with os.fdopen(file, "w") as stream:
        stream.write(f'<meta http-equiv="refresh" content="0; url={address}">')
    webbrowser.open(Path(name).as_uri())
    time.sleep(_OPENED_S)
    Path(name).unlink(missing_ok=True)


@command("serve runs --read-only")
def serve(
    storage: Annotated[str, typer.Argument(help="The folder of sweeps, or its URL.")] = options.STORAGE,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on. 0.0.0.0 lets in everybody who reaches it and has the token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", help="Default: 8642, or a free one where that is taken.", min=1, max=65535)
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Only show: take no commands.")] = False,
    open: options.Open = False,
    json: options.Json = False,
) -> None:
    """Show sweeps in the browser while they run, and steer them, until Ctrl-C.

    The address that is printed holds a token, without which nothing is shown.
    """
    from tunelight.extras.web.server import serve as run

    def say(serving: Serving) -> None:
        if json:
            print_json({"storage": storage, "address": serving.address}, indent=None)
        else:
            typer.echo(f"Sweeps in {storage}: {serving.address}")
            typer.echo("Ctrl-C ends it.")
        if open:
            threading.Thread(target=_open, args=(serving.address,), daemon=True).start()

    run(storage, host=host, port=port, read_only=read_only, say=say)


_FORMATS = ("html", "json", "png", "svg", "pdf")
