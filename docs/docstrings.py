"""Prepares docstrings for the API reference, which renders them as Markdown."""

import re
from typing import Any

from griffe import Extension, Object

# In a reference such as :class:`~pacdp.privacy.Guarantee` the tilde hides the module.
ROLE = re.compile(r":[a-z]+:`(?:~[\w.]*\.)?")
EXAMPLE = re.compile(r"^ *>>> .*(?:\n *\S.*)*", re.MULTILINE)


class DocstringsToMarkdown(Extension):
    """Applies :func:`to_markdown` to every docstring of the package."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    """Put the examples of a docstring into code blocks and remove reST roles.

    >>> to_markdown("A :class:`~pacdp.privacy.Guarantee` for :func:`calibrate`.")
    'A `Guarantee` for `calibrate`.'
    >>> to_markdown(">>> 1 + 1\\n2").splitlines()
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(r"```pycon\n\g<0>\n```", ROLE.sub("`", docstring))
