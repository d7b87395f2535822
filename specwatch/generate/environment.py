"""The templates of generated files, in the folder ``templates``.

Expressions are between ``<<`` and ``>>``, statements between ``<%`` and ``%>``, because Prometheus
and Grafana use braces themselves.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, /, **values: object) -> str:
    """The template of that file name with these values; all that it uses must be given."""
    return _environment().get_template(name).render(values)


def render_text(text: str, values: dict[str, Any]) -> str:
    """``text`` as a template, with these values."""
    return _environment().from_string(text).render(values) if "<<" in text else text


def names(folder: str) -> list[str]:
    """The names of all templates in that folder, which ends in a slash, and in those within it."""
    return _environment().list_templates(filter_func=lambda name: name.startswith(folder))


def source(name: str) -> str:
    """The template of that file name as it was written."""
    from jinja2 import PackageLoader

    return PackageLoader("specwatch.generate").get_source(_environment(), name)[0]


def parsed(text: str) -> Any:
    """What is in a YAML text of our own; by libyaml, if it is there, in a tenth of the time."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


@functools.cache
def _environment() -> Environment:
    # The daemon needs it for the page of the runbook only.
    import jinja2

    return jinja2.Environment(  # noqa: S701 - plain text, not HTML
        loader=jinja2.PackageLoader("specwatch.generate"),
        undefined=jinja2.StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
