"""Draws the curve of a training run as SVG: `python -m demo_training.curve LOG.jsonl CURVE.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 640, 300, 40
"""Of the picture, and around the plot, in pixels."""
LINES = {
    "loss": "#444444",
    "background": "#1f5fd0",
    "colour": "#d62028",
    "shape": "#208a3c",
    "count": "#7c28a4",
    "position": "#e07a10",
}
"""What is drawn, with its colour; all from 0 to 1."""


def draw_curve(lines: list[dict[str, float]]) -> str:
    """Return an SVG of the reports of the painter, over the steps."""
    last = max(line["step"] for line in lines)
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for level in range(0, 101, 20):
        y = _down(level / 100)
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{level / 100:.1f}</text>')
    for index, (name, colour) in enumerate(LINES.items()):
        points = " ".join(f"{_across(line['step'] / last)},{_down(min(1.0, line[name]))}" for line in lines)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{MARGIN + 95 * index}" y="{MARGIN - 18}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{MARGIN}" y="{HEIGHT - 12}">0</text>')
    parts.append(f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 12}" text-anchor="end">step {last:.0f}</text>')
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def main() -> None:
    """Read the log, write the picture."""
    log, picture = map(Path, sys.argv[1:3])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    picture.write_text(draw_curve(lines))


def _across(part: float) -> float:
    return round(MARGIN + part * (WIDTH - 2 * MARGIN), 1)


def _down(part: float) -> float:
    return round(HEIGHT - MARGIN - part * (HEIGHT - 2 * MARGIN), 1)


if __name__ == "__main__":
    main()
