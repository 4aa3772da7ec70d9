"""Lines to lines: encode, search in batches of similar length, decode, restore the order.

Line k in is line k out. A blank line stays blank and never meets the model.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.bundle import Bundle
from nmt.data.batching import pad
from nmt.decoding.search import Hypothesis, SearchOptions, beam_search, greedy_search
from nmt.errors import ConfigError
from nmt.text.lines import clean

WINDOW_LINES = 2048  # translated together, sorted by length


@dataclass(frozen=True)
class Translation:
    """One translated line.

    Attributes:
        text: the best hypothesis as text; empty for a blank line.
        hypotheses: the n best, best first; none for a blank line.
    """

    text: str
    hypotheses: tuple[Hypothesis, ...] = ()


class Translator:
    """Translates lines with a bundle.

    Args:
        model: a Bundle, or the path of one, or of a run folder.
        device: "auto", "cpu", "cuda" or "mps" (used for a path; a Bundle stays where it is).
        beam_size, length_penalty: default to the bundle's.
        batch_rows: search rows (lines times beam) decoded together.
    Raises: BundleError, ConfigError.
    """

    def __init__(
        self,
        model: Bundle | str | Path,
        *,
        device: str = "auto",
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        batch_rows: int = 256,
    ) -> None:
        self.bundle = model if isinstance(model, Bundle) else Bundle.load(model, pick_device(device))
        defaults, special = self.bundle.config.decoding, self.bundle.tokenizer.special
        self.options = SearchOptions(
            bos=special.bos,
            eos=special.eos,
            banned=(special.pad, special.bos, special.unk),
            beam_size=defaults.beam_size if beam_size is None else beam_size,
            length_penalty=defaults.length_penalty if length_penalty is None else length_penalty,
            min_length=defaults.min_length,
            n_best=n_best,
        )
        if n_best > self.options.beam_size:
            raise ConfigError(f"{n_best} best of a beam of {self.options.beam_size} cannot be had; widen the beam.")
        self._batch_sentences = max(1, batch_rows // self.options.beam_size)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translate each line; as many come out as went in."""
        return [translation.text for translation in self.translate_full(lines)]

    def translate_full(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translate lines in windows, yielding each with its hypotheses, in order."""
        window: list[str] = []
        for line in lines:
            window.append(line)
            if len(window) == WINDOW_LINES:
                yield from self._translate_window(window)
                window = []
        yield from self._translate_window(window)

    def _translate_window(self, lines: Sequence[str]) -> list[Translation]:
        translations = [Translation("")] * len(lines)
        cleaned = [clean(line) for line in lines]
        places = [place for place, line in enumerate(cleaned) if line]
        encoded = dict(zip(places, self.bundle.tokenizer.encode_src([cleaned[p] for p in places]), strict=True))
        places.sort(key=lambda place: (len(encoded[place]), place))
        for start in range(0, len(places), self._batch_sentences):
            batch = places[start : start + self._batch_sentences]
            for place, hypotheses in zip(batch, self.search([encoded[place] for place in batch]), strict=True):
                text = clean(self.bundle.tokenizer.decode(hypotheses[0].ids))
                translations[place] = Translation(text, tuple(hypotheses))
        return translations

    def search(self, src_ids: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """The n best hypotheses of each encoded source sentence (EOS last)."""
        model, limits = self.bundle.model, self.bundle.config.decoding
        device = next(model.parameters()).device
        lengths = torch.tensor([len(ids) for ids in src_ids])
        src_BS = torch.from_numpy(pad(src_ids, self.bundle.tokenizer.special.pad)).to(device)
        padded = bool((lengths < src_BS.shape[1]).any())
        src_keep_BS = (torch.arange(src_BS.shape[1]) < lengths[:, None]).to(device) if padded else None
        max_lengths = (lengths * limits.max_length_ratio).long() + limits.max_length_extra
        with torch.inference_mode():
            state = model.prefill(src_BS, src_keep_BS)
            find = greedy_search if self.options.beam_size == 1 else beam_search
            return find(lambda tokens: model.decode_step(tokens, state), state, max_lengths.to(device), self.options)


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA if there, then MPS, then the CPU. Raises: ConfigError."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind = name.partition(":")[0]
    if not available.get(kind, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"--device {name} is not available here; this machine has: auto, {usable}.")
    return torch.device(name)
