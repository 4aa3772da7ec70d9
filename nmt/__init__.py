"""Machine translation from raw parallel text to a translated line.

As a library: `from nmt import Translator; Translator("runs/toy").translate(["The dog sleeps."])`.
"""

from typing import TYPE_CHECKING, Any

from nmt.version import VERSION

__version__ = VERSION
__all__ = ["Bundle", "Translator", "__version__"]

if TYPE_CHECKING:
    from nmt.bundle import Bundle
    from nmt.decoding.translator import Translator


def __getattr__(name: str) -> Any:
    """Import on first use: `nmt --help` must not wait for torch."""
    if name == "Translator":
        from nmt.decoding.translator import Translator

        return Translator
    if name == "Bundle":
        from nmt.bundle import Bundle

        return Bundle
    raise AttributeError(f"module 'nmt' has no attribute {name!r}")
