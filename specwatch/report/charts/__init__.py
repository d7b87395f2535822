"""Charts as inline SVG, light and dark, without script; pure."""

from specwatch.report.charts.acceptance_over_time import acceptance
from specwatch.report.charts.accepted_lengths import histogram
from specwatch.report.charts.latency_over_time import latency
from specwatch.report.charts.load_bins import speedup_by_load
from specwatch.report.charts.sparklines import sparkline
from specwatch.report.charts.style import STYLE

__all__ = ["STYLE", "acceptance", "histogram", "latency", "sparkline", "speedup_by_load"]
