#!/usr/bin/env python3
"""Draws the summaries that `bench/serve.py` left in a folder: `bench/serve_chart.py RUN_DIR OUT.svg`."""

import json
import pathlib
import sys

PANELS = [
    ("streams8", "tokens_per_s", "tokens/s, 8 streams (more is better)"),
    ("streams8", "ttft_p99_ms", "first token p99, ms, 8 streams (less is better)"),
    ("open", "ttft_p99_ms", "first token p99, ms, open load (less is better)"),
]
COLORS = {"tokenmill": "#9a4b12", "llama-server": "#8a8f98"}
WIDTH, BAR, LEFT = 300, 22, 150

folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
summaries = [json.loads(path.read_text()) for path in sorted(folder.glob("summary-*.json"))]
parts, y = [], 10
for load, figure, title in PANELS:
    chosen = [summary for summary in summaries if summary["load"] == load]
    if not chosen:
        continue
    y += 24
    parts.append(f'<text x="{LEFT}" y="{y - 8}" font-weight="bold">{title}</text>')
    most = max(medians[figure] for summary in chosen for medians in summary["medians"].values())
    for summary in chosen:
        for name, medians in summary["medians"].items():
            value = medians[figure]
            length = max(1, value / most * WIDTH)
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + BAR * 0.65:.0f}" text-anchor="end">{summary["model"]} {name}</text>'
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 6}" rx="3" fill="{COLORS[name]}"/>'
                f'<text x="{LEFT + length + 6:.1f}" y="{y + BAR * 0.65:.0f}">{value:,.{0 if value >= 100 else 1}f}</text>'
            )
            y += BAR
    y += 12
width = LEFT + WIDTH + 80
out.write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-60 0 {width + 60} {y}" width="{width + 60}" height="{y}" font-family="sans-serif" font-size="12">\n'
    f'<rect x="-60" width="{width + 60}" height="{y}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
)
