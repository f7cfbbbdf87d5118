"""Check a built site: every link and anchor in it leads somewhere, and no page loads anything from elsewhere.

zensical checks the links that people wrote in Markdown. This one reads what a browser will: links in HTML, those of the
API's pages, of styles and of scripts.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser fetches without being asked; an ordinary link may lead anywhere.
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
REMOTE_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(https?:|//)""")


class Page(HTMLParser):
    """The identifiers of a page and its references, each with whether it is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names, self.references = set[str](), list[tuple[str, bool]]()
        self.diagrams = 0  # mermaid's, for which the theme would load a script from elsewhere
        self.fences = 0  # of code blocks that the site did not take for such
        self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self._code += tag == "code"
        self.names |= {value for key in ("id", "name") if (value := attributes.get(key))}
        self.diagrams += "mermaid" in (attributes.get("class") or "").split()
        for key in ("href", "src", "data"):
            if (value := attributes.get(key)) and attributes.get("rel") != "canonical":
                self.references.append((value, (tag, key) in LOADED))

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag == "code"

    def handle_data(self, data: str) -> None:
        self.fences += "```" in data and not self._code


def faults(site: Path) -> list[str]:
    """What is wrong with the site, a line each: page, reference, reason."""
    read = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    messages = []
    for path, page in read.items():
        page_path = path.relative_to(site)
        if page.diagrams:
            messages.append(f"{page_path}: a Mermaid diagram, whose script would be loaded from elsewhere; use an SVG")
        if page.fences:
            messages.append(f"{page_path}: a line that begins with ``` opens no code block; look at what follows it")
        for reference, loaded in page.references:
            if reason := _fault(site, path, reference, loaded, read):
                messages.append(f"{page_path}: {reference}: {reason}")
    for style in sorted(site.rglob("*.css")):
        if remote := REMOTE_STYLE.search(style.read_text()):
            messages.append(f"{style.relative_to(site)}: loads from {remote[1]}")
    return messages


def _fault(site: Path, path: Path, reference: str, loaded: bool, read: dict[Path, Page]) -> str | None:
    parts = urlsplit(reference)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if loaded else None
    if path.name == "404.html":  # its links are those of a server's root
        return None
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        return "no such file in the site"
    anchor = unquote(parts.fragment)
    if anchor and target in read and anchor not in read[target].names:
        return "no such anchor"
    return None
