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
ORDER = ("startup", "import", "ready", "serving", "forward", "step", "multistep")
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
    header, *body = rows(run)
    count = len(next(iter(run["series"].values())))
    lines = [f"## {run['title']}", "", run["text"], ""]
    lines += ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    lines += ["", f"In {run['unit']}, {count} samples each. {_machine_said(run)}"]
    lines += run["notes"]
    lines += ["", f"![samples and medians](benchmarks/{run['name']}.svg)", ""]
    return "\n".join(lines)


def _machine_said(run: dict) -> str:
    about = run["machine"]
    return f"Python {about['python']}, {about['processor']}, {about['cores']} cores, {about['system']}."


# Sweeps: containers measured against the sizes of a draft


def sweep(name: str, *, title: str, text: str, python: str, base: str, points: Sequence[dict]) -> dict:
    """One run over points along several axes; *base* is the container that the others are compared with."""
    return {
        "name": name,
        "title": title,
        "text": text,
        "machine": machine(python),
        "base": base,
        "points": [*points],
    }


def sweep_section(run: dict) -> str:
    base, points = run["base"], run["points"]
    others = [name for name in points[0]["results"] if name != base]
    header = [f"{base}, ms", "KiB", *(f"{name}, {what}" for name in others for what in ("time", "bytes"))]
    lines = [f"## {run['title']}", "", run["text"]]
    for axis in dict.fromkeys(point["axis"] for point in points):
        along = [point for point in points if point["axis"] == axis]
        fixed = ", ".join(f"{size} {value}" for size, value in along[0]["point"].items() if size != axis)
        lines += ["", f"Along {axis}, at {fixed}:", ""]
        lines += ["| " + " | ".join([axis, *header]) + " |", "| ---: |" + " ---: |" * len(header)]
        for point in along:
            reference = point["results"][base]
            cells = [str(point["point"][axis]), f"{reference['ms']:.2f}", f"{reference['bytes'] / 1024:.1f}"]
            for name in others:
                found = point["results"][name]
                cells += [f"{found[unit] / reference[unit]:.2f}" for unit in ("ms", "bytes")]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", _machine_said(run), "", f"![ratios along each axis](benchmarks/{run['name']}.svg)", ""]
    return "\n".join(lines)


def sweep_plot(run: dict) -> str:
    """An SVG: for each axis a panel of the times' ratios and one of the bytes', a line for each container."""
    base, points = run["base"], run["points"]
    colours = dict(zip(points[0]["results"], ("#3b6ea5", "#c07820", "#b03030")))  # noqa: B905 - not all are needed
    axes = [*dict.fromkeys(point["axis"] for point in points)]
    width, height, gap = 180, 150, 50
    size = (gap + (width + gap) * len(axes), 2 * (height + gap) + gap)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" font-size="12">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
    ]
    for number, (name, colour) in enumerate(colours.items()):
        parts.append(f'<text x="{gap + 200 * number}" y="16" fill="{colour}">{escape(name)}</text>')
    for row, (unit, said) in enumerate({"ms": "time, ratio", "bytes": "bytes, ratio"}.items()):
        bottom = gap + (height + gap) * row + height
        ratios = [r[unit] / p["results"][base][unit] for p in points for r in p["results"].values()]
        scale = height / max(ratios)
        for column, axis in enumerate(axes):
            left = gap + (width + gap) * column
            along = [point for point in points if point["axis"] == axis]
            step = width / max(1, len(along) - 1)
            parts.append(f'<path d="M{left} {bottom - height}v{height}h{width}" fill="none" stroke="black"/>')
            parts.append(
                f'<text x="{left}" y="{bottom - height - 6}">{said} (to {max(ratios):.2f}) by {axis}</text>'
            )
            for place, point in enumerate(along):
                x = left + step * place
                parts.append(
                    f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{point["point"][axis]}</text>'
                )
            for name, colour in colours.items():
                line = " ".join(
                    f"{left + step * place:.1f},{bottom - scale * p['results'][name][unit] / p['results'][base][unit]:.1f}"
                    for place, p in enumerate(along)
                )
                parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>", ""])


def documents() -> dict[Path, str]:
    """Every file that the records say in other words."""
    runs = [json.loads(path.read_text()) for path in RECORDS.glob("*.json")]
    runs.sort(key=lambda run: ORDER.index(run["name"]))
    files = {
        RECORDS / f"{run['name']}.svg": sweep_plot(run) if "points" in run else plot(run) for run in runs
    }
    sections = [sweep_section(run) if "points" in run else section(run) for run in runs]
    return {**files, PAGE: "\n".join([HEAD, *sections])}


def keep(run: dict) -> None:
    """Write the record of a run, in place of the one before."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{run['name']}.json").write_text(_text_of(run))


def _text_of(run: dict) -> str:
    """JSON with a line for each series or point."""
    if "points" in run:
        key, opening, closing = "points", "[", "]"
        lines = [f"  {json.dumps(point)}" for point in run[key]]
    else:
        key, opening, closing = "series", "{", "}"
        lines = [f"  {json.dumps(name)}: {json.dumps(samples)}" for name, samples in run[key].items()]
    head = json.dumps({name: value for name, value in run.items() if name != key}, indent=1)
    body = ",\n".join(lines)
    return head.removesuffix("\n}") + f',\n "{key}": {opening}\n{body}\n {closing}\n}}\n'
