"""Reads the fenced blocks of Markdown pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text and the line of the page on which the text begins."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """The pages that users read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's fenced blocks in these languages."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], source.count("\n", 0, match.start("text")) + 1)
        for match in FENCE.finditer(source)
        if match["language"] in languages
    ]


def shell_lines(page: Path) -> list[str]:
    """The commands of the page's ``sh`` blocks, without comments."""
    lines = [line.partition("  #")[0].strip() for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def named(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()
