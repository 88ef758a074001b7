"""A picture of one run: a row for each stage's computation, one below it for each axis that its ranks exchange along.

Bars that are narrower than a pixel are joined with the next ones of their colour, so the picture of a deep model stays
small. Colours say what kind of work it is; the legend names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from lowerkit.spmd.cost.mesh_plan import MeshCost
from lowerkit.spmd.cost.stage_runs import Event

_LEFT, _WIDTH, _ROW, _TOP, _STEP = 110, 1100, 18, 60, 22
COLOURS = {
    "products": "#2f6fb0", "attention": "#7b4fa3", "other computation": "#9aa7b4", "all_reduce": "#d1603d",
    "all_gather": "#e0a030", "reduce_scatter": "#b8862b", "all_to_all": "#8f9c2f", "broadcast": "#4a9a6a",
    "reduce": "#2e7d6b", "send": "#c04a7a", "receive": "#c04a7a",
}  # fmt: skip


@dataclass(frozen=True)
class _Bar:
    start: float
    end: float
    colour: str
    title: str


def timeline_svg(cost: MeshCost, title: str) -> str:
    """Returns the picture of the run of a planned mesh as the text of an SVG file."""
    total = max(cost.seconds, 1e-12)
    lanes: list[tuple[str, list[_Bar]]] = []
    for number, run in enumerate(cost.runs):
        name = f"stage {number}" if len(cost.runs) > 1 else "rank"
        lanes.append((name, _joined(run.compute, total)))
        axes = sorted({event.piece.exchange.axis for event in run.exchanges if event.piece.exchange is not None})
        for axis in axes:
            own = [e for e in run.exchanges if e.piece.exchange is not None and e.piece.exchange.axis == axis]
            lanes.append((f"  {axis}", _joined(sorted(own, key=lambda event: event.span.start), total)))
    height = _TOP + _STEP * len(lanes) + 30
    root = ElementTree.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", width=str(_LEFT + _WIDTH + 20), height=str(height)
    )
    root.set("font-family", "sans-serif")
    root.set("font-size", "12")
    ElementTree.SubElement(root, "rect", width="100%", height="100%", fill="white")
    _text(root, 10, 20, title)
    _legend(root, {bar.colour for _, bars in lanes for bar in bars})
    for row, (name, bars) in enumerate(lanes):
        top = _TOP + row * _STEP
        _text(root, 10, top + 13, name)
        for bar in bars:
            left, width = _LEFT + bar.start / total * _WIDTH, max((bar.end - bar.start) / total * _WIDTH, 0.2)
            shape = ElementTree.SubElement(
                root, "rect", x=f"{left:.2f}", y=str(top), width=f"{width:.2f}", height=str(_ROW), fill=bar.colour
            )
            ElementTree.SubElement(shape, "title").text = bar.title
    for part in range(5):
        _text(root, _LEFT + part * _WIDTH // 4, height - 10, f"{total * part / 4 * 1e3:.3g} ms")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _joined(events: Iterable[Event], total: float) -> list[_Bar]:
    """Makes bars of events that follow one another, narrow ones of a colour together."""
    pixel = total / _WIDTH
    bars: list[_Bar] = []
    for event in events:
        span, colour = event.span, COLOURS[_kind(event)]
        last = bars[-1] if bars else None
        close = last is not None and last.colour == colour and span.start - last.end < pixel / 4
        if last is not None and close and (span.seconds < pixel or last.end - last.start < pixel):
            bars[-1] = _Bar(last.start, max(last.end, span.end), colour, last.title)
        else:
            bars.append(_Bar(span.start, span.end, colour, f"{event.piece.name} {span.seconds * 1e6:.1f} us"))
    return bars


def _kind(event: Event) -> str:
    kind = event.piece.kind
    if event.piece.exchange is not None or kind == "attention":
        return kind
    return "products" if "matmul" in kind or "conv" in kind else "other computation"


def _legend(root: ElementTree.Element, used: Sequence[str] | set[str]) -> None:
    left = _LEFT
    shown: set[str] = set()
    for name, colour in COLOURS.items():
        if colour in used and colour not in shown:
            shown.add(colour)
            ElementTree.SubElement(root, "rect", x=str(left), y="32", width="12", height="12", fill=colour)
            _text(root, left + 16, 43, name)
            left += 34 + 7 * len(name)


def _text(root: ElementTree.Element, x: int, y: int, text: str) -> None:
    ElementTree.SubElement(root, "text", x=str(x), y=str(y)).text = text
