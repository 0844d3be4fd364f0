"""A report as a parser sees it: elements with their attributes and texts, in order."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


@dataclass
class Node:
    """An element."""

    tag: str
    attributes: dict[str, str | None]
    children: list["Node"] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def every(self, tag: str, **attributes: str) -> list["Node"]:
        """Return all elements below of this kind, whose attributes hold these words."""
        found = []
        for child in self.children:
            if child.tag == tag and all(
                value in (child.attributes.get(key.rstrip("_")) or "").split()
                for key, value in attributes.items()
            ):
                found.append(child)
            found += child.every(tag, **attributes)
        return found

    def by_id(self, name: str) -> "Node":
        """Return the one element with this id."""
        (found,) = [each for each in self.all() if each.attributes.get("id") == name]
        return found

    def all(self) -> list["Node"]:
        """Return all elements below, in order."""
        return [node for child in self.children for node in (child, *child.all())]

    @property
    def text(self) -> str:
        """All text below."""
        return "".join(self.pieces)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"{tag} ends while {self.open[-1].tag} is open"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for node in self.open:
            node.pieces.append(data)


def parsed(page: str) -> Node:
    """Return the page's root; an element that ends out of order fails."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert len(parser.open) == 1, "every element must end"
    return parser.open[0]


def words(node: Node) -> str:
    return " ".join(node.text.replace("\u00a0", " ").split())
