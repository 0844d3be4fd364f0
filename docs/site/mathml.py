"""Formulas as MathML, made when the site is built: browsers render it, and nothing is fetched for it.

The converter is docutils' own. A formula that it does not know is a warning, which ends the build.
"""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that ``html_math_renderer = "mathml"`` names."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{_converted(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _converted(node: nodes.Element, *, as_block: bool) -> str:
    source = node.astext().strip()
    try:
        return latex2mathml.tex2mathml(source, as_block=as_block)
    except MathError as error:
        _LOG.warning("this formula cannot be made MathML: %s (%s)", source, error, location=node)
        return f"<code>{source}</code>"
