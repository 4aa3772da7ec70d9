"""A model whose weights, gradients and moments are spread over the ranks: FSDP2, for one that fits on no GPU alone.

Each layer, and what is left at the root (embeddings, last norms, output layer), is gathered when it computes; its
gradients are summed over ranks, and cut into shards, during the backward pass. So all ranks must make the same passes.
What is seen from outside stays whole: checkpoints and bundles hold full tensors, validation runs on an ordinary copy.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.config import TrainingConfig
from nmt.errors import ConfigError
from nmt.model.seq2seq import Seq2Seq
from nmt.model.transformer import Transformer
from nmt.training.distributed import Ranks

# torch.distributed.fsdp takes seconds to import, so that is done by those alone who use it.


def is_sharded(config: TrainingConfig, ranks: Ranks) -> bool:
    """Whether the model is spread; one rank has nobody to share it with, and trains as without."""
    return config.sharding == "full" and ranks.world > 1


def refuse_unequal_shares(batches_per_update: int, world: int, ranks: Ranks) -> None:
    """Raises: ConfigError, where some ranks would have a micro-batch more than others, who would wait for ever."""
    if batches_per_update % world:
        raise ranks.agreed(
            ConfigError(
                f'training.sharding = "full" needs the same number of micro-batches on every rank, but this run has '
                f"{batches_per_update} an update, to be shared by {world} ranks. Start a number of ranks that divides "
                f'{batches_per_update}, or go on with --allow-changed config and training.sharding = "none".'
            )
        )


def sharded_copy(whole: Seq2Seq) -> Seq2Seq:
    """The model as shards on the device where `whole` lies; that one is moved to the CPU. All ranks call this."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    device = next(whole.parameters()).device
    model = copy.deepcopy(whole.to("cpu"))
    assert isinstance(model, Transformer), "the config refuses others"
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for layer in [*model.encoder, *model.decoder]:
        fully_shard(layer, mesh=mesh)
    for layer in model.decoder:
        register_fsdp_forward_method(layer, "attend")
    # The root stays whole from forward to backward: the loss reads output.weight outside of the model.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(model, "states")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums, not means: losses were divided by the tokens of all ranks. Plain ones, which gloo has too.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def whole_of(tensor: Tensor) -> Tensor:
    """A shard's whole tensor, for which all ranks must ask; another tensor as it is."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # a DTensor has it
    return gathered


def laid_out_like(tensor: Tensor, parameter: nn.Parameter | None) -> Tensor:
    """This rank's shard of a whole tensor that every rank holds, if the parameter is sharded; else the tensor."""
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    source = tensor.to(parameter.device)
    cut = distribute_tensor(source, parameter.device_mesh, parameter.placements, src_data_rank=None)  # no message
    return torch.empty_like(cut).copy_(cut)  # which may be a view of the whole


def gather_weights(sharded: Seq2Seq, whole: Seq2Seq, ranks: Ranks) -> None:
    """Copy the weights of all ranks into an ordinary model, one parameter at a time. Raises: RankError."""
    for shard, parameter in zip(sharded.parameters(), whole.parameters(), strict=True):
        with torch.no_grad(), ranks.talking("for the weights", computing=True):
            parameter.copy_(whole_of(shard))


def gathered(tensors: Iterable[tuple[str, Tensor]], *, keep: bool) -> dict[str, Tensor]:
    """Copies of whole tensors in the CPU's memory; all ranks call this, and those with `keep` get something."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors:
        full = whole_of(tensor.detach())
        if keep:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the block the model lies on `device`."""
    home = next(model.parameters()).device
    model.to(device)
    try:
        yield
    finally:
        model.to(home)
