"""House rules of the Lua files: each says what it takes and returns, and none can leak, wander or take for ever.

The files are read as text. That finds what a reader would find; it is no Lua parser. Each test looks at every file and
lists all that break its rule.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import wheelq.protocol
from tests.every import for_every
from wheelq.protocol.scripts import library, script, script_names

LUA = Path(wheelq.protocol.__file__).parent / "lua"
SCRIPTS = {path.stem: path.read_text() for path in sorted(LUA.glob("*.lua"))}
LIBRARIES = dict(sorted(library().items()))
LIBRARY_FILES = {path.stem: path.read_text() for path in sorted((LUA / "lib").glob("*.lua"))}
EVERY_FILE = SCRIPTS | {f"lib/{name}": text for name, text in LIBRARIES.items()}
MAX_LINES = 90
UNBOUNDED = {"KEYS", "SCAN", "HGETALL", "HKEYS", "HVALS", "SMEMBERS", "XREAD", "LRANGE"}

STRINGS_AND_COMMENTS = re.compile(r"--[^\n]*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
CALL = re.compile(r"redis\.p?call\(\s*'(\w+)'\s*,?\s*([^)]*)")
KEYLESS = {"TIME", "PUBLISH"}  # PUBLISH has a channel, which is no key
BEFORE_THE_KEY = {"XINFO": 1, "XGROUP": 1, "XREADGROUP": 6}  # a subcommand, or options, come first

every_script = for_every(SCRIPTS)
every_file = for_every(EVERY_FILE)


def header(text: str) -> str:
    """The comment lines that a file begins with."""
    lines = text.splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(lines[:end])


def body(text: str) -> str:
    """The rest."""
    return text[len(header(text)) :]


def paragraph(text: str, word: str) -> str:
    """What the header says after `word:`, up to the next such word."""
    found = re.search(rf"^-- {word}: ((?:.|\n)*?)(?=^-- (?:uses|KEYS|ARGV|Returns):|\Z)", header(text), re.MULTILINE)
    return found[1] if found else ""


def code(text: str) -> str:
    """The body without strings and comments."""
    return STRINGS_AND_COMMENTS.sub(lambda found: "" if found[0].startswith("--") else "''", body(text))


def numbers(text: str, word: str) -> set[int]:
    """Which places of KEYS or ARGV the header names: "1 lease, 2 epoch"."""
    told = re.sub(r"\s*\n--\s*", " ", paragraph(text, word))
    return {int(n) for n in re.findall(r"(?:^|, )(\d+) ", told)}


def used(text: str, word: str) -> set[int]:
    """Which places the body uses by number; `unpack(ARGV)` uses as many as it is assigned to."""
    places = {int(n) for n in re.findall(rf"\b{word}\[(\d+)\]", body(text))}
    if whole := re.search(rf"^local ([\w, ]+) = unpack\({word}\)", body(text), re.MULTILINE):
        places |= set(range(1, whole[1].count(",") + 2))
    return places


def test_there_are_scripts_and_the_package_knows_them() -> None:
    assert script_names() == list(SCRIPTS)
    assert len(SCRIPTS) > 15


@every_file
def test_a_file_begins_with_what_it_is_for_and_is_short(name: str) -> None:
    """So that one look takes it in."""
    lines = EVERY_FILE[name].splitlines()
    assert re.match(r"-- \S.+", lines[0])
    assert len(lines) <= MAX_LINES, f"it has {len(lines)} lines, and {MAX_LINES} are the most"


@for_every(LIBRARY_FILES)
def test_a_library_file_is_one_noun_and_says_what_its_parts_are_for(name: str) -> None:
    head, *parts = re.split(r"^-- part: .*\n", LIBRARY_FILES[name], flags=re.MULTILINE)
    assert re.fullmatch(r"-- \S.+\.\n+", head)
    assert parts


def test_a_part_of_the_library_has_a_name_of_its_own() -> None:
    named = re.findall(r"^-- part: (\w+)$", "".join(LIBRARY_FILES.values()), re.MULTILINE)
    assert sorted(named) == list(LIBRARIES)


@every_script
def test_the_header_names_every_key_and_argument_that_the_body_uses(name: str) -> None:
    text = SCRIPTS[name]
    assert paragraph(text, "KEYS"), "no KEYS in the header"
    for word in ("KEYS", "ARGV"):
        assert used(text, word) <= numbers(text, word)
        named = numbers(text, word)
        assert named == set(range(1, len(named) + 1)), f"{word} are numbered from 1"


@every_script
def test_the_header_names_no_key_that_the_body_leaves_alone(name: str) -> None:
    assert used(SCRIPTS[name], "KEYS") == numbers(SCRIPTS[name], "KEYS")


@every_script
def test_the_header_says_what_is_returned(name: str) -> None:
    assert len(paragraph(SCRIPTS[name], "Returns")) > 10


@every_script
def test_the_libraries_a_script_uses_are_all_needed_and_all_there(name: str) -> None:
    """Also those that a library needs of another one, which must stand before it."""
    wanted = [part.strip() for part in paragraph(SCRIPTS[name], "uses").split(",") if part.strip()]
    provided: dict[str, str] = {}
    texts = [(part, LIBRARIES[part]) for part in wanted] + [(name, SCRIPTS[name])]
    everything = {function for text in LIBRARIES.values() for function in functions(text)}
    needed = set()
    for part, text in texts:
        own = functions(text)
        for word in set(re.findall(r"\b(\w+)\(", code(text))) & everything - own:
            assert word in provided, f"{part} calls {word}(), which no library before it provides"
            needed.add(provided[word])
        provided |= dict.fromkeys(own, part)
    assert set(wanted) == needed


def functions(text: str) -> set[str]:
    return set(re.findall(r"^local function (\w+)", text, re.MULTILINE))


@every_file
def test_nothing_is_global(name: str) -> None:
    """A script that sets a global breaks every later one on some servers; real ones refuse it when it happens."""
    text = code(EVERY_FILE[name])
    declared = set(re.findall(r"\bfunction \w+\(([^)]*)\)", text))
    names = {part.strip() for group in declared for part in group.split(",")}
    for group in re.findall(r"\blocal ([\w, ]+?)(?: =|\n|$)", text) + re.findall(r"\bfor ([\w, ]+?) (?:=|in\b)", text):
        names |= {part.strip() for part in group.split(",")}
    names |= set(re.findall(r"\blocal function (\w+)", text))
    assert not re.search(r"(?<!local )\bfunction \w+\(", text), "a global function"
    for statement in re.findall(r"(?:^|\b(?:then|else|do)\b)\s*(\w[\w, ]*?) = (?!=)", text, re.MULTILINE):
        assigned = {part.strip() for part in re.sub(r"^(local|for) ", "", statement).split(",")}
        assert assigned <= names, f"assigns {assigned - names}"


@every_file
def test_every_key_comes_through_KEYS(name: str) -> None:  # noqa: N802  # the name of the Lua table
    """A key built in Lua would not be found in a cluster; so none is a string or put together."""
    text = STRINGS_AND_COMMENTS.sub(lambda found: "" if found[0].startswith("--") else found[0], body(EVERY_FILE[name]))
    keys = set(re.findall(r"\bfunction \w+\(([^)]*)\)", text))
    allowed = {part.strip() for group in keys for part in group.split(",")}
    for names in re.findall(r"^ *local ([\w, ]+) = KEYS\[", text, re.MULTILINE):
        allowed |= {part.strip() for part in names.split(",")}
    allowed |= set(re.findall(r"^for \w+, (\w+) in ipairs\(KEYS\) do", text, re.MULTILINE))
    for command, arguments in CALL.findall(text):
        if command in KEYLESS:
            continue
        key = [part.strip() for part in arguments.split(",")][BEFORE_THE_KEY.get(command, 0)]
        if key == "unpack(args":  # a list of arguments put together just before, the key first
            started = re.search(r"args = \{(\w+),", text)
            assert started
            key = started[1]
        assert key in allowed, f"{command} of {key}"
    assert "KEYS[" not in re.sub(r"^ *local [\w, ]+ = KEYS\[.*$", "", text, flags=re.MULTILINE), "keys are named first"


@every_file
def test_no_range_is_read_without_a_limit(name: str) -> None:
    """A server does nothing else while a script runs."""
    text = STRINGS_AND_COMMENTS.sub(lambda found: "" if found[0].startswith("--") else found[0], body(EVERY_FILE[name]))
    for line in text.splitlines():
        for command in re.findall(r"redis\.p?call\('(\w+)'", line):
            assert command not in UNBOUNDED
            if command == "XRANGE":
                assert re.search(r"'XRANGE', \w+, (\w+), \1\)|'XRANGE', .*, 'COUNT', ", line), "one entry, or so many"
            if command in ("ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANGEBYLEX"):
                assert "'LIMIT'" in line
            if command == "ZRANGE":
                assert re.search(r", 0, 0\b|, (-?\w+), \1\b|, (\w+), \2 \+ limit - 1\b", line), "so many at most"
            if command == "XPENDING":
                is_one = re.search(r", \w+, \w+, 1\b", line)
                is_sum = re.search(r"'XPENDING', \w+, (fields\['name'\]|group)\)", line)
                so_many = r"first, last, most\)|'-', '\+', ((own \+ )?MOST_\w+|left(, \w+)?|LOOKED_AT, holder)\)"
                assert is_one or is_sum or re.search(so_many, line), "one, the sum, or so many"
            if command == "XTRIM":
                assert "'MINID'" in line


@every_file
def test_nothing_is_used_that_some_servers_lack(name: str) -> None:
    """No cmsgpack, cjson, struct or bit; no newer commands than Redis 6.2's; no first line that 6.2 refuses."""
    text = EVERY_FILE[name]
    assert not re.search(r"\b(cmsgpack|cjson|struct|bit)\.", code(text))
    assert not text.startswith("#!")
    assert not re.search(r"'(XACKDEL|XDELEX|XNACK|DELIFEQ|DELEX|SPUBLISH|ZMPOP|LMPOP|FCALL)'", text)


@every_script
def test_the_clock_is_read_once(name: str) -> None:
    """TIME moves inside a script before 7.2: one script has one now. A lease is checked against a second one."""
    assert script(name).text.count("redis.call('TIME')") <= (2 if name == "lease" else 1)


def test_a_scripts_digest_is_that_of_its_text() -> None:
    for name in SCRIPTS:
        found = script(name)
        assert found.sha == hashlib.sha1(found.text.encode()).hexdigest()
        assert found.text.endswith(SCRIPTS[name])
