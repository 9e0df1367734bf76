"""Strict YAML: what is refused, in which words, on which line; and that nothing but `UserError` ever comes out."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.schema.strict_yaml import MAX_BYTES, MAX_DEPTH, load


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(raw: str | bytes) -> Any:
    path = Path("x.yaml")
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return load(path)


SURPRISE = (
    "means different things to different YAML readers; write true, false or a plain decimal number, "
    "or put text in quotes."
)
ANCHOR = "anchors and aliases are not allowed; write the value out."

REFUSED = {
    "duplicate key": (
        "a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n",
        "x.yaml:5: key `c` stands here a second time (first on line 3); keep one.",
    ),
    "duplicate key, quoted": (
        "a: 1\n'a': 2\n",
        "x.yaml:2: key `a` stands here a second time (first on line 1); keep one.",
    ),
    "python tag": (
        "a: 1\nb: !!python/object/apply:os.system ['true']\n",
        "x.yaml:2: `tag:yaml.org,2002:python/object/apply:os.system`: tags are not allowed; write a plain value.",
    ),
    "standard tag": ("a: !!str 5\n", "x.yaml:1: `tag:yaml.org,2002:str`: tags are not allowed; write a plain value."),
    "own tag": ("a: !shape [1]\n", "x.yaml:1: `!shape`: tags are not allowed; write a plain value."),
    "non-specific tag": ("a: ! b\n", "x.yaml:1: `!`: tags are not allowed; write a plain value."),
    "anchor": ("a: &x [lol]\nb: 1\n", f"x.yaml:1: `&x`: {ANCHOR}"),
    "alias": ("a: b\nc: *x\n", f"x.yaml:2: `*x`: {ANCHOR}"),
    "merge key": ("a:\n  <<: {b: 1}\n", "x.yaml:2: `<<`: merge keys are not allowed; write the keys out."),
    "second document": ("a: 1\n---\nb: 2\n", "x.yaml:2: a second document begins here; keep one document per file."),
    "number as key": ("a:\n  5: b\n", "x.yaml:2: key `5` is not text; put it in quotes."),
    "bool as key": ("true: b\n", "x.yaml:1: key `true` is not text; put it in quotes."),
    "YAML 1.1 bool as key": ("on: b\n", f"x.yaml:1: `on` {SURPRISE}"),
    "list as key": ("? [a]\n: b\n", "x.yaml:1: a list or mapping cannot be a key; write a text key."),
    "tab": ("a:\n\tb: 1\n", "x.yaml:2: a tab stands where YAML allows only spaces; indent with spaces."),
    "indentation": (
        "a:\n  - b\n c: d\n",
        "x.yaml:3: the indentation fits no line above, or a list and a mapping are mixed; line the entry up.",
    ),
    "no colon": ("a: 1\nb\nc: 2\n", "x.yaml:3: a `:` is missing after the key; write `key: value`."),
    "two colons": (
        "a: b: c\n",
        "x.yaml:1: a `:` stands where no key can be; put the text in quotes, or correct the indentation.",
    ),
    "open bracket": (
        "a: [1, 2\nb: 3\n",
        "x.yaml:2: not valid YAML (expected ',' or ']', but got ':'); correct the line, or put text in quotes.",
    ),
    "backtick": (
        "a: 1\nb: `c`\n",
        "x.yaml:2: not valid YAML (found character '`' that cannot start any token); correct the line, "
        "or put text in quotes.",
    ),
    "escape": (
        'a: "\\U00110000"\n',
        "x.yaml:1: an escape in double quotes names no character; correct it or use single quotes.",
    ),
    "half a surrogate pair": ('a: "\\ud800"\n', "x.yaml:1: the text holds the control character U+D800; remove it."),
    "terminal escape": ('a: "\\e[2J"\n', "x.yaml:1: the text holds the control character U+001B; remove it."),
    "text that runs backwards": ("a: x\u202ey\n", "x.yaml:1: the text holds the control character U+202E; remove it."),
    "raw control character": ("a: 1\nb: \x1b\n", "x.yaml:2: character U+001B is not allowed in YAML; remove it."),
    "not UTF-8": (b"a: 1\nb: \xff\n", "x.yaml:2: byte 0xff is not UTF-8; save the file as UTF-8."),
    "empty": ("", "x.yaml:1: the file is empty; write at least one `key: value`."),
    "only a comment": ("# a\n", "x.yaml:1: the file is empty; write at least one `key: value`."),
    "a list": ("- a\n", "x.yaml:1: the file must be a mapping; begin with `key: value` lines."),
    "too large": ("a: " + "b" * MAX_BYTES, "x.yaml:1: the file is larger than 1024 KiB; split it or shorten it."),
    "too deep": (
        "a: 1\nb: " + "[" * 25 + "]" * 25,
        f"x.yaml:2: values are nested deeper than {MAX_DEPTH} levels; flatten them.",
    ),
    "no value": ("a: 1\nb:\nc: 2\n", "x.yaml:2: `b` has no value; write one or remove it."),
    "null": ("a: null\n", "x.yaml:1: `a` has no value; write one or remove it."),
    "empty item": ("a:\n  - b\n  -\n", "x.yaml:3: this entry has no value; write one or remove it."),
    "huge integer": (
        "a: 1234567890123456789\n",
        "x.yaml:1: `123456789012345678...` has more than 18 digits; write less.",
    ),
    "infinite float": ("a: 1e999\n", "x.yaml:1: `1e999` is too large for a float; write a finite number."),
}

SURPRISES = [
    "yes", "No", "on", "OFF", "True", "FALSE", "1_000", "0x1F", "0b11", "010", "08", "0o17", "1:30", "1:30.5",
    "2026-11-30", "2026-11-30 06:00:00", ".nan", ".inf", "-.inf", "nan", "NaN", "inf", "-Infinity", ".5", "5.", "1_0.5",
    "=",
]  # fmt: skip


@pytest.mark.parametrize(("raw", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused_with_one_sentence(raw: str | bytes, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read(raw)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("scalar", SURPRISES)
def test_what_readers_disagree_about_is_refused(scalar: str) -> None:
    with pytest.raises(UserError) as caught:
        read(f"a: 1\nb: {scalar}\n")
    assert str(caught.value) == f"x.yaml:2: `{scalar}` {SURPRISE}"


@pytest.mark.parametrize("scalar", [*SURPRISES, "true", "1e-6", "12", "", "null", "<<"])
def test_in_quotes_everything_is_text(scalar: str) -> None:
    assert read(f'a: "{scalar}"\n').data == {"a": scalar}
    assert read(f'"{scalar}": b\n').data == {scalar: "b"}


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        ("1.5", 1.5),
        ("-0.25e+2", -25.0),
        ("1.0", 1.0),
        ("0.42.1", "0.42.1"),
        ("1024x1024", "1024x1024"),
        ("N", "N"),
        ("a b", "a b"),
    ],
)
def test_plain_scalars(scalar: str, value: object) -> None:
    read_value = read(f"a: {scalar}\n").data["a"]
    assert read_value == value
    assert type(read_value) is type(value)


def test_lines_of_keys_and_items() -> None:
    document = read("# top\n\na: 1\nb:\n  - x: 1\n    y: [2,\n      3]\n  - z\n")
    assert document.data == {"a": 1, "b": [{"x": 1, "y": [2, 3]}, "z"]}
    assert document.lines == {
        (): 3,
        ("a",): 3,
        ("b",): 4,
        ("b", 0): 5,
        ("b", 0, "x"): 5,
        ("b", 0, "y"): 6,
        ("b", 0, "y", 0): 6,
        ("b", 0, "y", 1): 7,
        ("b", 1): 8,
    }
    assert document.place(("b", 0, "y", 1)) == "x.yaml:7"
    assert document.place(("b", 0, "missing", "deeper")) == "x.yaml:5"


def test_long_lists_do_not_recurse() -> None:
    assert len(read("a:\n" + "- 1\n" * 5000).data["a"]) == 5000


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^no.yaml: cannot be read \(No such file or directory\); check the path\.$"):
        load(Path("no.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UserError, match=r"^folder.yaml: is not a file; name a YAML file\.$"):
        load(Path("folder.yaml"))


yaml_ish = st.text(st.sampled_from("ab01:-?[]{},&*!|>'\"%@`#~<=.eE_\\U \t\n\r\x85"), max_size=40)


@given(st.one_of(st.binary(max_size=60), yaml_ish.map(str.encode), st.text(max_size=40).map(lambda t: t.encode())))
@example(b'"\\U99999999": 1')
@example(b"%YAML 9.9\n---\na: b")
@example(b"\xef\xbb\xbfa: 1")
@example(b"a: \xed\xa0\x80")
def test_arbitrary_bytes_raise_nothing_but_user_errors(raw: bytes) -> None:
    try:
        read(raw)
    except UserError as error:
        sentences = str(error).split("\n")
    else:
        return
    assert sentences
    assert all(sentence.startswith("x.yaml:") and sentence.endswith(".") for sentence in sentences)


def test_every_value_that_is_refused_is_told_in_one_go() -> None:
    with pytest.raises(UserError) as caught:
        read("a: yes\nb: {c: 010, d: [null, 1]}\na: {e: 2}\nf: `g`\n")
    assert [line.split("`")[0] for line in str(caught.value).splitlines()] == [
        "x.yaml:1: ", "x.yaml:2: ", "x.yaml:2: this entry has no value; write one or remove it.", "x.yaml:3: key ",
        "x.yaml:4: not valid YAML (found character '",
    ]  # fmt: skip


text = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
plain_data = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(10**16), 10**16),
        st.floats(allow_nan=False, allow_infinity=False),
        text,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=12,
)


class _Quoting(yaml.SafeDumper):
    """Writes text in double quotes: what a careful YAML 1.2 writer does."""


_Quoting.add_representer(str, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"'))


@given(st.dictionaries(text, plain_data, max_size=4))
def test_round_trip(data: dict[str, Any]) -> None:
    written = yaml.dump(data, Dumper=_Quoting, allow_unicode=True, sort_keys=False)
    back = read(written).data
    assert back == data
    assert repr(back) == repr(data)
    assert not any(isinstance(value, float) and math.isnan(value) for value in back.values())


def test_a_loop_of_links_is_one_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "toy.yaml"
    loop.symlink_to(loop)
    with pytest.raises(UserError, match=r"toy\.yaml: cannot be read"):
        load(loop)
