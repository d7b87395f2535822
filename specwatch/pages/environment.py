"""The templates of the pages: values are escaped, and a missing value is an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from specwatch.report.charts import STYLE
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, **values: Any) -> str:
    """A template of ``templates``, with these values.

    Text in values is escaped unless it is ``markupsafe.Markup``. Filters are the functions of
    :mod:`specwatch.wording.figures`, ``shown``, ``sentence`` and ``clean`` for foreign text,
    ``moment`` for Unix times in UTC, and ``coded`` for sentences with code between backticks.
    """
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> Environment:
    # Imported for the first page: a daemon without viewers does not need it.
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("specwatch.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(FILTERS)
    made.globals["chart_style"] = markup(STYLE)
    return made


def markup(trusted: str) -> Markup:
    """Trusted markup, which is not escaped."""
    from markupsafe import Markup

    return Markup(trusted)  # noqa: S704


def coded(sentences: str) -> Markup:
    """Sentences with code between backticks; a single backtick stays as it is."""
    pieces = sentences.split("`")
    if len(pieces) % 2 == 0:
        return markup(escape(sentences))
    return markup(
        "".join(
            f"<code>{escape(piece)}</code>" if index % 2 else escape(piece)
            for index, piece in enumerate(pieces)
        )
    )


def _sentence(text: str) -> str:
    return shown(text, LONGEST_SENTENCE)


FILTERS: dict[str, Callable[..., str]] = {
    **{
        function.__name__: function
        for function in (
            figures.number,
            figures.compact,
            figures.percent,
            figures.seconds,
            figures.span,
            figures.counted,
            figures.moment,
        )
    },
    "shown": shown,
    "coded": coded,
    "sentence": _sentence,
    "clean": clean,
}
