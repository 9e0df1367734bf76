"""Reads Markdown as GitHub does: links, headings' anchors, code."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark").enable("table")
_URL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/[^\s<>\"{}|\\^`]*)?")


@dataclass(frozen=True)
class Page:
    """One file, parsed."""

    links: tuple[str, ...]
    anchors: frozenset[str]
    fences: tuple[tuple[str, str], ...]
    """Language and text of every fenced block."""
    spans: tuple[str, ...]
    """Inline code."""


@cache
def parse(file: Path) -> Page:
    """Parse one file."""
    links: list[str] = []
    fences: list[tuple[str, str]] = []
    spans: list[str] = []
    slugs: list[str] = []
    tokens = _PARSER.parse(file.read_text(encoding="utf-8"))
    for index, token in enumerate(tokens):
        if token.type == "fence":
            fences.append((token.info, token.content))
        for child in token.children or ():
            if child.type == "link_open":
                links.append(str(child.attrs["href"]))
            elif child.type == "image":
                links.append(str(child.attrs["src"]))
            elif child.type == "code_inline":
                spans.append(child.content)
        if token.type == "heading_open":
            slugs.append(_slug(tokens[index + 1]))
    anchors = {slug if slugs[:index].count(slug) == 0 else f"{slug}-{slugs[:index].count(slug)}"
               for index, slug in enumerate(slugs)}  # fmt: skip
    return Page(tuple(links), frozenset(anchors), tuple(fences), tuple(spans))


def _slug(heading: Token) -> str:
    text = "".join(child.content for child in heading.children or () if child.type in ("text", "code_inline"))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def broken_links(file: Path) -> list[str]:
    """Links of a file that lead nowhere in this tree, and URLs that are none."""
    return [link for link in parse(file).links if not _leads(file, link)]


def _leads(file: Path, link: str) -> bool:
    if link.startswith(("http:", "https:", "mailto:")):
        return _URL.fullmatch(link) is not None
    path, _, anchor = link.partition("#")
    target = (file.parent / path).resolve() if path else file
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in parse(target).anchors
