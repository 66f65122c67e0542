"""The pages in Markdown: narrow enough to read as text, and what they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIDDEN = {"build", "dist", "venv", "runs"}  # what .gitignore leaves out
WIDTH = 120


def pages() -> list[str]:
    """Every Markdown file of the repository, by its path."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(
        path.as_posix() for path in found if not any(part in HIDDEN or part.startswith(".") for part in path.parts)
    )


PAGES = pages()


def prose(page: str) -> list[tuple[int, str]]:
    """(number, line) of the lines outside code fences."""
    lines, fenced = [], False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line))
    assert not fenced, f"{page}: a code fence is not closed"
    return lines


def text_of(page: str) -> str:
    return "\n".join(line for _, line in prose(page))


def too_wide(line: str) -> bool:
    """Whether a line is too long for a page; tables, and what a link alone makes long, are not."""
    if line.lstrip().startswith("|"):
        return False
    return len(re.sub(r"\]\([^)]*\)|https?://\S+", "", line)) > WIDTH


def links(text: str) -> list[str]:
    """Targets of links and images, without those of other sites and of places within a page."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:|#", target)]


def paths(text: str) -> list[str]:
    """Paths of Python files with a folder in them, in backticks; not those with a place to fill in, such as NAME."""
    words = [word for span in re.findall(r"`([^`]+)`", text) for word in span.split()]
    found = [word for word in words if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*/[\w-]+\.py", word)]
    return [path for path in found if not re.search(r"(?<![A-Za-z])[A-Z]{3,}(?![A-Za-z])", path)]


def test_the_pages_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/method.md", "benchmarks/README.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_prose_is_wrapped(page: str) -> None:
    assert [f"{page}:{number}: {len(line)}" for number, line in prose(page) if too_wide(line)] == []


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    assert [target for target in links(text_of(page)) if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_python_files_that_are_named_exist(page: str) -> None:
    assert [path for path in paths(text_of(page)) if not (ROOT / path).exists()] == []


def test_what_the_checks_look_at() -> None:
    assert too_wide("a" * 121) and not too_wide("a" * 120) and not too_wide("| " + "a" * 200)
    assert not too_wide(f"see [it]({'a' * 200})") and too_wide(f"see {'b' * 120} [it](a)")
    assert links("[a](b.md#c) [d](https://e.f) ![g](h.png) [i](#j)\n[k\nl](../m.md)") == ["b.md", "h.png", "../m.md"]
    named = "`nas/api.py` `nas/tasks/NAME.py` `a/test_NAME.py` `search.py` `python a/b.py\nx` c/d.py"
    assert paths(named) == ["nas/api.py", "a/b.py"]
