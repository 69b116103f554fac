"""Finds the Python examples of the documentation."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]

_BLOCK = re.compile(r"^```python(?P<options>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One block of Python in a page; ``file=x.py`` makes it a module that later blocks of the page import."""

    page: str
    line: int
    file: str | None
    code: str

    @property
    def module(self) -> str:
        """A name for it: the file's, or one made of page and line."""
        if self.file is not None:
            return self.file.removesuffix(".py")
        return f"example_{re.sub(r'[^a-z]', '_', self.page.lower())}_{self.line}"


def examples_of(page: Path) -> list[Example]:
    """All Python blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        file = re.search(r"file=(\S+)", match["options"])
        found.append(
            Example(
                page=page.stem,
                line=text.count("\n", 0, match.start()) + 1,
                file=file[1] if file else None,
                code=match["code"],
            )
        )
    return found


def write_all(examples: list[Example], folder: Path) -> None:
    """Write every example as a module of a folder."""
    for example in examples:
        (folder / f"{example.module}.py").write_text(example.code, encoding="utf-8")
