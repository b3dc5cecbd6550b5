"""Small files that are there whole or not at all."""

from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Replace a file's contents at once. What fails, for want of room, leaves the file as it was and nothing beside."""
    aside = file.with_suffix(".tmp")
    try:
        aside.write_text(text)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
