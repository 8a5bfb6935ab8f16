"""report: figures of what an audit found."""

from uncork.report.hull_plot import check_plot, plot_hull

__all__ = ["check_plot", "plot_hull"]
