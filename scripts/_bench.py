"""What a benchmark leaves behind, and the page made out of it. Standard library only.

A record is one run: samples of each series, taken in turn, on one machine. Everything said of it is computed from those samples,
so the page (`docs/performance.md`) cannot say what the records (`docs/benchmarks/*.json`) do not.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from _environment import ROOT

DOCS = ROOT / "docs"
RECORDS = DOCS / "benchmarks"
PAGE = DOCS / "performance.md"
ORDER = ("startup", "import", "ready", "serving", "forward")
HEAD = """# Performance

<!-- Written by scripts/bench --docs from docs/benchmarks/*.json. -->

Each table is one run on one machine. The series of a run were measured in turn, so that whatever else the machine did meets all
of them: compare them within a table, and no number with one of another table or machine. *Over* and *ratio* are medians of the
differences and ratios within each round. `scripts/bench NAME` measures again.
"""


def record(
    name: str,
    *,
    title: str,
    text: str,
    unit: str,
    python: str,
    series: Mapping[str, Sequence[float]],
    notes: Sequence[str] = (),
) -> dict:
    """One run; the first series is what the others are compared with."""
    return {
        "name": name,
        "title": title,
        "text": text,
        "unit": unit,
        "machine": machine(python),
        "notes": list(notes),
        "series": {key: [float(f"{sample:.5g}") for sample in samples] for key, samples in series.items()},
    }


def machine(python: str) -> dict[str, str | int | None]:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "python": python,
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
    }


def rows(run: dict) -> list[list[str]]:
    """The table: series, minimum, median, over and ratio to the first series."""
    (base, reference), *_ = run["series"].items()
    table = [["", "minimum", "median", f"over {base}", f"ratio to {base}"]]
    for name, samples in run["series"].items():
        pairs = list(zip(samples, reference, strict=True))
        over = statistics.median(one - other for one, other in pairs)
        ratio = statistics.median(one / other for one, other in pairs)
        compared = ["", ""] if name == base else [f"{over:+.3g}", f"{ratio:.3f}"]
        table.append([name, f"{min(samples):.4g}", f"{statistics.median(samples):.4g}", *compared])
    return table


def plot(run: dict) -> str:
    """An SVG: every sample a dot, the median a bar; the slowest of all, and a series that is far off, are cut."""
    left, right, step = 300, 860, 26
    base = statistics.median(next(iter(run["series"].values())))
    near = {
        name: sorted(s) for name, s in run["series"].items() if base / 3 < statistics.median(s) < base * 3
    }
    low = min(series[0] for series in near.values())
    high = max(series[int(len(series) * 0.9)] for series in near.values())
    scale = (right - left) / ((high - low) or 1)
    height = step * (len(run["series"]) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="900" height="{height}" fill="white"/>',
    ]
    for row, (name, series) in enumerate(run["series"].items()):
        y = step * (row + 1)
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        if name not in near:
            far = f"{statistics.median(series):.4g} {run['unit']}, off the scale"
            parts.append(f'<text x="{right}" y="{y + 4}" text-anchor="end" fill="#b03030">{far}</text>')
            continue
        shown = sorted({round(left + (sample - low) * scale, 1) for sample in series if sample <= high})
        dots = "".join(f"M{x} {y}h0" for x in shown)
        parts.append(
            f'<path d="{dots}" stroke="#3b6ea5" stroke-opacity=".35" stroke-width="7" stroke-linecap="round"/>'
        )
        middle = left + (statistics.median(series) - low) * scale
        parts.append(f'<path d="M{middle:.1f} {y - 9}v18" stroke="#b03030" stroke-width="2"/>')
    bottom = height - step // 2
    for value in (low, (low + high) / 2, high):
        x = left + (value - low) * scale
        parts.append(f'<text x="{x:.0f}" y="{bottom}" text-anchor="middle">{value:.4g} {run["unit"]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def section(run: dict) -> str:
    about = run["machine"]
    header, *body = rows(run)
    count = len(next(iter(run["series"].values())))
    lines = [f"## {run['title']}", "", run["text"], ""]
    lines += ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    lines += ["", f"In {run['unit']}, {count} samples each. Python {about['python']}, {about['processor']}, "]
    lines[-1] += f"{about['cores']} cores, {about['system']}."
    lines += run["notes"]
    lines += ["", f"![samples and medians](benchmarks/{run['name']}.svg)", ""]
    return "\n".join(lines)


def documents() -> dict[Path, str]:
    """Every file that the records say in other words."""
    runs = [json.loads(path.read_text()) for path in RECORDS.glob("*.json")]
    runs.sort(key=lambda run: ORDER.index(run["name"]))
    files = {RECORDS / f"{run['name']}.svg": plot(run) for run in runs}
    return {**files, PAGE: "\n".join([HEAD, *map(section, runs)])}


def keep(run: dict) -> None:
    """Write the record of a run, in place of the one before."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    series = ",\n".join(
        f"  {json.dumps(key)}: {json.dumps(samples)}" for key, samples in run["series"].items()
    )
    head = json.dumps({key: value for key, value in run.items() if key != "series"}, indent=1)
    (RECORDS / f"{run['name']}.json").write_text(
        head.removesuffix("\n}") + f',\n "series": {{\n{series}\n }}\n}}\n'
    )
