"""Charts as inline SVG, light and dark, without script; pure."""

from specwatch.charts.acceptance_over_time import acceptance
from specwatch.charts.accepted_lengths import histogram
from specwatch.charts.latency_over_time import latency
from specwatch.charts.load_bins import speedup_by_load
from specwatch.charts.sparklines import sparkline
from specwatch.charts.style import STYLE

__all__ = ["STYLE", "acceptance", "histogram", "latency", "sparkline", "speedup_by_load"]
