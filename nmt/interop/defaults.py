"""What other programs do not have of ours: bans of tokens, decode defaults, kinds of attention."""

from collections.abc import Sequence

from nmt.config import DecodingConfig, ModelConfig
from nmt.errors import ConfigError

NEVER = -1e4  # as a bias: no such token is ever generated, and its probability is 0 in any precision


def lost_defaults(decoding: DecodingConfig, keys: Sequence[str], program: str) -> list[str]:
    """Warnings about decode defaults that another program does not have, `keys` or GNMT's length penalty."""
    lost = [key for key in keys if getattr(decoding, key) != DecodingConfig.model_fields[key].default]
    warnings = [f"decoding.{key} = {getattr(decoding, key)!r} is not taken along to {program}" for key in lost]
    if decoding.length_penalty_type == "gnmt" and decoding.length_penalty:
        warnings.append(
            f"decoding.length_penalty = {decoding.length_penalty} is GNMT's, ((5 + length) / 6) ^ alpha; {program} has "
            f"length ^ alpha: with the same alpha its beam search finds longer translations"
        )
    return warnings


def refuse_other_attention(model: ModelConfig, program: str) -> None:
    """Raises: ConfigError, for a model that is not the Transformer of 2017 in these keys."""
    expected = {"type": "transformer", "positions": "sinusoidal", "kv_heads": model.num_heads, "qk_norm": False}
    for key, value in expected.items():
        if getattr(model, key) != value:
            shown = "num_kv_heads" if key == "kv_heads" else key
            raise ConfigError(
                f"A model with {shown} = {getattr(model, key)!r} cannot be exported to {program}: only {shown} = "
                f"{value!r} can. It translates with nmt."
            )
