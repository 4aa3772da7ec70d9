"""What pictures share: matplotlib's own settings, fonts that have the letters, a file that appears whole.

No display is needed, pyplot is never loaded, and the same input gives the same bytes.
"""

import io
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nmt.errors import ConfigError
from nmt.storage.atomic import replace_file

NO_FONT = "no installed font has"  # how the warning begins that a picture is wrong
FORMATS = ("png", "svg", "pdf")


def format_of(path: Path) -> str:
    """The format that the suffix names. Raises: ConfigError, for another one."""
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FORMATS:
        raise ConfigError(f'Cannot draw into "{path}": the name must end in .png, .svg or .pdf.')
    return file_format


@contextmanager
def default_settings() -> Iterator[dict[str, Any]]:
    """matplotlib's defaults, so that a user's matplotlibrc (usetex!) changes nothing; afterwards all is put back."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        # A fixed salt gives the SVG ids that do not change from run to run.
        matplotlib.rcParams["svg.hashsalt"] = "nmt"
        # Said once by choose_fonts, for all characters.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield matplotlib.rcParams


def choose_fonts(text: str) -> tuple[list[str], str]:
    """DejaVu Sans and further families that cover `text`; the characters that none has."""
    from matplotlib import font_manager

    # White space and format characters (joiners, variation selectors) need no glyph of their own.
    missing = {c for c in text if not c.isspace() and unicodedata.category(c) not in ("Cf", "Mn")}
    families = ["DejaVu Sans"]  # comes with matplotlib
    missing -= _charset(font_manager.findfont("DejaVu Sans"))
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        if not missing:  # opening every font takes a while
            break
        # Text fonts only: no TeX fonts with encodings of their own, no boxes, no colour bitmaps.
        if entry.name.startswith(("cm", "STIXNon", "STIXSiz", "Last Resort")) or "Color" in entry.name:
            continue
        with suppress(RuntimeError, OSError):  # a font that is listed and yet gone or broken
            found = missing & _charset(entry.fname)
            families += [entry.name] if found else []
            missing -= found
    return families, "".join(sorted(missing))


def _charset(font_file: str) -> set[str]:
    from matplotlib import font_manager

    return {chr(code) for code in font_manager.get_font(font_file).get_charmap()}


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib Figure. Raises: ConfigError (suffix), StorageError (the file cannot be written)."""
    file_format = format_of(path)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    picture = io.BytesIO()
    figure.savefig(picture, format=file_format, bbox_inches="tight", pad_inches=0.15, metadata=dates[file_format])
    replace_file(path, picture.getvalue())
