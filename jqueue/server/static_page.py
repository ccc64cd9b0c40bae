"""The page as one HTML file without a server: its script reads the queue's object from the store itself."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from html import escape

from jqueue.server import page

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def static_page(object_url: str) -> str:
    """Return the page, which reads an object and never changes it.

    Args:
        object_url: public or presigned URL of the object, or its path beside the page. If it is empty, the page asks.
    """
    script = "\n".join(_EXPORT.sub("", _IMPORT.sub("", page.read(name))) for name in page.ALONE)
    style = page.read(page.STYLE)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "connect-src *; base-uri 'none'; form-action 'none'"
    )
    found = page.read("index.html")
    head = (
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">'
    )
    for before, after in (
        ('<html lang="en">', f'<html lang="en" data-object="{escape(object_url)}">'),
        ('<meta charset="utf-8">', head),
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        ('<script type="module" src="start.js"></script>', f'<script type="module">{script}</script>'),
    ):
        assert before in found
        found = found.replace(before, after)
    return found


def _digest(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
