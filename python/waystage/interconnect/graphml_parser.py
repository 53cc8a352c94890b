"""GraphML's XML to plain elements, with line numbers.

Arrives: untrusted bytes.
Leaves: nodes and edges with their data by attribute name, or `GraphmlError` with a line.
Must not know: what the attributes mean.

Document type declarations are refused: GraphML needs none, and they enable entity expansion and file inclusion attacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

MAX_TEXT = 65_536  # characters of one value; the longest sensible one is a name
MAX_ID = 256
MAX_DEPTH = 64  # GraphML needs five levels; extensions of editors nest a few more
MAX_KEYS = 1024  # declared attributes; an editor's file has some dozens
MAX_ELEMENTS = 1_000_000  # nodes and edges together: as plain objects they take a gigabyte
MAX_DEFAULTS = 32  # each default goes to every node or edge


class GraphmlError(ValueError):
    """Not well-formed, or no GraphML; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(eq=False)
class Element:
    """A node or an edge; an edge's id is made of its ends."""

    kind: str
    id: str
    line: int
    source: str = ""
    target: str = ""
    directed: bool = False
    data: dict[str, str] = field(default_factory=dict)


@dataclass
class Graph:
    name: str = ""
    nodes: list[Element] = field(default_factory=list)
    edges: list[Element] = field(default_factory=list)


@dataclass
class _Key:
    target: str
    name: str
    default: str | None = None


def parse(data: bytes) -> Graph:
    """Parse untrusted bytes. Raises GraphmlError, and no other exception."""
    handler = _Handler()
    if not data.strip():
        raise GraphmlError(1, "the file is empty: it should hold a GraphML document")
    try:
        handler.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise GraphmlError(error.lineno, f"not well-formed XML: {expat.ErrorString(error.code)}") from None
    except (ValueError, LookupError) as error:
        # An encoding declaration that Python cannot follow; our own errors pass through.
        if isinstance(error, GraphmlError):
            raise
        raise GraphmlError(handler.parser.CurrentLineNumber, f"cannot be read: {error}") from None
    if not handler.saw_graph:
        raise GraphmlError(1, "there is no <graph> in the document")
    return handler.finish()


class _Handler:
    def __init__(self) -> None:
        self.saw_graph = False
        self._graph = Graph()
        self._keys: dict[str, _Key] = {}
        self._directed_default = False
        self._stack: list[str] = []
        self._element: Element | None = None
        self._key: _Key | None = None
        self._data_name: str | None = None
        self._text: list[str] = []
        self._text_size = 0
        self._elements = 0
        self._defaults = 0
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        parser.buffer_text = True
        self.parser = parser

    def finish(self) -> Graph:
        """Fill in the keys' defaults, which may be declared after use."""
        for elements, kind in ((self._graph.nodes, "node"), (self._graph.edges, "edge")):
            keys = [key for key in self._keys.values() if key.target in (kind, "all")]
            defaults = [(key.name, key.default) for key in keys if key.default is not None]
            for element in elements:
                for name, value in defaults:
                    element.data.setdefault(name, value)
        return self._graph

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rsplit(" ", 1)[-1]
        parent = self._stack[-1] if self._stack else ""
        self._stack.append(name)
        if len(self._stack) > MAX_DEPTH:
            self._refuse(f"elements are nested more than {MAX_DEPTH} levels deep, which no topology needs")
        if not parent and name != "graphml":
            self._refuse(f"the document is <{name[:40]}>, not <graphml>")
        if name == "key":
            self._start_key(attributes)
        elif name == "default" and self._key is not None:
            self._begin_text()
        elif name == "graph":
            self._start_graph(parent, attributes)
        elif name == "node" and parent == "graph":
            self._count_element()
            self._element = Element("node", self._required(attributes, "id", name), self._line)
            self._graph.nodes.append(self._element)
        elif name == "edge" and parent == "graph":
            self._start_edge(attributes)
        elif name == "hyperedge":
            self._refuse("hyperedges are not supported: a link joins two nodes")
        elif name == "data" and parent in ("node", "edge", "graph"):
            key = self._keys.get(self._required(attributes, "key", name))
            if key is None:
                self._refuse(f"<data> has the key {ascii(attributes['key'])[:40]}, which no <key> declares")
            self._data_name = key.name
            self._begin_text()

    def _start_key(self, attributes: dict[str, str]) -> None:
        key_id = self._required(attributes, "id", "key")
        if len(self._keys) >= MAX_KEYS:
            self._refuse(f"more than {MAX_KEYS} keys are declared: a topology needs ten")
        self._key = _Key(attributes.get("for", "all"), attributes.get("attr.name", key_id))
        self._keys[key_id] = self._key

    def _start_graph(self, parent: str, attributes: dict[str, str]) -> None:
        if parent != "graphml" or self.saw_graph:
            self._refuse("there is more than one <graph>: a topology is one graph without nested ones")
        self.saw_graph = True
        self._directed_default = attributes.get("edgedefault") == "directed"
        self._graph.name = attributes.get("id", "")

    def _start_edge(self, attributes: dict[str, str]) -> None:
        self._count_element()
        source = self._required(attributes, "source", "edge")
        target = self._required(attributes, "target", "edge")
        directed = attributes.get("directed", "true" if self._directed_default else "false") == "true"
        self._element = Element("edge", f"{source}-{target}", self._line, source, target, directed)
        self._graph.edges.append(self._element)

    def _count_element(self) -> None:
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            self._refuse(f"there are more than {MAX_ELEMENTS:,} nodes and edges: give a smaller topology")

    def _end(self, tag: str) -> None:
        name = self._stack.pop()
        if name == "data" and self._data_name is not None:
            value = "".join(self._text).strip()
            if self._element is not None:
                self._element.data[self._data_name] = value
            elif self._data_name == "name":
                self._graph.name = value
            self._data_name = None
        elif name == "default" and self._key is not None:
            self._defaults += 1
            if self._defaults > MAX_DEFAULTS:
                self._refuse(
                    f"more than {MAX_DEFAULTS} keys have a default: write the values at the nodes and edges"
                )
            self._key.default = "".join(self._text).strip()
        elif name == "key":
            self._key = None
        elif name in ("node", "edge"):
            self._element = None

    def _begin_text(self) -> None:
        self._text, self._text_size = [], 0

    def _characters(self, text: str) -> None:
        if self._data_name is None and (self._key is None or self._stack[-1] != "default"):
            return
        self._text_size += len(text)
        if self._text_size > MAX_TEXT:
            self._refuse(f"a value is longer than {MAX_TEXT} characters")
        self._text.append(text)

    def _doctype(self, *_: object) -> None:
        self._refuse("the document has a DOCTYPE, which is refused: remove it, GraphML needs none")

    def _required(self, attributes: dict[str, str], name: str, element: str) -> str:
        value = attributes.get(name, "")
        if not value or len(value) > MAX_ID or not value.isprintable():
            self._refuse(f"<{element}> needs the attribute {name}, of 1 to {MAX_ID} printable characters")
        return value

    @property
    def _line(self) -> int:
        return self.parser.CurrentLineNumber

    def _refuse(self, message: str) -> NoReturn:
        raise GraphmlError(self._line, message)
