"""Strict YAML: plain data with the line of every key, or one sentence that says what to mend and where.

Read on pyyaml's event level, so nothing is constructed from tags, and no anchor, alias or merge key is expanded.
Scalars are `true`/`false`, plain decimal integers and floats (`1e-6` included, which YAML 1.1 reads as text), or text.
What readers of YAML 1.1 and 1.2 understand differently (`yes`, `010`, `1_000`, `1:30`, dates, `~`) is refused.
"""

import math
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from harness.errors import UserError

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_DIGITS = 18

Loc = tuple[str | int, ...]
"""Where a value is: mapping keys and list indices from the top, as in pydantic's errors."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NULL = {"", "~", "null", "Null", "NULL"}
_SURPRISE = re.compile(r"[-+]?\.?(nan|NaN|NAN|inf|Inf|INF|Infinity|infinity)|[-+]?0[oO]?[0-9_]+")
"""Surprises that pyyaml's own table of YAML 1.1 scalars lacks."""
_YAML_1_1 = yaml.resolver.Resolver()
_DIRECTIONS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_TEXT_TAG = "tag:yaml.org,2002:str"


def shown(path: Path) -> str:
    """The path as errors print it: relative to the working directory where it lies below it."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError, RuntimeError):  # the last for a loop of links, before Python 3.13
        return path.as_posix()


Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
_FAST: Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where pyyaml was built with libyaml; the same events but for what is taken by libyaml alone."""
_TAKEN_BY_LIBYAML_ALONE = re.compile(r"\t")
"""Tabs between tokens, which pyyaml refuses."""


@dataclass(frozen=True)
class Document:
    """One file as plain data (dict, list, str, bool, int, float) with the line of every key and list item."""

    path: Path
    data: dict[str, Any]
    lines: dict[Loc, int]
    """1-based line of each mapping key and each list item; `()` is the first line of the file's mapping."""
    refused: tuple[tuple[Loc, int, str], ...] = ()
    """Values that are not strict YAML, with line and sentence; `data` holds their text."""

    def known(self, loc: Loc) -> Loc:
        """The longest beginning of `loc` that stands in the file."""
        while loc not in self.lines:
            loc = loc[:-1]
        return loc

    def place(self, loc: Loc = ()) -> str:
        """`file:line` of the key or item, or of the nearest thing above it that stands in the file."""
        return f"{shown(self.path)}:{self.lines[self.known(loc)]}"


def read(path: Path) -> Document:
    """Read one file; raises `UserError` with file, line and fix where it cannot be read on from."""
    text = _text(path)
    with suppress(UserError):  # libyaml names some places and characters less well: its refusals are said by the other
        if not _TAKEN_BY_LIBYAML_ALONE.search(text):
            return _Reader(path, text, _FAST).document()
    return _Reader(path, text, yaml.SafeLoader).document()


def load(path: Path) -> Document:
    """Read one file; raises `UserError` with file, line and fix for anything that is not strict YAML."""
    document = read(path)
    if document.refused:
        raise UserError("\n".join(f"{shown(path)}:{line}: {sentence}" for _, line, sentence in document.refused))
    return document


def _text(path: Path) -> str:
    place = shown(path)
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{place}: is not a file; name a YAML file.")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{place}: cannot be read ({reason}); check the path.") from error
    if len(raw) > MAX_BYTES:
        raise UserError(f"{place}:1: the file is larger than {MAX_BYTES // 1024} KiB; split it or shorten it.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{place}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8."
        ) from error


class _Reader:
    """Builds plain data from pyyaml's events."""

    def __init__(self, path: Path, text: str, loader: Loader) -> None:
        self.path = path
        self.loader = loader
        self.text = text
        self.lines: dict[Loc, int] = {}
        self.line = 1
        self.refused: list[tuple[Loc, int, str]] = []
        self.events = self._events()

    def refuse(self, line: int, sentence: str) -> NoReturn:
        """Stop here, with all that was found on the way."""
        found = [*((number, said) for _, number, said in self.refused), (line, sentence)]
        raise UserError("\n".join(f"{shown(self.path)}:{number}: {said}" for number, said in found))

    def note(self, loc: Loc, sentence: str) -> None:
        """Something is wrong on this line, and the rest can be read all the same."""
        self.refused.append((loc, self.line, sentence))

    def document(self) -> Document:
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            self.refuse(1, "the file is empty; write at least one `key: value`.")
        root = next(self.events)
        if not isinstance(root, yaml.MappingStartEvent):
            self.refuse(self.line, "the file must be a mapping; begin with `key: value` lines.")
        self.lines[()] = self.line
        data = self._mapping(())
        next(self.events)
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            self.refuse(self.line, "a second document begins here; keep one document per file.")
        return Document(self.path, data, self.lines, tuple(self.refused))

    def _events(self) -> Iterator[yaml.Event]:
        """pyyaml's events without the stream start, each checked for anchors and tags; keeps `line` current."""
        try:
            for event in yaml.parse(self.text, Loader=self.loader):
                self.line = event.start_mark.line + 1 if event.start_mark else self.line
                if isinstance(event, yaml.StreamStartEvent):
                    continue
                anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
                if anchor is not None:
                    sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
                    self.refuse(
                        self.line, f"`{sign}{anchor}`: anchors and aliases are not allowed; write the value out."
                    )
                if tag is not None:
                    self.refuse(self.line, f"`{tag}`: tags are not allowed; write a plain value.")
                yield event
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.refuse(mark.line + 1 if mark else self.line, _plain(error.problem or error.context or "unreadable"))
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            code = error.character if isinstance(error.character, int) else ord(error.character[:1])
            self.refuse(line, f"character U+{code:04X} is not allowed in YAML; remove it.")
        except (ValueError, OverflowError):  # pyyaml calls chr() on \U escapes unchecked
            self.refuse(self.line, "an escape in double quotes names no character; correct it or use single quotes.")

    def _value(self, event: yaml.Event, loc: Loc) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, loc)
        if len(loc) >= MAX_DEPTH:
            self.refuse(self.line, f"values are nested deeper than {MAX_DEPTH} levels; flatten them.")
        return self._mapping(loc) if isinstance(event, yaml.MappingStartEvent) else self._sequence(loc)

    def _mapping(self, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = self.line
            if not isinstance(event, yaml.ScalarEvent):
                self.refuse(line, "a list or mapping cannot be a key; write a text key.")
            if event.value == "<<" and not event.style:
                self.refuse(line, "`<<`: merge keys are not allowed; write the keys out.")
            key = self._scalar(event, loc)
            if self.refused and self.refused[-1][:2] == (loc, line):
                self.refuse(line, self.refused.pop()[2])
            if not isinstance(key, str):
                self.refuse(line, f"key `{event.value}` is not text; put it in quotes.")
            if key in data:
                first = self.lines[(*loc, key)]
                self.note((*loc, key), f"key `{key}` stands here a second time (first on line {first}); keep one.")
                self._value(next(self.events), (*loc, key, "again"))
                continue
            self.lines[(*loc, key)] = line
            data[key] = self._value(next(self.events), (*loc, key))
        return data

    def _sequence(self, loc: Loc) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            here = (*loc, len(items))
            self.lines[here] = self.line
            items.append(self._value(event, here))
        return items

    def _scalar(self, event: yaml.ScalarEvent, loc: Loc) -> str | bool | int | float:
        text: str = event.value
        for character in text:
            if character not in "\n\t" and _is_control(character):
                self.note(loc, f"the text holds the control character U+{ord(character):04X}; remove it.")
                return ""
        if event.style:
            return text
        if text in ("true", "false"):
            return text == "true"
        if text in _NULL:
            name = f"`{loc[-1]}`" if loc and isinstance(loc[-1], str) else "this entry"
            self.note(loc, f"{name} has no value; write one or remove it.")
            return text
        if _INTEGER.fullmatch(text):
            if len(text) > MAX_DIGITS:
                self.note(loc, f"`{text[:MAX_DIGITS]}...` has more than {MAX_DIGITS} digits; write less.")
                return text
            return int(text)
        if _FLOAT.fullmatch(text):
            if not math.isfinite(float(text)):
                self.note(loc, f"`{text}` is too large for a float; write a finite number.")
                return text
            return float(text)
        yaml_1_1_tag = _YAML_1_1.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        if _SURPRISE.fullmatch(text) or yaml_1_1_tag != _TEXT_TAG:
            self.note(
                loc,
                f"`{text}` means different things to different YAML readers; "
                "write true, false or a plain decimal number, or put text in quotes.",
            )
        return text


def _is_control(character: str) -> bool:
    """Also of the direction of writing: text that looks other than it is."""
    return unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(character) in _DIRECTIONS


def _plain(problem: str) -> str:
    """pyyaml's problem in the words of someone who edits the file, with the fix."""
    if "'\\t'" in problem:
        return "a tab stands where YAML allows only spaces; indent with spaces."
    if problem.startswith("expected <block end>"):
        return "the indentation fits no line above, or a list and a mapping are mixed; line the entry up."
    if problem.startswith(("could not find expected ':'", "expected ':'")):
        return "a `:` is missing after the key; write `key: value`."
    if problem.startswith("mapping values are not allowed"):
        return "a `:` stands where no key can be; put the text in quotes, or correct the indentation."
    return f"not valid YAML ({problem}); correct the line, or put text in quotes."
