"""Draw allocation curves as SVG, without any library."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from simulator.replay.inflation import Curve

WIDTH, HEIGHT = 880, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 200, 36, 56
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d5524", "#444444")
_STEP = 0.5


def draw(curves: Mapping[str, Sequence[Curve]], last: float) -> str:
    """Return an SVG with one line for each policy: the mean over its seeds.

    Args:
        curves: Policy name to the curves of its seeds.
        last: Percent arrived at which the axis ends.
    """
    lines = {name: _mean(each, last) for name, each in curves.items()}
    lowest = min((value for points in lines.values() for at, value in points if at >= last * 0.6), default=0.0)
    bottom = max(0.0, float(int(lowest / 5) * 5))
    parts = [_frame(last, bottom)]
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        shown = [(at, value) for at, value in points if value >= bottom]
        path = " ".join(f"{_x(at, last):.1f},{_y(value, bottom):.1f}" for at, value in shown)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        height = _TOP + 16 + 20 * number
        parts.append(f'<rect x="{WIDTH - _RIGHT + 16}" y="{height - 9}" width="14" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - _RIGHT + 36}" y="{height}">{escape(name)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="13">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _mean(curves: Sequence[Curve], last: float) -> list[tuple[float, float]]:
    points = []
    for number in range(int(last / _STEP) + 1):
        at = number * _STEP
        values = [value for curve in curves if (value := curve.at(at)) is not None]
        if values:
            points.append((at, sum(values) / len(values)))
    return points


def _frame(last: float, bottom: float) -> str:
    parts = [
        f'<text x="{_LEFT}" y="22" font-weight="bold">Cards allocated by demand arrived, percent of all cards</text>'
    ]
    for number in range(6):
        value = bottom + (100 - bottom) * number / 5
        height = _y(value, bottom)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#dddddd"/>'
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{value:.0f}</text>'
        )
    for number in range(int(last // 10) + 1):
        at = number * 10
        parts.append(f'<text x="{_x(at, last):.1f}" y="{HEIGHT - _BOTTOM + 20}" text-anchor="middle">{at}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">demand arrived, % of all cards</text>')
    return "\n".join(parts)


def _x(at: float, last: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * at / last


def _y(value: float, bottom: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - bottom) / (100 - bottom)
