"""What other programs do not have of ours: bans of tokens, and decode defaults."""

from collections.abc import Sequence

from nmt.config import DecodingConfig

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
