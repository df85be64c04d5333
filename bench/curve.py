"""Tokens per second against memory as an SVG: a line per engine and routing, bounds dashed."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 76, 230, 56, 64
COLOURS = {"uniform": "#1b6ca8", "flat": "#2c8a4b", "local": "#b4452c"}
GREY = "#555"


def text(x, y, s, anchor="middle", size=13, colour="#222"):
    s = s.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{s}</text>'


def ticks_of(low, high):
    """1, 2, 5 times powers of ten within the range; finer steps where these would leave an axis with fewer than three numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 2, 5), range(1, 10), [n / 10 for n in range(10, 100)]):
        ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps if low <= m * 10.0**e * 1.0001 and m * 10.0**e <= high * 1.0001]
        if len(ticks) >= 3:
            break
    return ticks


def draw(title, series):
    """series: [(label, profile, kind, [(GiB, tokens per second)])]; kind: "ours", "bound" (dashed) or "peer" (dotted). Logarithmic upwards."""
    points = [p for s in series for p in s[3]]
    if not points:
        return ""
    xs = sorted({x for x, _ in points})
    low, high = min(y for _, y in points) / 1.3, max(y for _, y in points) * 1.3
    right = WIDTH - RIGHT
    span = (xs[-1] - xs[0]) or 1

    def px(x):
        return LEFT + (x - xs[0]) / span * (right - LEFT) if len(xs) > 1 else (LEFT + right) / 2

    def py(y):
        return HEIGHT - BOTTOM - math.log(y / low) / math.log(high / low) * (HEIGHT - BOTTOM - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 30, title, "start", 16)]
    for y in ticks_of(low, high):
        out.append(f'<line x1="{LEFT}" y1="{py(y):.1f}" x2="{right}" y2="{py(y):.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 8, py(y) + 4, f"{y:g}", "end"))
    for x in xs:
        out.append(f'<line x1="{px(x):.1f}" y1="{TOP}" x2="{px(x):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(text(px(x), HEIGHT - BOTTOM + 20, f"{x:g}"))
    out.append(text((LEFT + right) / 2, HEIGHT - 16, "memory limit, GiB"))
    out.append(f'<text x="20" y="{HEIGHT / 2:.0f}" font-size="13" text-anchor="middle" fill="#222" transform="rotate(-90 20 {HEIGHT / 2:.0f})">tokens per second</text>')
    for i, (label, profile, kind, line) in enumerate(series):
        colour = COLOURS.get(profile, GREY)
        dash = {"ours": "", "bound": ' stroke-dasharray="7 5"', "peer": ' stroke-dasharray="2 4"'}[kind]
        width = 2.4 if kind == "ours" else 1.6
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in sorted(line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>')
        if kind != "bound":
            out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5" fill="{colour if kind == "ours" else "white"}" stroke="{colour}"/>' for x, y in line]
        y = TOP + 10 + 22 * i
        out.append(f'<line x1="{right + 16}" y1="{y}" x2="{right + 48}" y2="{y}" stroke="{colour}" stroke-width="{width}"{dash}/>')
        out.append(text(right + 56, y + 4, label, "start"))
    return "\n".join(out + ["</svg>"]) + "\n"
