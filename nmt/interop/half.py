"""A bundle in half precision: half the size, for the same program."""

from pathlib import Path

import torch

from nmt.bundle import Bundle, weights_of
from nmt.errors import BundleError
from nmt.storage.atomic import write_file
from nmt.storage.manifest import MANIFEST, manifest_of


def export_half(bundle: Bundle, folder: Path) -> list[str]:
    """Write a bundle whose weights are in fp16, into an existing folder. It is opened in fp32, as every bundle.

    Returns: no warnings. Raises: BundleError (a weight is too large for fp16), StorageError, OSError.
    """
    most = torch.finfo(torch.float16).max
    weights = weights_of(bundle.model)
    for name, tensor in weights.items():
        if tensor.abs().max() > most:
            raise BundleError(
                f"Weights {name} go beyond {most:,.0f}, the most that fp16 has: leave this model in fp32."
            )
    bundle.write_into(folder, {name: tensor.half() for name, tensor in weights.items()})
    write_file(folder / MANIFEST, manifest_of(folder))  # so that it can be opened before it has its name
    return []
