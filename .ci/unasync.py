"""Make the blocking clients from the asyncio ones.

    python .ci/unasync.py            writes the blocking modules
    python .ci/unasync.py --check    exit code 1, and the difference, if one is not what would be written

Every module of `PAIRS` is written once, on asyncio. Its blocking twin is the same text after the substitutions below,
docstrings and their examples included, with imports sorted and lines laid out by ruff. httpcore and psycopg do it this
way.
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "wheelq"
PAIRS = {
    "aio/__init__.py": "client/__init__.py",
    "aio/client.py": "client/client.py",
    "aio/dead.py": "client/dead.py",
    "aio/recurring.py": "client/recurring.py",
}
SENTENCES = [
    (
        "The producer on asyncio; from it `.ci/unasync.py` makes `wheelq.client`, the same for blocking programs.",
        "The producer for blocking programs, made from `wheelq.aio`: the same methods with the same outcomes.",
    ),
    ("Each event loop in which it is used has connections of its own.", "Safe to share between threads."),
]
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\bwheelq\.aio\b", "wheelq.client"),
]
LEFT_OVER = re.compile(r"async|await|asyncio|Async\w*")


def blocking(source: str) -> str:
    """The blocking twin of a module. Raises: ValueError, if something of asyncio is left in its code."""
    marked = source
    for number, (said, _) in enumerate(SENTENCES):  # set aside first: words must not be substituted within
        marked = marked.replace(said, f"\0{number}\0")
    for pattern, replacement in WORDS:
        marked = re.sub(pattern, replacement, marked)
    for number, (_, instead) in enumerate(SENTENCES):
        marked = marked.replace(f"\0{number}\0", instead)
    for token in tokenize.generate_tokens(io.StringIO(marked).readline):
        if token.type == tokenize.NAME and LEFT_OVER.fullmatch(token.string):
            raise ValueError(f"{token.string!r} is left in: {token.line.strip()}")
    return marked


def laid_out(source: str, path: Path) -> str:
    """As ruff sorts the imports and lays out the lines of a module at this path."""
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> int:
    """Write or check every pair; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what is out of date")
    is_check = parser.parse_args().check
    is_good = True
    for source, target in PAIRS.items():
        path = ROOT / target
        note = f"# Generated from wheelq/{source} by .ci/unasync.py: edit that file.\n"
        made = laid_out(note + blocking((ROOT / source).read_text()), path)
        found = path.read_text() if path.exists() else ""
        if made == found:
            continue
        if is_check:
            is_good = False
            sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), made.splitlines(True), target, source))
        else:
            path.write_text(made)
            print(f"wrote wheelq/{target}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
