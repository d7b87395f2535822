"""Charts as inline SVG, light and dark, without script; pure."""

from specwatch.report.charts.drawing import STYLE
from specwatch.report.charts.histograms import histogram, sparkline
from specwatch.report.charts.speedups import speedup_by_concurrency, speedup_by_load
from specwatch.report.charts.time_series import acceptance, latency

__all__ = [
    "STYLE", "acceptance", "histogram", "latency", "sparkline", "speedup_by_concurrency",
    "speedup_by_load",
]  # fmt: skip
