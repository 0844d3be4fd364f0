"""A report as a parser sees it: elements with their attributes and texts, in order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None]
    children: list["Node"] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def all(self) -> Iterator["Node"]:
        for child in self.children:
            yield child
            yield from child.all()

    def every(self, tag: str, **attributes: str) -> list["Node"]:
        """Return all elements below of this kind, whose attributes hold these words."""
        return [
            node
            for node in self.all()
            if node.tag == tag
            and all(
                value in (node.attributes.get(key.rstrip("_")) or "").split()
                for key, value in attributes.items()
            )
        ]

    def by_id(self, name: str) -> "Node":
        (found,) = [each for each in self.all() if each.attributes.get("id") == name]
        return found

    @property
    def text(self) -> str:
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


def check_whole(root: Node) -> None:
    """Refuse a page that refers to anything outside, or whose pictures and tables cannot be heard."""
    nodes = list(root.all())
    identities = [each.attributes["id"] for each in nodes if "id" in each.attributes]
    assert len(identities) == len(set(identities))
    for node in nodes:
        assert not {"src", "style", "srcset", "action"} & set(node.attributes)
        assert not [key for key in node.attributes if key.startswith("on")]
        if "href" in node.attributes:
            assert (node.attributes["href"] or "")[1:] in identities
    assert {each.tag for each in nodes} <= {
        "html", "head", "meta", "title", "style", "script", "body", "a", "header", "nav", "main",
        "section", "footer", "h1", "h2", "h3", "p", "ul", "ol", "li", "dl", "dt", "dd", "div", "span",
        "b", "bdi", "code", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td", "details",
        "summary", "sup", "figure", "figcaption", "svg", "desc", "line", "rect", "path", "text",
    }  # fmt: skip
    assert len(root.every("script")) == 1
    for picture in root.every("svg", role="img"):
        assert [each.tag for each in picture.children[:2]] == ["title", "desc"]
        assert all(each.text.strip() for each in picture.children[:2])
    for table in root.every("table"):
        assert table.every("caption")[0].text
        assert len({len(row.children) for row in table.every("tr")}) == 1


def words(node: Node) -> str:
    return " ".join(node.text.replace("\u00a0", " ").split())
