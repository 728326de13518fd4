"""A notebook as one HTML file that needs nothing else: no network, no scripts, figures inside.

nbconvert's own pages load require.js, MathJax and Mermaid from a CDN. Figures here are pictures, so
the page needs no script at all; it is laid out for a phone first, and code is folded away.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from mmlab.notebook import finding

_TEMPLATE = r"""
{%- extends 'basic/index.html.j2' -%}
{% block input_group %}<details class="code"><summary>code</summary>{{ super() }}</details>
{% endblock %}
{% block stream_stdout %}
{%- if output.text.count("\n") > 15 -%}
<details class="code"><summary>log of {{ output.text.count("\n") }} lines</summary>
{{- super() -}}</details>
{%- else -%}{{ super() }}{%- endif -%}
{% endblock %}
{% block in_prompt %}{% endblock %}
{% block empty_in_prompt %}{% endblock %}
{% block output_area_prompt %}{% endblock %}
"""
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: #fff; color: #222;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2rem; }
img { display: block; max-width: 100%; height: auto; margin: 1rem 0; }
pre { overflow-x: auto; font-size: .85rem; line-height: 1.45; margin: .5rem 0; }
.output_stream pre { margin: 0; }
blockquote { margin: 1rem 0; padding: .1rem 1rem; border-left: .3rem solid #1789b5;
  font-size: 1.1rem; }
.output_stderr pre { color: #666; }
.output_error pre { background: #fdf0ef; padding: .75rem; }
.output_html, .output_markdown, .rendered_html { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .75rem 0;
  display: block; width: max-content; max-width: 100%; overflow-x: auto;
  background:  /* a shadow at the side where there is more, besides the bar */
    linear-gradient(to right, #fff 1rem, #fff0) left / 2.5rem 100% no-repeat local,
    linear-gradient(to left, #fff 1rem, #fff0) right / 2.5rem 100% no-repeat local,
    linear-gradient(to right, #0004, #0000) left / .7rem 100% no-repeat scroll,
    linear-gradient(to left, #0004, #0000) right / .7rem 100% no-repeat scroll; }
table::-webkit-scrollbar { height: .6rem; }
table::-webkit-scrollbar-track { background: #eee; }
table::-webkit-scrollbar-thumb { background: #999; border-radius: .3rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #ddd; text-align: right;
  white-space: nowrap; border-left: 0; border-right: 0; border-top: 0; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
details.code { margin: .5rem 0; color: #666; font-size: .85rem; }
details.code summary { cursor: pointer; }
.highlight { background: #f6f6f6; padding: .25rem .75rem; border-radius: .25rem; }
.anchor-link { display: none; }
@media (max-width: 45rem) { table { font-size: .72rem; } th, td { padding: .25rem .3rem; } }
@media print { details.code { display: none; } img, tr { break-inside: avoid; }
  body { padding: 0; } }
"""
_ACTIVE = re.compile(r"<script\b.*?</script\s*>|<script\b[^>]*/>|<link\b[^>]*>", re.S | re.I)


def to_html(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write a notebook with its outputs as one self-contained page. Returns the page's path.

    `out` defaults to `report.html` beside the notebook.
    """
    from jinja2 import DictLoader
    from nbconvert.exporters import HTMLExporter
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    source = Path(path)
    target = Path(out) if out is not None else source.with_name("report.html")
    title = finding.title(source)
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        extra_loaders=[DictLoader({"page.html.j2": _TEMPLATE})],
        template_file="page.html.j2",
        template_name="basic",
        embed_images=True,
        preprocessors=[CoalesceStreamsPreprocessor],  # a log comes in many pieces
    )
    body, _ = exporter.from_filename(str(source))
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{colours}\n{_STYLE}</style>\n</head>\n"
        f"<body>\n{_ACTIVE.sub('', body)}\n</body>\n</html>\n"
    )
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(page, encoding="utf-8")
    draft.replace(target)
    return target
