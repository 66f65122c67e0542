"""Finds words of a figure that overlap, or that reach beyond its edge."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SLACK = 1.0  # pixels of overlap that nobody sees


def misplaced_words(figure: Figure) -> list[str]:
    """A line for every two texts that overlap, and for every text that is cut off by the figure's edge."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)]
    legends = [legend.get_window_extent() for legend in _legends(figure)]
    found = [f"{text!r} is cut off" for text, box in boxes if _outside(box, figure.bbox)]
    for k, (text, box) in enumerate(boxes):
        found += [f"{text!r} overlaps {other!r}" for other, second in boxes[k + 1 :] if _overlap(box, second)]
    inside = {text.get_text() for legend in _legends(figure) for text in [*legend.get_texts(), legend.get_title()]}
    for legend in legends:
        found += [
            f"{text!r} lies under a legend" for text, box in boxes if text not in inside and _overlap(box, legend)
        ]
    return found


def _texts(figure: Figure) -> list[Text]:
    found: list[Text] = []
    for axes in _all_axes(figure):
        if axes.axison:
            for axis in (axes.xaxis, axes.yaxis):
                found += [tick.label1 for tick in axis._update_ticks() if tick.label1.get_visible()] + [axis.label]
        found += [*axes.texts, axes.title, axes._left_title, axes._right_title]
    for legend in _legends(figure):
        found += [*legend.get_texts(), legend.get_title()]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def _all_axes(figure: Figure) -> list[Axes]:
    return [axes for one in figure.axes for axes in (one, *one.child_axes)]


def _legends(figure: Figure) -> list:
    own = [axes.get_legend() for axes in _all_axes(figure)]
    return [legend for legend in [*own, *figure.legends] if legend is not None and legend.get_visible()]


def _outside(box: Bbox, edge: Bbox) -> bool:
    return box.x0 < edge.x0 - SLACK or box.y0 < edge.y0 - SLACK or box.x1 > edge.x1 + SLACK or box.y1 > edge.y1 + SLACK


def _overlap(one: Bbox, other: Bbox) -> bool:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > SLACK and high > SLACK
