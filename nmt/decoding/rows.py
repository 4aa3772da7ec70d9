"""The prefixes of a search as rows of a model, or of several: what `search.Rows` asks for, by `prefill` and steps.

Shapes: B sentences, W prefixes of a sentence, S source, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.model.attention import record_attention
from nmt.model.seq2seq import Seq2Seq, StepState


class ModelRows:
    """The prefixes of a search in one model, or in several whose probabilities are averaged.

    Args:
        src_BS: padded source ids; lengths: real ones of each.
        width: the most prefixes a sentence will have.
        attends: whether `attention` will be asked for.
    """

    def __init__(
        self, models: Sequence[Seq2Seq], src_BS: Tensor, lengths: Sequence[int], width: int, attends: bool = False
    ) -> None:
        self.device = next(models[0].parameters()).device
        keep_BS = torch.arange(src_BS.shape[1]) < torch.tensor(lengths).long()[:, None]
        self._keep_BS = keep_BS.to(self.device)
        self._models, self._attends = models, attends
        self._attention: list[Tensor] = []
        with torch.inference_mode():
            self._states: list[StepState] = [
                model.prefill(src_BS.to(self.device), self._keep_BS, width) for model in models
            ]

    def step(self, tokens_BW: Tensor) -> Tensor:
        """See `search.Rows`."""
        self._attention = []
        logits = [self._step(model, tokens_BW, state) for model, state in zip(self._models, self._states, strict=True)]
        if len(logits) == 1:
            return logits[0]
        wide = torch.promote_types(logits[0].dtype, torch.float32)
        log_probs = torch.stack([each.to(wide).log_softmax(-1) for each in logits])
        return log_probs.logsumexp(0) - math.log(len(logits))

    def attention(self) -> Tensor:
        """See `search.Rows`: cross-attention of the last layer, mean of its heads (and of the models)."""
        mean_BWS = torch.stack(self._attention).mean(0)
        return mean_BWS.masked_fill(~self._keep_BS[:, None], 1.0)

    def reorder(self, parents_BW: Tensor) -> None:
        """See `search.Rows`."""
        for state in self._states:
            state.reorder(parents_BW)

    def keep_sentences(self, sentences: Tensor) -> None:
        """See `search.Rows`."""
        self._keep_BS = self._keep_BS[sentences]
        for state in self._states:
            state.keep_sentences(sentences)

    def _step(self, model: Seq2Seq, tokens_BW: Tensor, state: StepState) -> Tensor:
        if not self._attends:
            return model.decode_step(tokens_BW, state)
        with record_attention(model.top_attention()) as recorded:
            logits_BWV = model.decode_step(tokens_BW, state)
        (weights_BHWS,) = recorded.values()
        self._attention.append(weights_BHWS.float().mean(1))
        return logits_BWV
