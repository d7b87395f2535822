"""Charts as inline SVG, light and dark, without script; pure."""

from specwatch.report.charts.drawing import STYLE, has_fonts, png
from specwatch.report.charts.histograms import histogram, sparkline
from specwatch.report.charts.speedups import forest, speedup_by_concurrency, speedup_by_load
from specwatch.report.charts.time_series import acceptance, latency, load, speedup_over_time

__all__ = [
    "STYLE",
    "acceptance",
    "forest",
    "has_fonts",
    "histogram",
    "latency",
    "load",
    "png",
    "sparkline",
    "speedup_by_concurrency",
    "speedup_by_load",
    "speedup_over_time",
]
