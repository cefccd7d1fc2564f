"""Builds the site: what wheelq is, and the guide, as static pages with a search. Needs no server and loads nothing
from elsewhere; any static host can serve the folder, under any path.

    python .ci/site.py [FOLDER]     by default `site`

The first page is the README without its first program. All pages have the template of the server's `/guide`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemLoader
from markupsafe import Markup

from wheelq import guide
from wheelq.base.version import __version__
from wheelq.server.dashboard.leaves import Leaf, Places, leaf, leaf_of
from wheelq.server.dashboard.rendering import environment, static

HERE = Path(__file__).parent
ROOT = HERE.parent
HOME, SEARCH = "home", "static/search.json"
FROM_HOME = Places("guide/index.html", "guide/{}.html", "guide/images/{}")
IN_GUIDE = Places("index.html", "{}.html", "images/{}")
CUT = re.compile(r"\n(?:## A first program\n|To run wheelq's own tests).*?(?=\n## |\Z)", re.DOTALL)
"""What the README says that the page "getting started" replaces, or that only contributors need."""
HEADING = re.compile(r'<h[123] id="([^"]+)">(.*?)</h[123]>')


def home() -> Leaf:
    """The README's account of what wheelq is and promises, with links into the guide."""
    text = CUT.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    text = re.sub(r"\(wheelq/guide/([\w/-]+\.md)", r"(\1", text)
    return leaf_of(HOME, text, FROM_HOME)


def sections(page: Leaf, href: str) -> list[dict[str, str]]:
    """The parts of a page under their headings, as the search finds them."""
    parts = HEADING.split(str(page.body))
    found = []
    for anchor, title, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text = " ".join(Markup(f"{body}").striptags().split())
        name = str(Markup(title).striptags())
        found.append({"page": page.title, "title": name, "href": f"{href}#{anchor}", "text": text})
    return found


def index_for_models() -> str:
    """What `llms.txt` says: what wheelq is, and the pages of the guide with their subjects, as its index has them."""
    what = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")
    index = guide.source(guide.INDEX)
    lines = [f"# wheelq\n\n> {what}"]
    for line in index.splitlines():
        if row := re.match(r"\| \[([^]]+)\]\([\w/.-]+\.md\) \| (.+) \|$", line):
            lines.append(f"- [{row[1]}](guide/{row[1]}.html): {row[2]}")
        elif line.startswith("## "):
            lines.append(f"\n{line}\n")
    return "\n".join(lines) + "\n"


def build(folder: Path) -> None:
    """Write all pages and what they load."""
    template = environment().overlay(loader=ChoiceLoader([FileSystemLoader(HERE / "site"), environment().loader]))
    guide_page = template.get_template("guide.html")
    what, index, *pages = home(), *(leaf(name, IN_GUIDE) for name in (guide.INDEX, *guide.names()))
    (folder / "guide" / "images").mkdir(parents=True)
    (folder / "static").mkdir()
    found = []
    for place, page in enumerate([what, index, *pages], -2):
        is_home = page is what
        prefix = "guide/" if is_home else ""
        file = "index.html" if page in (what, index) else f"{page.name}.html"
        shown = {
            "leaf": page,
            "leaves": pages,
            "before": pages[place - 1] if place > 0 else None,
            "after": pages[place + 1] if 0 <= place < len(pages) - 1 else None,
            "language": "zh-CN" if page.name == "zh" else "en",
            "url": lambda path, prefix=prefix: prefix + (f"{path[7:]}.html" if path[7:] else "index.html"),
            "root": "" if is_home else "../",
            "version": __version__,
        }
        where = file if is_home else f"guide/{file}"
        (folder / where).write_text(guide_page.render(shown), encoding="utf-8")
        found += sections(page, where)
    (folder / SEARCH).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    (folder / "llms.txt").write_text(index_for_models(), encoding="utf-8")
    for name in ("dashboard.css", "wheel.svg"):
        asset = static(name)
        assert asset is not None, name
        (folder / "static" / name).write_bytes(asset.body)
    shutil.copy(HERE / "site" / "site.js", folder / "static")
    for picture in sorted((ROOT / "wheelq" / "guide" / "images").iterdir()):
        shutil.copy(picture, folder / "guide" / "images")


def main() -> int:
    """Build the site in an empty or new folder, or in place of an earlier one. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the site: what wheelq is, and the guide, as static pages.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site", help="default: site")
    folder: Path = parser.parse_args().folder
    if folder.exists() and any(folder.iterdir()) and not (folder / SEARCH).exists():
        print(f"{folder} holds something else than a site: name an empty or new folder", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    build(folder)
    print(f"{sum(1 for _ in folder.rglob('*.html'))} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
