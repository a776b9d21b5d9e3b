"""The console script ``sglang-draft-ext``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from sglang_draft_ext import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sglang-draft-ext", description="Extra attention backends for SGLang's draft worker."
    )
    parser.add_argument("--version", action="version", version=f"sglang-draft-ext {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="say what is installed, how this SGLang matches the hooks, and what the environment asks for",
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    return _doctor(as_json=parser.parse_args(argv).json)


def _doctor(*, as_json: bool) -> int:
    from sglang_draft_ext.doctor import examine

    report = examine()
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
        return 0 if report.ok else 1
    print(
        f"sglang-draft-ext {report.version}"
        + (", switched off by SGLANG_DRAFT_EXT_DISABLE" * report.disabled)
    )
    print(f"SGLang {report.sglang} in {report.path}" if report.sglang else "SGLang: not found")
    for state in report.points:
        print(
            f"  {state.point}: {state.era or 'unknown shape'}"
            + "".join(f"\n    {m}" for m in state.mismatches)
        )
    for backend in report.backends:
        built = f"attention {backend.attention}, decode {backend.decode}"
        print(f"  draft backend {backend.name}: {backend.error or built}")
    for mismatch in report.refused:
        print(f"  asked for, and refused: {mismatch}")
    for name in report.unknown_variables:
        print(f"  unknown variable {name}")
    if report.error:
        print(report.error)
    print("a launch would start" if report.ok else "a launch would be refused")
    return 0 if report.ok else 1
