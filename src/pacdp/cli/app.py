"""The ``pacdp`` command. Every error is reported as a single line with exit code 2.

Each command imports what it needs when it is called, so that ``--help`` and ``--version`` need not
wait for scipy and torch.
"""

import sys
from typing import Annotated

import typer
from typer import Option

from pacdp import __version__
from pacdp.cli import curve, data, federation, ledger, site
from pacdp.cli.demo import demo_command
from pacdp.cli.experiment import compare_command, report_command, run_command
from pacdp.cli.inference import evaluate_command, predict_command
from pacdp.cli.init import init_command
from pacdp.cli.options import flag
from pacdp.cli.plan import plan_command
from pacdp.cli.privacy import account_command, calibrate_command
from pacdp.cli.reproduce import reproduce_command
from pacdp.cli.tune import tune_command
from pacdp.errors import PacdpError

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("account")(account_command)
app.command("calibrate")(calibrate_command)
app.command("demo")(demo_command)
app.command("init")(init_command)
app.command("fit")(curve.fit_command)
app.command("tune")(tune_command)
app.command("plan")(plan_command)
app.command("run")(run_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("reproduce")(reproduce_command)
app.command("evaluate")(evaluate_command)
app.command("predict")(predict_command)
app.add_typer(curve.app, name="curve")
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.add_typer(ledger.app, name="ledger")
app.add_typer(site.app, name="site")


# Set by the parsed option, and read when the command has failed.
_wanted = {"debug": False}


def _message(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        # A full disk does not say which file it was.
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pacdp {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        flag("--version", "Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error.")] = False,
    modules: Annotated[
        list[str] | None,
        Option(
            "--import",
            metavar="MODULE",
            help="Import a Python module first, e.g. one that registers methods. Repeatable.",
        ),
    ] = None,
) -> None:
    """Federated learning with a separate, enforced privacy budget for each client."""
    _wanted["debug"] = debug
    for module in modules or []:
        from pacdp.plugins import import_module

        import_module("--import", module)


def main() -> None:
    """Run the command line and exit."""
    command = typer.main.get_command(app)
    try:
        code = command.main(sys.argv[1:], prog_name="pacdp", standalone_mode=False)
    except (PacdpError, OSError, typer.TyperException) as error:
        if _wanted["debug"]:
            raise
        message = _message(error)
        # A bare command has printed its help; its error has no message.
        if message:
            typer.echo(f"pacdp: {' '.join(message.split())}", err=True)
        code = 2 if message else 0
    except typer.Abort:
        typer.echo("pacdp: interrupted; commands with --resume can continue from here", err=True)
        code = 130
    sys.exit(code)
