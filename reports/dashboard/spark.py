"""A small line of the last nights, drawn while the page is built, so that it is there without a script."""

from __future__ import annotations

from markupsafe import Markup

from ..judging import Series

NIGHTS = 60
_WIDTH, _HEIGHT, _EDGE = 120.0, 26.0, 3.0


def spark(one: Series, *, nights: int = NIGHTS, width: float = _WIDTH, height: float = _HEIGHT) -> Markup:
    """Numbers only, so nothing in it needs escaping. Hidden from screen readers: the row says the same in words."""
    points = one.points[-nights:]
    values = [point.value for point in points if point.value is not None]
    if not values:
        return Markup("")
    low, high = min(values), max(values)
    middle = (low + high) / 2
    reach = max((high - low) / 2, 0.03 * middle, 1e-12)  # a quiet series looks quiet
    step = (width - 2 * _EDGE) / max(len(points) - 1, 1)

    def place(at: int, value: float) -> tuple[float, float]:
        return _EDGE + at * step, height / 2 - (value - middle) / reach * (height / 2 - _EDGE)

    lines: list[list[str]] = [[]]
    for at, point in enumerate(points):
        if point.value is None:
            lines.append([])
        else:
            x, y = place(at, point.value)
            lines[-1].append(f"{x:.1f} {y:.1f}")
    path = "".join("M" + "L".join(line if len(line) > 1 else line * 2) for line in lines if line)
    at, newest = next((at, p) for at, p in reversed(list(enumerate(points))) if p.value is not None)
    x, y = place(at, newest.value or 0.0)
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'aria-hidden="true"><path d="{path}"/>'
        f'<circle class="s-{one.state.value}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/></svg>'
    )
