"""What a reader sees of GitHub's Markdown, for tests: parsed by a library, nothing but what was meant let through."""

import re

from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

GITHUB = MarkdownIt("commonmark").enable("table")
NASTY = st.text(alphabet=st.sampled_from(list("ab_*`|\\<>[]()!&;#~$^:/@\n\r\t\u2028µ× -+.1")), max_size=30)
ANY_TEXT = st.one_of(NASTY, st.text(max_size=30))
_LINKS = ("link_open", "link_close")
CALLS = re.compile(r"(?<![^\W_])@[A-Za-z0-9]|#\d|\bGH-\d")
"""What GitHub makes a mention or a reference of, in the text as shown."""


def shown(token: Token, *allowed: str, owner: str = "\0") -> str:
    """The text a reader sees of inline content; anything but text, code and what is allowed is an intruder, and so is a
    mention of anybody but the owner."""
    parts = []
    for child in token.children or []:
        assert child.type in ("text", "code_inline", "text_special", *allowed), child
        if child.type == "text":
            assert not CALLS.search(child.content.replace(owner, "")), child
        parts.append(child.content)
    return "".join(parts).replace("\u200b", "")


def tables(markdown: str, *allowed: str, owner: str = "\0") -> list[list[list[str]]]:
    """Rows of every table, with links let through."""
    found: list[list[list[str]]] = []
    inside = False
    for token in GITHUB.parse(markdown):
        if token.type == "table_open":
            found.append([])
        inside = {"table_open": True, "table_close": False}.get(token.type, inside)
        if token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and inside:
            found[-1][-1].append(shown(token, *_LINKS, *allowed, owner=owner))
    return found


def cells(markdown: str) -> list[list[str]]:
    """Rows of the one table that the Markdown must be."""
    tokens = GITHUB.parse(markdown)
    assert [t.type for t in tokens if t.level == 0] == ["table_open", "table_close"]
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(shown(token))
    return rows


def flat(value: str) -> str:
    """Text on one line, as reports print it."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+", " ", value.replace("\u200b", "")).strip()
