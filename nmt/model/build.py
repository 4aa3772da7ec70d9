"""A model of the kind that its config names."""

from nmt.config import ModelConfig
from nmt.model.recurrent import RecurrentModel
from nmt.model.seq2seq import Seq2Seq
from nmt.model.transformer import Transformer


def build_model(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> Seq2Seq:
    """With random weights; on the meta device with none."""
    kind = RecurrentModel if config.type == "rnn" else Transformer
    return kind(config, src_vocab_size, tgt_vocab_size)
