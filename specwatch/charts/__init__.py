"""Charts as inline SVG, light and dark, without script; pure."""
