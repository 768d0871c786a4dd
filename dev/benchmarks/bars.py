"""Rates as bars: an SVG of our own, readable on light and dark pages, with its text as text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS

WIDTH = 960
#: Where the bars begin, and how long the longest is; the rest is for names and figures.
LEFT, LENGTH = 220, 600
#: Heights: of a bar with its gap, of the name of a workload, of the title, of the foot.
BAR, NAME, TITLE, FOOT = 22, 34, 56, 34

_KINDS = {OURS: "ours", AT_LEAST_ONCE: "ours-weaker", SPARKS: "spark"}

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }
.card { fill: #ffffff; stroke: #d0d7de; }
.title { font-size: 18px; font-weight: 600; fill: #1f2328; }
.workload { font-size: 15px; font-weight: 600; fill: #1f2328; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
.ours-weaker { fill: #80b3ef; }
.spark { fill: #d4a72c; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; }
  .card { fill: #0d1117; stroke: #3d444d; }
  .title, .workload { fill: #f0f6fc; }
  .bar { fill: #656c76; }
  .ours { fill: #4493f8; }
  .ours-weaker { fill: #2a4f7f; }
  .spark { fill: #9e7a1c; }
}
"""


def draw(rates: Mapping[str, Mapping[str, float]]) -> str:
    """Return the picture of records a second by workload and system; each workload has its own scale."""
    height = TITLE + FOOT + sum(NAME + BAR * len(systems) for systems in rates.values())
    title = "Records a second, Kafka to Kafka"
    parts, y = [_text(24, 36, title, "title")], TITLE
    for workload, systems in rates.items():
        parts.append(_text(24, y + 20, workload, "workload"))
        y += NAME
        most = max(systems.values())
        for system, rate in systems.items():
            length = LENGTH * rate / most
            kind = _KINDS.get(system, "")
            parts.append(_text(LEFT - 10, y + 13, system, anchor="end"))
            parts.append(
                f'<rect class="bar {kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 5}" rx="2"/>'
            )
            parts.append(_text(LEFT + length + 8, y + 13, f"{rate:,.0f}"))
            y += BAR
    parts.append(
        _text(24, height - 14, "Medians of the rounds, without the start of each run; one scale per workload.")
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(_said(title, rates))}">'
    )
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", card, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words, quote=False)}</text>'


def _said(title: str, rates: Mapping[str, Mapping[str, float]]) -> str:
    """Return what those hear who do not see it."""
    each = (f"{w}: " + ", ".join(f"{s} {rate:,.0f}" for s, rate in by.items()) + "." for w, by in rates.items())
    return f"{title}. {' '.join(each)}"
