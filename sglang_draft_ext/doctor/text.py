"""The diagnosis as a person reads it."""

from __future__ import annotations

from sglang_draft_ext.doctor import Diagnosis
from sglang_draft_ext.report import Report


def text(found: Diagnosis, *, colour: bool | None = None) -> str:
    """All sections, and the findings last: that is what is read first."""
    report = Report(colour=colour)
    _installation(report, found)
    _sglang(report, found)
    _asked(report, found)
    _processes(report, found)
    _findings(report, found)
    return str(report)


def _installation(report: Report, found: Diagnosis) -> None:
    package = found.installation
    report.title(f"sglang-draft-ext {found.version}" + ", switched off" * found.disabled)
    report.facts(
        {
            "Python": package.python,
            "installed": "; ".join(package.distributions) or "no distribution",
            "runs from": next(copy.path for copy in package.copies if copy.running),
            "started": "yes" if package.running else "no",
        }
    )
    for file in package.start_files:
        report.marked("good" if file.obeyed else "note", file.path + (f": {file.why}" if file.why else ""))


def _sglang(report: Report, found: Diagnosis) -> None:
    release = found.sglang
    if release is None:
        report.title("SGLang: not found")
        return
    report.title(f"SGLang {release.version}" + ("" if release.tested else ", not tested"))
    report.facts({"in": release.path})
    if found.points:
        rows = [
            (state.point, state.state, "yes" if state.needed else "-", state.era or "unknown")
            for state in found.points
        ]
        report.table(("hook", "state", "needed", "shape in this release"), rows)


def _asked(report: Report, found: Diagnosis) -> None:
    report.title("What the environment asks for")
    if found.variables:
        report.facts(dict(found.variables))
    else:
        report.line("  nothing")
    if found.backends:
        report.line()
        rows = [
            (
                state.name,
                "refused" if state.error else state.attention or "",
                state.decode or "-",
                str(state.provider) if state.provider else "-" if state.error else "SGLang",
            )
            for state in found.backends
        ]
        report.table(("backend", "prefill and extend", "decode", "provider"), rows)
    if any(row.backend for row in found.selection):
        report.line()
        rows3 = [(row.role, row.backend or "-", row.why) for row in found.selection]
        report.table(("role", "backend", "from"), rows3)


def _processes(report: Report, found: Diagnosis) -> None:
    report.title("What else runs")
    seen = found.child
    report.facts(
        {
            "spawned process": f"sees the same package {seen.version}, SGLang and variables"
            if seen and not any(finding.name == "child-differs" for finding in found.findings)
            else "differs, see below"
        }
    )
    for neighbour in found.neighbours:
        report.facts({neighbour.kind: neighbour.name})


def _findings(report: Report, found: Diagnosis) -> None:
    report.title("Findings")
    for finding in sorted(found.findings, key=lambda finding: finding.level, reverse=True):
        report.marked(finding.level, f"{finding.name}: {finding.text}")
        if finding.remedy:
            report.line(f"          to do: {finding.remedy}")
    if found.ok:
        report.marked("good", "nothing that would stop a launch")
    else:
        problems = sum(finding.level == "problem" for finding in found.findings)
        report.line()
        report.line(
            f"{problems} problem{'s' * (problems > 1)}: a launch would be refused, or would run without this package",
            colour="problem",
        )
