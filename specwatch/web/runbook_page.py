"""The runbook as a page that needs nothing else: no script, no font, no address."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from specwatch.alerts.alert import runbook_anchor
from specwatch.generate.runbook import INTRODUCTION, PARTS, TITLE, Section

MEDIA_TYPE = "text/html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""The page's Content-Security-Policy."""

_STYLE = """
:root { color-scheme: light dark; --edge: #8886; --soft: #8882; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; padding-top: .5rem; border-top: 1px solid var(--edge); }
h2 a { color: inherit; text-decoration: none; }
h3 { font-size: 1rem; margin: 1rem 0 0; }
p { margin: .25rem 0; }
code { background: var(--soft); padding: .1em .3em; border-radius: .2em; }
nav ul { columns: 18rem; padding-left: 1.2rem; }
section:target { outline: 2px solid; outline-offset: .5rem; }
"""


def page(sections: Iterable[Section]) -> str:
    """The page as HTML, in the reader's dark or light; whatever is in a section is text."""
    sections = list(sections)
    listed = "\n".join(
        f'<li><a href="#{escape(runbook_anchor(section.name))}">{escape(section.name)}</a></li>'
        for section in sections
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(TITLE)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(TITLE)}</h1>
<p>{_text(INTRODUCTION)}</p>
<nav>
<ul>
{listed}
</ul>
</nav>
{"".join(map(_section, sections))}\
</body>
</html>
"""


def _section(section: Section) -> str:
    anchor, name = escape(runbook_anchor(section.name)), escape(section.name)
    parts = "".join(
        f"<h3>{escape(words)}</h3>\n<p>{_text(getattr(section, field))}</p>\n"
        for words, field in PARTS
    )
    return (
        f'<section id="{anchor}">\n<h2><a href="#{anchor}">{name}</a></h2>\n'
        f"<p>Severity: {escape(section.severity)}.</p>\n{parts}</section>\n"
    )


def _text(sentences: str) -> str:
    """Sentences with what stands between backticks as code."""
    pieces = sentences.split("`")
    if len(pieces) % 2 == 0:  # a backtick that is alone is just one
        return escape(sentences)
    return "".join(
        f"<code>{escape(piece)}</code>" if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    )
