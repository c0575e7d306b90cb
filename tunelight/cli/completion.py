"""completion: print the script that lets a shell complete `tunelight`."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as its own commands import it

from tunelight.cli import complete
from tunelight.cli.app import command
from tunelight.errors import SettingsError, unknown

_SHELLS: Final = ("bash", "zsh", "fish")


@command("completion bash")
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", autocompletion=complete.choices(*_SHELLS))],
) -> None:
    """Print the script that lets a shell complete commands, options, sweeps, trials, tags and files.

    bash: append it to ~/.bashrc. zsh: append it to ~/.zshrc, behind compinit. fish: write it to
    ~/.config/fish/completions/tunelight.fish. At each press of the Tab key, the tunelight on the PATH is asked.
    """
    if shell not in _SHELLS:
        raise SettingsError(unknown("There is no completion for the shell", shell, _SHELLS))
    typer.echo(get_completion_script(prog_name="tunelight", complete_var="_TUNELIGHT_COMPLETE", shell=shell))
