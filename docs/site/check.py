"""Looks over a built site: every link and anchor leads somewhere, and nothing comes from a network.

Run as ``python docs/site/check.py build/site``; prints what is wrong and ends with 1.
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""By element: the attribute whose address a browser fetches by itself."""


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors it has."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down one element."""
        given = {name: value for name, value in attrs if value}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])


def faults(site: Path) -> list[str]:
    """Return a sentence for everything that is wrong in a folder of pages."""
    paths = [
        path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts
    ]  # the theme's templates
    pages = {path.resolve(): _read(path) for path in paths}
    found = [] if pages else [f"{site} holds no page"]
    for path, page in pages.items():
        far = [address for address in page.loads if urlsplit(address).netloc]
        found += [f"{path}: {address} would be fetched from a network" for address in far]
        for address in [*page.links, *page.loads]:
            found += _dead(path, address, pages)
    return found


def _dead(path: Path, address: str, pages: dict[Path, Page]) -> list[str]:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return []
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return [f"{path}: {address} leads nowhere"]
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return [f"{path}: {address} has no such anchor"]
    return []


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]))
    print("\n".join(wrong) if wrong else f"{sys.argv[1]}: every link and anchor is there")
    sys.exit(1 if wrong else 0)
