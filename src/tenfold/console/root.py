"""The tree of commands. Areas and other heavy commands are named here and imported only when one of them is called.

Typer takes its machinery from the package click or, in later versions, from a copy of its own. Only what both share is
used here, so that Tenfold installs beside packages that need the one or the other.
"""

from __future__ import annotations

import difflib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tenfold import __version__
from tenfold.areas import AREAS
from tenfold.console.terminal import is_styled, is_terminal

AREAS_PANEL = "Areas"
COMMANDS_PANEL = "For all areas"
PANEL_WIDTH = 72  # columns; in less, help in panels breaks words
SHARED = {  # command: (module of its app, what it does)
    "reproduce": ("tenfold.claims.cli", "Measure the papers' claims and write a report that says which hold."),
    "datasets": ("tenfold.datasets.cli", "List, fetch and find the real data that claims and examples use."),
    "areas": ("tenfold.console.listing", "List the areas: paper, what it does, claims, what is installed."),
    "doctor": ("tenfold.console.doctor", "Show versions, machine, threads, extras and the data cache; name problems."),
}
ROOT_OPTIONS = {"install_completion", "show_completion"}  # typer gives them to every application
# The one ancestor that all errors in the way a command is called share.
USAGE_ERROR: type = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class LazyCommand(TyperCommand):
    """A command's name and summary, which stand for the command until somebody calls it.

    Args:
        name: The word on the command line.
        summary: What it does, one line.
        panel: The section of the help in which it stands.
        load: Imports and returns the application.
    """

    def __init__(self, name: str, summary: str, panel: str, load: Callable[[], typer.Typer]) -> None:
        super().__init__(name, help=summary, rich_help_panel=panel, add_help_option=False)
        self.load = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which does everything from here on."""
        command = get_command(self.load())
        command.params = [option for option in command.params if option.name not in ROOT_OPTIONS]
        dress(command)
        if not args and getattr(command, "commands", None) and not getattr(command, "invoke_without_command", False):
            args = args if extra.get("resilient_parsing") else ["--help"]
        return command.make_context(info_name, args, parent=parent, **extra)


class Root(TyperGroup):
    """``tenfold`` itself: areas first, then the commands that work for all of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for area in AREAS:
            self.add_command(LazyCommand(area.name, area.summary, AREAS_PANEL, area.command))
        for name, (module, summary) in SHARED.items():
            self.add_command(LazyCommand(name, summary, COMMANDS_PANEL, application_of(module)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; an unknown one is answered with the names most like it."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.commands, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.commands)}"
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The two sections of commands in help without colours."""
        for panel in (AREAS_PANEL, COMMANDS_PANEL):
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (name, command.help or "")
                        for name, command in self.commands.items()
                        if isinstance(command, LazyCommand) and command.rich_help_panel == panel
                    ]
                )


def application_of(module: str) -> Callable[[], typer.Typer]:
    """A function that imports the module and returns its ``app``."""
    return lambda: importlib.import_module(module).app


def dress(command: Any) -> None:
    """Make help say what is written, brackets too: in panels at a terminal with room for them, in bare lines elsewhere.

    Args:
        command: A command or group; all commands below it are dressed, too.
    """
    styled = is_styled(sys.stdout) and shutil.get_terminal_size().columns >= PANEL_WIDTH
    command.rich_markup_mode = "rich" if styled else None
    if command.help and not command.short_help:  # lists show the whole first paragraph, not its first words and dots
        command.short_help = " ".join(command.help.split("\n\n")[0].split())
    if styled:
        from rich.markup import escape

        for described in (command, *command.params):
            for name in ("help", "short_help", "epilog"):
                text = getattr(described, name, None)
                if text:
                    setattr(described, name, escape(text))
    else:
        for parameter in command.params:
            parameter.get_help_record = _bare(parameter.get_help_record)
    for below in getattr(command, "commands", {}).values():
        dress(below)


def _bare(record: Callable[[Any], tuple[str, str] | None]) -> Callable[[Any], tuple[str, str] | None]:
    """A parameter's line of help without the strokes that typer writes before brackets, meant for rich, in bare help too."""

    def bare(context: Any) -> tuple[str, str] | None:
        line = record(context)
        return None if line is None else (line[0], line[1].replace("\\[", "["))

    return bare


def run(words: Sequence[str]) -> int:
    """Run the command that the words name.

    Args:
        words: What stands after ``tenfold`` on the command line.

    Returns:
        The exit code that the command asks for. Errors are raised.
    """
    command = get_command(app)
    dress(command)
    if os.environ.get("_TENFOLD_COMPLETE"):
        command.main(prog_name="tenfold")
    width = min(shutil.get_terminal_size().columns, 80) if is_terminal(sys.stdout) else None
    try:
        with command.make_context("tenfold", list(words) or ["--help"], terminal_width=width) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    return 0


def explain_usage(error: Exception) -> tuple[str, int] | None:
    """What to tell about an error in the way that a command was called; None for any other error.

    Args:
        error: What was raised.
    """
    if isinstance(error, typer.Abort):
        return "aborted", 1
    if not isinstance(error, USAGE_ERROR):
        return None
    usage: Any = error  # typer does not export the type
    message = " ".join(usage.format_message().split()).rstrip(".")
    message = message.replace(" (env var: 'None')", "")  # typer 0.17 to 0.20 with click 8.5
    reasons = getattr(usage.__cause__, "errors", None)  # pydantic's, by which newer typer checks types and ranges
    if callable(reasons) and reasons():
        message += f", not {reasons()[0].get('input')!r}"
    context = getattr(usage, "ctx", None)
    return (f"{message} (see {context.command_path} --help)" if context is not None else message), 2


app = typer.Typer(cls=Root, help="Ten landmark learning methods, exact to their papers, measured claim by claim.")


def print_version(wanted: bool) -> bool:
    """Print the version and leave, if that is wanted; else give the option's value on."""
    if wanted:
        sys.stdout.write(f"tenfold {__version__}\n")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of an error; may stand after the command, too.")
    ] = False,
) -> None:
    """Nothing to do before a command: both options are answered elsewhere."""
