"""The console script ``sglang-draft-ext``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from sglang_draft_ext import __version__, settings
from sglang_draft_ext.report import Report
from sglang_draft_ext.selection import ROLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sglang_draft_ext import catalogue

NO_SGLANG = "SGLang is not installed in this environment"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sglang-draft-ext",
        description="Extra attention backends for SGLang's draft worker. Nothing here starts or imports SGLang.",
    )
    parser.add_argument("--version", action="version", version=f"sglang-draft-ext {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    command(
        "doctor",
        "say what is installed, what is wrong with it, and whether a launch would get past this package",
    )
    command("backends", "list each backend and role of the installed SGLang, and whether it can draft")
    explained = command("explain", "say what a launch line would do with the draft, without starting it")
    explained.usage = "sglang-draft-ext explain [-h] [--json] LINE…"
    explained.epilog = "LINE is the launch line, or only its flags; variables may stand in front of it."
    words, line = [*(sys.argv[1:] if argv is None else argv)], []
    if words[:1] == ["explain"]:  # argparse would take the line's flags for its own
        own = 2 if words[1:2] and words[1] in ("-h", "--help", "--json") else 1
        words, line = words[:own], words[own:]
    arguments = parser.parse_args(words)
    if arguments.command == "doctor":
        return _doctor(as_json=arguments.json)
    if arguments.command == "backends":
        return _backends(as_json=arguments.json)
    return _explain(line, as_json=arguments.json)


def _doctor(*, as_json: bool) -> int:
    from sglang_draft_ext.doctor import examine
    from sglang_draft_ext.doctor.text import text

    found = examine()
    print(json.dumps(found.as_json(), indent=2) if as_json else text(found))
    return 0 if found.ok else 1


def _backends(*, as_json: bool) -> int:
    from sglang_draft_ext import catalogue
    from sglang_draft_ext.installed import installed

    surface = installed()
    if surface is None:
        print(NO_SGLANG, file=sys.stderr)
        return 2
    rows = catalogue.of(surface)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    report = Report()
    report.title(f"What the backends of SGLang {surface.version} can do for a draft")
    report.line()
    cells = [
        (row.name, *(row[role].state for role in ROLES), (row.renamed and f"now {row.renamed}") or _why(row))
        for row in rows
    ]
    report.table(("name", *ROLES, "why"), cells)
    report.line()
    report.line(
        "native: SGLang does it. backported: SGLang's own classes do it, and this package says so to its draft."
    )
    report.line(f"multistep: {settings.BACKENDS}=NAME adds it. refused: neither can.")
    print(report)
    return 0


def _why(row: catalogue.Row) -> str:
    return "; ".join(dict.fromkeys(row[role].why for role in ROLES if row[role].why))


def _explain(line: Sequence[str], *, as_json: bool) -> int:
    from sglang_draft_ext import explain
    from sglang_draft_ext.installed import installed

    variables, flags = explain.split(line)
    os.environ.update(variables)  # read as the launch would read them
    surface = installed()
    if surface is None:
        print(NO_SGLANG, file=sys.stderr)
        return 2
    try:
        said = explain.explain(flags, surface)
    except explain.LineError as error:
        print(f"sglang-draft-ext explain: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(said), indent=2) if as_json else explain.text(said))
    return 0 if said.ok else 1
