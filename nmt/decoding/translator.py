"""Lines to lines: encode, search in batches of similar length, decode, restore the order.

Line k in is line k out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from nmt.bundle import Bundle
from nmt.data.batching import pad
from nmt.decoding.search import Hypothesis, SearchOptions, beam_search, greedy_search
from nmt.errors import ConfigError
from nmt.text.lines import clean

WINDOW_LINES = 2048  # of a stream, translated together, sorted by length


class Translator:
    """Translates lines with a bundle.

    Args:
        model: a Bundle, or the path of one, or of a run folder.
        device: "auto", "cpu", "cuda" or "mps" (used for a path; a Bundle stays where it is).
        beam_size, length_penalty: default to the bundle's.
        batch_rows: search rows (lines times beam) decoded together at most.
        batch_tokens: padded source tokens (times beam) encoded together at most.
    Raises: BundleError, ConfigError.
    """

    def __init__(
        self,
        model: Bundle | str | Path,
        *,
        device: str = "auto",
        beam_size: int | None = None,
        length_penalty: float | None = None,
        batch_rows: int = 256,
        batch_tokens: int = 16_384,
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
        )
        self._batch_rows, self._batch_tokens = batch_rows, batch_tokens

    def translate(self, lines: Sequence[str], before_batch: Callable[[], None] = lambda: None) -> list[str]:
        """Translate each line; as many come out as went in. A blank line stays blank and never meets the model.

        Args:
            before_batch: called before each batch; what it raises ends the work.
        """
        translations = [""] * len(lines)
        cleaned = [clean(line) for line in lines]
        places = [place for place, line in enumerate(cleaned) if line]
        encoded = dict(zip(places, self.bundle.tokenizer.encode_src([cleaned[p] for p in places]), strict=True))
        for batch in self._batches(encoded):
            before_batch()
            for place, hypotheses in zip(batch, self.search([encoded[place] for place in batch]), strict=True):
                translations[place] = clean(self.bundle.tokenizer.decode(hypotheses[0].ids))
        return translations

    def search(self, src_ids: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """The hypotheses of each encoded source sentence (EOS last), best first."""
        model, limits = self.bundle.model, self.bundle.config.decoding
        device = next(model.parameters()).device
        lengths = torch.tensor([len(ids) for ids in src_ids])
        src_BS = torch.from_numpy(pad(src_ids, self.bundle.tokenizer.special.pad))
        padded = bool((lengths < src_BS.shape[1]).any())
        src_keep_BS = (torch.arange(src_BS.shape[1]) < lengths[:, None]).to(device) if padded else None
        max_lengths = (lengths * limits.max_length_ratio).long() + limits.max_length_extra
        with torch.inference_mode():
            state = model.prefill(src_BS.to(device), src_keep_BS)
            find = greedy_search if self.options.beam_size == 1 else beam_search
            return find(lambda tokens: model.decode_step(tokens, state), state, max_lengths.to(device), self.options)

    def _batches(self, encoded: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
        """Lines of similar length, by their places; a batch is cut where it would be too wide or too long."""
        batch: list[int] = []
        for place in sorted(encoded, key=lambda place: (len(encoded[place]), place)):
            rows = (len(batch) + 1) * self.options.beam_size
            if batch and (rows > self._batch_rows or rows * len(encoded[place]) > self._batch_tokens):
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA if there, then MPS, then the CPU. Raises: ConfigError."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind, colon, index = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not available.get(kind, False) or (colon and not (index.isdecimal() and int(index) < count)):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"--device {name} is not available here; this machine has: auto, {usable}.")
    return torch.device(name)
