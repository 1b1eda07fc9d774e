"""``pacdp site``: accept a plan, answer a server, and show the spending."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows
from pacdp.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Run the process that holds a client's records and ledger and answers a server.",
)

SettingsPath = Annotated[
    Path, Option("--settings", metavar="FILE", help="The settings of the site (site.toml).")
]
DEFAULT_SETTINGS = Path("site.toml")


@app.command()
def accept(
    plan: Annotated[Path, Argument(metavar="PLAN", help="The plan, as received.")],
    settings: SettingsPath = DEFAULT_SETTINGS,
    yes: Annotated[bool, options.flag("--yes", "Accept without confirmation.")] = False,
) -> None:
    """Show what a plan asks of this site, and record its hash if you agree."""
    from pacdp.site.acceptance import propose_plan

    proposal = propose_plan(plan, settings)
    print_rows(proposal.describe())
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                "accept: cannot ask for consent without a terminal; use --yes if you agree"
            )
        try:
            agreed = typer.confirm("Do you agree?")
        except typer.Abort:  # Ctrl-C or the end of the input
            typer.echo()
            agreed = False
        if not agreed:
            typer.echo("not accepted")
            raise typer.Exit(1)
    proposal.accept()
    typer.echo(f"accepted: {proposal.digest} is recorded in {settings}")


@app.command()
def serve(settings: SettingsPath = DEFAULT_SETTINGS) -> None:
    """Answer the server on the socket until SIGTERM."""
    from pacdp.site import Site, SiteSettings
    from pacdp.site import serve as serve_site

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    with Site(SiteSettings.load_toml(settings)) as site:
        ready = (
            f"{site.settings.client}: listening on {site.settings.socket}, answers after "
            f"{site.interval:g} s"
        )
        serve_site(site, on_ready=lambda: typer.echo(ready))


@app.command()
def status(
    settings: SettingsPath = DEFAULT_SETTINGS,
    as_json: options.Json = False,
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Also write a page for the data-protection officer."),
    ] = None,
) -> None:
    """Show the budget, the spending, the answered rounds and the refusals."""
    from pacdp.site import SiteSettings
    from pacdp.site.status import read_status

    own = SiteSettings.load_toml(settings)
    state = read_status(own)
    if html is not None:
        files = (settings, own.data, own.ledger, own.plan, own.key, own.head, own.socket)
        if html.resolve() in {path.resolve() for path in files}:
            raise InputError(f"--html {html}: is a file of the site; choose another path")
        from pacdp.reporting.site_page import render_site_page
        from pacdp.storage import write_atomically

        # It says when answers were computed, which is nobody else's business.
        write_atomically(html, render_site_page(state), private=True)
    if as_json:
        print_json(state)
    else:
        print_rows(_to_rows(state))


@app.command()
def key(path: Annotated[Path, Argument(metavar="FILE", help="The new key file.")]) -> None:
    """Create a signing key, and print its public key."""
    from pacdp.keys import create_key

    typer.echo(create_key(path))


def _to_rows(state: dict[str, Any]) -> dict[str, str]:
    plan, budget = state["plan"], state["budget"]
    terms = f"δ = {budget['delta']:g}, {budget['adjacency']} of a {budget['unit']}"
    running = {True: "yes", False: "no", None: "unknown: no access to the socket"}
    heads = {
        "known": "matches the ledger, or an older entry of it",
        "missing": "cannot be read, so an older ledger would go unnoticed",
        "stale": "NEWER than the ledger: everything is refused; restore the newest ledger",
    }
    rows = {"client": state["client"], "running": running[state["running"]]}
    if "error" in plan:
        rows["plan"] = f"none usable ({plan['error']})"
    else:
        rows["plan"] = f"{plan['run']}, {'accepted' if plan['accepted'] else 'NOT accepted'}"
        rows["rounds"] = (
            f"{plan['answered']} of at most {plan['participations']} answered; last answered: "
            f"{plan['last_round'] or '-'} of {plan['rounds']}"
        )
        for name, meaning in (
            ("unanswered", "paid, not answered yet"),
            ("lost", "paid, reply lost"),
        ):
            if plan[name]:
                rows[meaning] = ", ".join(map(str, plan[name]))
    rows |= {
        "budget": f"ε = {budget['epsilon']:g} at {terms}",
        "spent": f"ε = {state['spent']['epsilon']:.6g} over {state['releases']} releases",
    }
    if state["head_file"] == "stale":
        rows["spent"] += " in this older ledger; all of the budget counts as spent"
    if state["charged"] != state["spent"]:
        rows["charged"] = f"ε = {state['charged']['epsilon']:.6g}, counting sampled plans in full"
    for level in state["levels"]:
        rows[f"level {level['epsilon']:g}"] = f"spent ε = {level['spent']:.6g}"
    refusals = state["refusals"]
    rows["refusals"] = ", ".join(f"{count} {code}" for code, count in refusals.items()) or "none"
    rows |= {"head": state["head"], "head file": heads[state["head_file"]]}
    return rows
