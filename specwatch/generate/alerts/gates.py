"""What expressions and descriptions of alerts have in common.

Expressions sum up over scrapers, so that two daemons that watch one target make one alert of it.
The gates are for the end of an expression: without them an alert would speak of idle traffic, or
of speculation that is off on purpose.
"""

from __future__ import annotations

import textwrap

from specwatch.domain.model import ALL_TEMPERATURES

MODEL = "target, model_name"
SERIES = f"{MODEL}, temperature"

LEAST_DRAFTS = 0.5
"""Drafts per second of a model over the last minutes, below which nothing is said of it."""
LEAST_BUCKET_DRAFTS = 0.2
"""The same for one temperature bucket."""
LEAST_REQUESTS = 0.02
"""Finished requests per second: six in the five minutes over which they are counted."""

KEPT = "5m"
"""For how long an alert outlasts a gap, such as a restart of the daemon."""

FOUR_DIGITS = 'printf "%.4g"'

ALL = f'temperature="{ALL_TEMPERATURES}"'

SPECULATING = f"""\
and on ({MODEL})
  max by ({MODEL}) (specwatch_speculation_enabled) == 1"""
"""The engine serves the model with speculation: not when that is off, on purpose or not."""

DRAFTING = f"""\
and on ({MODEL})
  max by ({MODEL}) (specwatch_drafts_per_second{{{ALL}}}) > {LEAST_DRAFTS}"""

DRAFTING_IN_BUCKET = f"""\
and on ({SERIES})
  max by ({SERIES}) (specwatch_drafts_per_second) > {LEAST_BUCKET_DRAFTS}"""

SERVING = f"""\
and on ({MODEL})
  max by ({MODEL}) (specwatch_requests_per_second{{{ALL}}}) > {LEAST_REQUESTS}"""


AT = "{{ with $labels.temperature }} at temperature {{ . }}{{ end }}"
"""A part of a summary or description, for alerts whose expression is :func:`bucketed`."""


def joined(*parts: str) -> str:
    """An expression of several lines."""
    return "\n".join(parts)


def bucketed(expr: str) -> str:
    """An expression with the label temperature for buckets only, as the daemon's own alerts are."""
    return joined(
        "label_replace(",
        textwrap.indent(expr, "  ") + ",",
        f'  "temperature", "", "temperature", "{ALL_TEMPERATURES}"',
        ")",
    )


def asked(query: str, *labels: str, shown: str = FOUR_DIGITS, nothing: str = "?") -> str:
    """A part of a description: what a query finds when the alert is told, or ``nothing``.

    Each ``%q`` of the query becomes the value of one of the alert's ``labels``, in their order; no
    temperature is that of all requests. ``shown`` is the function of templates that writes the
    number.
    """
    text = query.replace('"', '\\"')
    values = "".join(
        f' (or $labels.{label} "{ALL_TEMPERATURES}")'
        if label == "temperature"
        else f" $labels.{label}"
        for label in labels
    )
    return (
        f'{{{{ with printf "{text}"{values} | query }}}}'
        f"{{{{ . | first | value | {shown} }}}}{{{{ else }}}}{nothing}{{{{ end }}}}"
    )


def servers(family: str, by: str) -> str:
    """The value of the label ``servers``: ``one`` where one server only, told apart ``by`` these
    labels, had the alert's model in a family within the hour; else ``several``.

    Where both know one server of a name, an alert of specwatch's and one on stock vLLM metrics are
    of the same.
    """
    query = f"count(count by ({by}) (last_over_time({family}{{model_name=%q}}[1h]))) == 1"
    return (
        f'{{{{ if printf "{query}" $labels.model_name | query }}}}one{{{{ else }}}}several'
        "{{ end }}"
    )


def said(shown: str = FOUR_DIGITS) -> str:
    """A part of a description: the alert's own value."""
    return f"{{{{ $value | {shown} }}}}"
