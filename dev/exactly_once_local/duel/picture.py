"""The duel as one picture: an SVG of our own, readable on light and dark pages, with its text as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from exactly_once_local.duel.score import Score, Story

WIDTH, HEIGHT = 960, 540
#: Left edges of the two columns; then the width of the plots, and where they stand.
LEFT, PLOT_WIDTH = (76, 536), 376
WRITTEN_TOP, WRITTEN_HEIGHT = 170, 130
DOUBLED_TOP, DOUBLED_HEIGHT = 346, 110

#: Points of a line; more would not be seen.
POINTS = 200

#: Lines at which a scale is marked, each followed by none that is closer.
_STEPS = (1, 2, 5)

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }
.card { fill: #ffffff; stroke: #d0d7de; }
.title { font-size: 18px; font-weight: 600; fill: #1f2328; }
.sink { font-size: 15px; font-weight: 600; fill: #1f2328; }
.figure { font-size: 24px; font-weight: 700; }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px; }
.grid { stroke: #d8dee4; }
.sent { stroke: #8c959f; stroke-width: 1.5; fill: none; }
.written { stroke: #0969da; stroke-width: 2; fill: none; }
.doubled { stroke: #cf222e; stroke-width: 2; fill: #cf222e; fill-opacity: 0.18; }
.kill { stroke: #9a6700; stroke-width: 1.5; stroke-dasharray: 4 3; }
.kill-name { font-size: 12px; fill: #9a6700; }
.bad { fill: #cf222e; }
.good { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; }
  .card { fill: #0d1117; stroke: #3d444d; }
  .title, .sink { fill: #f0f6fc; }
  .grid { stroke: #2a313c; }
  .written { stroke: #4493f8; }
  .doubled { stroke: #f85149; fill: #f85149; }
  .kill { stroke: #d29922; }
  .kill-name { fill: #d29922; }
  .bad { fill: #f85149; }
  .good { fill: #3fb950; }
}
"""


def draw(story: Story, scores: tuple[Score, Score]) -> str:
    """Return the picture. Both columns have the same scales."""
    seconds = story.samples[-1][0]
    most = max(1, *(s.duplicates for s in scores))
    kills = _times(len(story.kills))
    title = f"{scores[0].flights:,} real flights through two Kafka sinks, both killed with kill -9 {kills}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(_said(title, scores))}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        _text(24, 38, title, "title"),
    ]
    for number, score in enumerate(scores):
        parts += _column(number, story, score, seconds, most)
    parts += [
        _text(
            24,
            HEIGHT - 18,
            "Both in one driver process: same kills, same settings. Counted by an independent read_committed reader.",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def scale(most: float, lines: int = 4) -> list[int]:
    """Round numbers from 0 on, at most ``lines`` of them above it, none above ``most``."""
    step, power = 1, 1
    while most / step > lines:
        step, power = next(((s * power, power) for s in _STEPS if s * power > step), (10 * power, 10 * power))
    return list(range(0, int(most) + 1, step))


def _column(number: int, story: Story, score: Score, seconds: float, most: int) -> list[str]:
    left, samples = LEFT[number], story.samples[:: max(1, len(story.samples) // POINTS)] + story.samples[-1:]
    counts = [(second, each[number]) for second, _, *each in samples]

    def x(second: float) -> float:
        return left + PLOT_WIDTH * min(second / seconds, 1)

    def written(count: float) -> float:
        return WRITTEN_TOP + WRITTEN_HEIGHT * (1 - count / max(1, score.flights))

    def doubled(count: float) -> float:
        return DOUBLED_TOP + DOUBLED_HEIGHT * (1 - count / most)

    sent = _steps((x(second), written(count)) for second, count, *_ in samples)
    distinct = _steps((x(second), written(count)) for second, (count, _) in counts)
    again = _steps((x(second), doubled(count)) for second, (_, count) in counts)
    ground = doubled(0)
    kind = "bad" if score.duplicates else "good"
    lost = f"{score.missing:,} lost" if score.missing else "none lost"
    return [
        _text(left, 72, score.sink.title, "sink"),
        _text(left + PLOT_WIDTH, 72, f'format("{score.sink.format}")', "code", "end"),
        _text(left, 102, f"{score.duplicates:,} duplicates", f"figure {kind}"),
        _text(left, 124, f"{lost}, {score.open_transactions} transactions left open"),
        *_axis(left, scale(score.flights), written, "flights written (grey: sent)", WRITTEN_TOP),
        *_axis(left, scale(most), doubled, "duplicates", DOUBLED_TOP),
        *(_text(x(s), DOUBLED_TOP + DOUBLED_HEIGHT + 18, f"{s} s", anchor="middle") for s in scale(seconds, 6)),
        f'<path class="sent" d="M{sent}"/>',
        f'<path class="written" d="M{distinct}"/>',
        f'<path class="doubled" d="M{left},{ground} L{again} L{x(story.samples[-1][0]):.1f},{ground} Z"/>',
        *(_kill(x(second)) for second in story.kills),
    ]


def _axis(left: int, marks: Sequence[int], y: Callable[[float], float], name: str, top: int) -> list[str]:
    lines = [_text(left, top - 10, name)]
    for mark in marks:
        lines.append(f'<line class="grid" x1="{left}" x2="{left + PLOT_WIDTH}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        lines.append(_text(left - 8, y(mark) + 4, f"{mark:,}", anchor="end"))
    return lines


def _kill(x: float) -> str:
    lines = ((WRITTEN_TOP, WRITTEN_HEIGHT), (DOUBLED_TOP, DOUBLED_HEIGHT))
    drawn = "".join(f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="{t}" y2="{t + h}"/>' for t, h in lines)
    return drawn + _text(x, WRITTEN_TOP + WRITTEN_HEIGHT + 15, "kill -9", "kill-name", "middle")


def _steps(points: Iterable[tuple[float, float]]) -> str:
    """Return a line that stays level until the next point: a count holds until more is counted."""
    (x0, y0), *rest = points
    drawn, level = [f"{x0:.1f},{y0:.1f}"], y0
    for x, y in rest:
        drawn += [f"{x:.1f},{level:.1f}", f"{x:.1f},{y:.1f}"]
        level = y
    return " L".join(drawn)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words, quote=False)}</text>'


def _times(number: int) -> str:
    return {1: "once", 2: "twice", 3: "three times"}.get(number, f"{number} times")


def _said(title: str, scores: Sequence[Score]) -> str:
    """Return the picture's text for people who do not see it."""
    return f"{title}. " + " ".join(f"{s.sink.title}: {s.duplicates:,} duplicates, {s.missing:,} lost." for s in scores)
