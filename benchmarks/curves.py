"""Draw what a run learned from its own files: reward, scores on held-out rows, and how true its rollouts were, over steps.

python benchmarks/curves.py outputs/gpu/gpu-digits        # writes curves.svg into the run's folder
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 400, 200, 60, 36
GAP_X, GAP_Y = 50, 70
BLUE, GREY, RED = "#1f5fa8", "#777777", "#b03030"

Points = list[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the run's folder: run.json and metrics.jsonl are read")
    run: Path = parser.parse_args().run
    card = json.loads((run / "run.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (run / "curves.svg").write_text(page(card, rows), encoding="utf-8")
    print(run / "curves.svg")


def page(card: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The four panels as one SVG text."""
    metrics = card["metrics"]
    last = max(row["step"] for row in rows)
    scored = [(0, metrics["before"]), (last, metrics["after"])] if "after" in metrics else []
    sampled = sorted([*curve(rows, "eval/sampled/correct"), *((step, scores["sampled"]["correct"]) for step, scores in scored)])
    without = [(last, metrics["without_adapter"]["sampled"]["correct"])] if "without_adapter" in metrics else []
    gap, size = "rollouts/logp_difference/mean", "rollouts/effective_sample_size"
    panels = [
        panel("reward, mean of a step's completions", curve(rows, "reward"), last),
        panel("held out, sampled: well-formed and right", sampled, last, top=1.0, marked=("adapter switched off", without)),
        panel("log-probability, sampler against trainer: mean difference", curve(rows, gap), last),
        panel("effective sample size of the loss's weights", curve(rows, size), last, top=1.0),
    ]
    width, height = LEFT + 2 * (WIDTH + GAP_X), TOP + 2 * (HEIGHT + GAP_Y)
    placed = (
        f'<g transform="translate({LEFT + i % 2 * (WIDTH + GAP_X)},{TOP + 14 + i // 2 * (HEIGHT + GAP_Y)})">{drawn}</g>'
        for i, drawn in enumerate(panels)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            label(LEFT, 20, f"{card['run_id']}: {last} steps of GRPO in {metrics.get('train_seconds', '?')} s", size=15),
            *placed,
            "</svg>\n",
        ]
    )


def curve(rows: list[dict[str, Any]], key: str) -> Points:
    return [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]


def panel(title: str, points: Points, last: int, top: float = 0.0, marked: tuple[str, Points] = ("", [])) -> str:
    """One curve from step 0 to `last`, its y axis from 0 to `top` or to the highest point, and a marked point or none."""
    top = max([top, *(value for _, value in points)]) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return round(point[0] / last * WIDTH, 1), round(HEIGHT - point[1] / top * HEIGHT, 1)

    lines = [f'<text x="0" y="-8">{title}</text>']
    for share in (0, 0.5, 1):
        y = HEIGHT * (1 - share)
        lines.append(f'<line x1="0" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="#dddddd"/>')
        lines.append(label(-6, y + 4, f"{top * share:.3g}", anchor="end"))
        lines.append(label(WIDTH * share, HEIGHT + 16, f"{last * share:g}", anchor="middle"))
    path = " ".join(f"{x},{y}" for x, y in map(place, points))
    lines.append(f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    if len(points) <= 20:
        lines += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{BLUE}"/>' for x, y in map(place, points)]
    for point in marked[1]:
        x, y = place(point)
        lines.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{RED}"/>')
        lines.append(label(x - 8, y + 4, f"{marked[0]}: {point[1]:.3f}", anchor="end", colour=RED))
    if points:
        lines.append(label(WIDTH, place(points[-1])[1] - 6, f"{points[-1][1]:.3g}", anchor="end", colour=BLUE))
    return "".join(lines)


def label(x: float, y: float, text: str, anchor: str = "start", colour: str = GREY, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>'


if __name__ == "__main__":
    main()
