"""A soak over time: an SVG of our own, readable on light and dark pages, with its text as text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from faultlab.soak.results import Piece, SoakSample, total

WIDTH = 960
#: Of a panel: where its curve begins and ends; its height with its title, and that of its curve.
LEFT, RIGHT, PANEL, CURVE = 150, 936, 78, 56
#: Heights of the title, of the row of faults, of the foot.
TITLE, FAULTS, FOOT = 76, 30, 34

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }
.card { fill: #ffffff; stroke: #d0d7de; }
.title { font-size: 18px; font-weight: 600; fill: #1f2328; }
.name { fill: #1f2328; }
.line { fill: none; stroke: #0969da; stroke-width: 1.5; }
.edge { stroke: #d0d7de; }
.fault { stroke: #cf222e; stroke-width: 1.2; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; }
  .card { fill: #0d1117; stroke: #3d444d; }
  .title, .name { fill: #f0f6fc; }
  .line { stroke: #4493f8; }
  .edge { stroke: #3d444d; }
  .fault { stroke: #f85149; }
}
"""

_KIB, _MIB = 1024.0, 1024.0 * 1024.0


@dataclass(frozen=True)
class Panel:
    """One figure over time: its name, its unit, and where it comes from."""

    name: str
    unit: str
    of: Callable[[SoakSample], float | None]


def _scaled(value: int | None, by: float) -> float | None:
    return None if value is None else value / by


PANELS = (
    Panel("driver's JVM", "MiB", lambda s: s.driver),
    Panel("Python processes", "MiB", lambda s: s.workers),
    Panel("threads", "", lambda s: s.threads),
    Panel("open files", "", lambda s: s.files),
    Panel("broker", "MiB", lambda s: s.broker),
    Panel("commit log", "KiB", lambda s: _scaled(s.log_bytes, _KIB)),
    Panel("checkpoint", "KiB", lambda s: _scaled(s.checkpoint_bytes, _KIB)),
)


def draw(pieces: Sequence[Piece]) -> str:
    """Return the picture: a panel for each figure, with a mark for each fault; pieces stand side by side."""
    panels = _panels(pieces)
    height = TITLE + FAULTS + PANEL * len(panels) + FOOT
    length = sum(p.seconds for p in pieces) or 1.0

    def x(at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * at_s / length

    sums = total(pieces)
    parts = [_text(24, 34, "A soak, in pieces", "title"), _text(24, 58, sums.short)]
    parts.append(_text(LEFT - 10, TITLE + 18, "faults", "name", "end"))
    for begin, piece in _began(pieces):
        for at_s, name in piece.history:
            where = x(begin + min(at_s, piece.seconds))
            place = f'x1="{where:.1f}" x2="{where:.1f}" y1="{TITLE + 6}" y2="{TITLE + 22}"'
            parts.append(f'<line class="fault" {place}><title>{escape(name)}</title></line>')
    y = TITLE + FAULTS
    for name, unit, curves in panels:
        parts += _panel(name, unit, curves, x, y)
        y += PANEL
    parts.append(
        _text(LEFT, height - 14, f"{length / 60:.0f} minutes of faults; a gap: a process was away or just started")
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(str(sums))}">'
    )
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", card, *parts, "</svg>"]) + "\n"


#: Moments with their values; None: not known.
_Curve = list[tuple[float, float | None]]


def _began(pieces: Sequence[Piece]) -> list[tuple[float, Piece]]:
    """Each piece with the seconds that the ones before it took."""
    return [(sum(p.seconds for p in pieces[:n]), piece) for n, piece in enumerate(pieces)]


def _panels(pieces: Sequence[Piece]) -> list[tuple[str, str, list[_Curve]]]:
    """Name, unit and curves of each panel: one for each piece, but for the ids, which are counted when it is over."""
    began = _began(pieces)
    panels = [
        (p.name, p.unit, [[(begin + s.at_s, p.of(s)) for s in piece.samples] for begin, piece in began]) for p in PANELS
    ]
    ids: _Curve = [(begin + piece.seconds, piece.rest.ids or None) for begin, piece in began]
    return [*panels, ("transactional ids", "", [ids])]


def _panel(name: str, unit: str, curves: Sequence[_Curve], x: Callable[[float], float], y: float) -> list[str]:
    most = max((value for curve in curves for _, value in curve if value is not None), default=0) or 1
    parts = [
        _text(LEFT - 10, y + 24, name, "name", "end"),
        _text(LEFT - 10, y + 42, f"0 to {most:,.0f} {unit}".rstrip(), anchor="end"),
        f'<line class="edge" x1="{LEFT}" x2="{RIGHT}" y1="{y + CURVE}" y2="{y + CURVE}"/>',
    ]
    for curve in curves:
        for some in _unbroken(curve):
            points = " ".join(f"{x(at):.1f},{y + CURVE - (CURVE - 6) * value / most:.1f}" for at, value in some)
            parts.append(f'<polyline class="line" points="{points}"/>')
    return parts


def _unbroken(points: _Curve) -> list[list[tuple[float, float]]]:
    """Cut a curve where its value is not known, and where the time of the faults begins: its clock is set to 0 then."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if found[-1] and at < found[-1][-1][0]:
            found[-1] = []
        if value is None:
            found.append([])
        else:
            found[-1].append((at, value))
    return [some for some in found if some]


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words, quote=False)}</text>'
