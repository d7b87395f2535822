"""The report: what speculation did over some days, as figures and as pages; pure."""
