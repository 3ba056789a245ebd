"""The figures of the attention study, one per part; lines differ in colour and marker."""

from __future__ import annotations

from typing import Any

from regard.drawing import COLOURS, GREY, INK, canvas, colour_bar, dress, style
from regard.study.attention.bottleneck import Bottleneck
from regard.study.attention.costs import LAYERS, Costs
from regard.study.attention.gradients import Gradients
from regard.study.attention.scores import KINDS, Scores
from regard.study.attention.sinusoids import Sinusoids

MARKS = "osD^vP"


@style()
def draw(result: Bottleneck | Gradients | Costs | Scores | Sinusoids) -> Any:
    """The figure of a part."""
    figures = {
        Bottleneck: _bottleneck, Gradients: _gradients, Costs: _costs, Scores: _scores, Sinusoids: _sinusoids
    }  # fmt: skip
    return figures[type(result)](result)


def _bottleneck(result: Bottleneck) -> Any:
    figure = canvas(8.4, 3.8)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, what in ((left, "exact"), (right, "symbols")):
        for number, model in enumerate(result.parameters):
            points = [point for point in result.points if point.model == model]
            x, figures = [point.length for point in points], [getattr(point, what) for point in points]
            low, high = ([100 * getattr(f, side) for f in figures] for side in ("low", "high"))
            ax.fill_between(x, low, high, color=COLOURS[number], alpha=0.15, linewidth=0)
            _line(ax, x, [100 * f.value for f in figures], number, model)
        if result.task.longest < max(result.task.lengths):
            ax.axvline(result.task.longest, color=GREY, linestyle=":")
        ax.set_xticks(result.task.lengths)
        ax.set_ylim(-3, 103)
    right.axhline(100 / result.task.symbols, color=GREY, linestyle="--", linewidth=1)
    right.annotate("guessing", (result.task.lengths[0], 100 / result.task.symbols), (0, -10),
                   textcoords="offset points", color=GREY, fontsize=8)  # fmt: skip
    dress(left, "symbols in the sentence", "sentences right (%)")
    dress(right, "symbols in the sentence", "symbols right (%)")
    left.set_title("bands: 95 % intervals", fontsize=8, color=GREY, loc="left")
    right.set_title("dotted: the longest it was trained on", fontsize=8, color=GREY, loc="left")
    return _named(figure, left, 4)


def _scores(result: Scores) -> Any:
    figure = canvas(10.0, 3.2)
    time, memory, right = figure.subplots(1, 3)
    for number, kind in enumerate(KINDS):
        rows = result.of(kind)
        widths, shares = [row.d_k for row in rows], [result.figure(row) for row in rows]
        _line(time, widths, [1e3 * row.seconds for row in rows], number, kind)
        _line(memory, widths, [row.bytes / 2**20 for row in rows], number, kind)
        low, high = ([100 * getattr(share, side) for share in shares] for side in ("low", "high"))
        right.fill_between(widths, low, high, color=COLOURS[number], alpha=0.15, linewidth=0)
        _line(right, widths, [100 * share.value for share in shares], number, kind)
    for ax in (time, memory, right):
        _powers_of_two(ax, sorted({row.d_k for row in result.measured}))
    _log(time)
    _log(memory)
    right.axhline(100 / result.task.values, color=GREY, linestyle="--", linewidth=1)
    right.set_ylim(0, 103)
    dress(time, "d_k", "time (ms)")
    dress(memory, "d_k", "memory (MB)")
    dress(right, "d_k", "right answers (%)")
    right.set_title("dashed: guessing", fontsize=8, color=GREY, loc="left")
    return _named(figure, time, 3)


def _gradients(result: Gradients) -> Any:
    figure = canvas(9.0, 3.2)
    axes = figure.subplots(1, 3)
    columns = {
        "variance": "variance of the scores",
        "largest": "largest weight, mean",
        "jacobian": "‖∂weights/∂scores‖, mean",
    }
    for ax, (what, label) in zip(axes, columns.items(), strict=True):
        for number, scaled in enumerate((True, False)):
            rows = [row for row in result.measured if row.scaled == scaled]
            name = "q·k / √d_k" if scaled else "q·k"
            _line(ax, [row.d_k for row in rows], [getattr(row, what) for row in rows], number, name)
        _powers_of_two(ax, sorted({row.d_k for row in result.measured}))
        dress(ax, "d_k (log scale)", label)
        if what == "variance":
            _log(ax)
        else:
            ax.set_ylim(bottom=0)
    axes[1].set_ylim(0, 1.03)
    return _named(figure, axes[0], 2)


def _costs(result: Costs) -> Any:
    figure = canvas(8.8, 4.0)
    figure.get_layout_engine().set(wspace=0.08)
    left, right = figure.subplots(1, 2)
    for ax, what, unit in ((left, "seconds", 1e3), (right, "bytes", 2**-20)):
        for number, layer in enumerate(LAYERS):
            lengths, values = result.column(layer, what)
            _line(ax, lengths, [unit * value for value in values], number, layer)
        _powers_of_two(ax, sorted({row.length for row in result.measured}))
        _log(ax)
        _powers(ax, result, what, unit)
    dress(left, "words n (log scale)", "forward and backward (ms, log scale)")
    dress(right, "words n (log scale)", "most memory at a time (MiB, log scale)")
    return _named(figure, left, 3)


def _sinusoids(result: Sinusoids) -> Any:
    figure = canvas(8.8, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    painted = left.imshow(
        result.table_.T.numpy(), cmap="cividis", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    dress(left, "position", "dimension")
    left.grid(False)
    colour_bar(left, painted, "PE(position, dimension)", ink=INK)
    for number, place in enumerate(result.places):
        # The lines coincide: thinner ones on top keep the others visible.
        width = 1.2 + 2.4 * (len(result.places) - 1 - number)
        right.plot(result.distances, result.products[number].numpy(), color=COLOURS[number], linewidth=width)
        label, at = f"from position {place}", 0.95 - 0.08 * number
        right.text(0.97, at, label, transform=right.transAxes, ha="right", va="top", color=COLOURS[number])
    dress(right, "distance (words)", "dot product")
    return figure


def _line(ax: Any, x: list[int], y: list[float], number: int, name: str) -> None:
    ax.plot(x, y, MARKS[number] + "-", color=COLOURS[number], markersize=4, label=name)


def _powers(ax: Any, result: Costs, what: str, unit: float) -> None:
    """Exponents beside the ends of the lines, without overlap."""
    ends = sorted(
        (unit * result.column(layer, what)[1][-1], number, f"n^{result.power(layer, what):.1f}")
        for number, layer in enumerate(LAYERS)
    )
    low, high = ax.get_ylim()
    apart, at = (high / low) ** 0.045, 0.0
    for y, number, text in ends:
        at = max(y, at * apart)
        end = (result.column("self-attention", what)[0][-1], at)
        ax.annotate(text, end, (7, 0), textcoords="offset points", va="center", color=COLOURS[number], fontsize=8)


def _powers_of_two(ax: Any, values: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(values, [f"{n:,}" for n in values], fontsize=8)
    ax.minorticks_off()


def _log(ax: Any) -> None:
    """Log axis with plain numbers: 10ⁿ would need mathtext, which is off here."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 3.0)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,g}"))


def _named(figure: Any, ax: Any, across: int) -> Any:
    """One legend over all panels, in the page's colour of text."""
    lines, names = ax.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=across, frameon=False, labelcolor=INK, fontsize=9)
    return figure
