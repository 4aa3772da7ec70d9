"""Checks of what a model computes: each takes it for a black box that has inputs, outputs and attention weights.

They run in float64, where what should be equal is equal to rounding: a difference is measured against the spread of the
numbers, and `_SAME` of it or less is none. Comparisons are written so that NaN fails them.

Shapes: B batch, S source, T target, H heads, G heads of keys and values, K head dim, W prefixes, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from nmt.diagnosis.findings import Finding, broken, counted, ok, skipped, some, suspicious
from nmt.diagnosis.subject import Subject, outputs_of, recorded
from nmt.model.attention import record_attention

_SAME = 1e-6
_HEAD_DIMS = (8, 256)
_FF_RATIOS = (1.0, 8.0)
_SCALE_ERROR = 1e-3
_OFF_THE_LINE = 1e-4
_PROJECTIONS = ("qkv", "q", "kv", "q_norm", "k_norm")
_FIXED = 0.95  # of the weight, on one and the same place
_WIDTH, _STEPS = 3, 12  # prefixes of a sentence, decoding steps


def difference(a: Tensor, b: Tensor) -> float:
    """The largest one, in standard deviations of `a`."""
    return float((a - b).abs().max() / a.std())


def shape(subject: Subject) -> Finding:
    """Sizes that are possible but hardly meant."""
    config = subject.config
    if not any("self_attention" in name for name in recorded(subject, subject.sentences)):
        return skipped("a recurrent model has no heads")
    ratio, found = config.d_ff / config.d_model, f"{counted(config.num_heads, 'head')} of {config.head_dim}, "
    found += f"d_ff / d_model = {ratio:g}"
    if not _HEAD_DIMS[0] <= config.head_dim <= _HEAD_DIMS[1]:
        advice = f"model.num_heads does not fit d_model = {config.d_model}: 32 to 128 a head is usual"
        return suspicious(found, f"{advice}; {counted(max(1, round(config.d_model / 64)), 'head')} would do.")
    if not _FF_RATIOS[0] <= ratio <= _FF_RATIOS[1]:
        return suspicious(found, f"2 to 4 is usual: set model.d_ff = {4 * config.d_model}, or is another one meant?")
    return ok(found)


@torch.no_grad()
def score_scale(subject: Subject) -> Finding:
    """Scores are q k^T / sqrt(K): read off the weights, whose logarithms are the scores up to a constant for each row.

    A line through (q k^T, logarithm) has the scale as its slope. If the points are on none, something else is in the
    scores (positions), or q and k are not what the layers called qkv, q and kv, or q_norm and k_norm, put out.
    """
    data, model, head_dim = subject.equal_sentences, subject.exact, subject.config.head_dim
    with outputs_of(model, _PROJECTIONS) as projected, record_attention(model) as weights:
        plain = model(data.src_BS, data.tgt_in_BT)
    apart = difference(plain, model(data.src_BS, data.tgt_in_BT))
    if not apart <= _SAME:
        return broken(
            f"attention gives other logits while its weights are recorded, by {apart:.2g} sd",
            "the two kernels of nmt/model/attention.py disagree, in their scale or in a mask.",
            difference=apart,
        )
    slopes: dict[str, float] = {}
    for name, each in weights.items():
        found = _queries_and_keys(name, each.shape[1], head_dim, projected)
        slope = None if found is None else _slope(each, *found)
        if slope is not None:
            slopes[name] = slope
    if not slopes:
        return skipped("no attention of this model has scores that are made of queries and keys alone")
    expected = 1 / math.sqrt(head_dim)
    worst = max(slopes, key=lambda name: abs(slopes[name] - expected))
    numbers = {"scale": slopes[worst], "expected": expected}
    if not abs(slopes[worst] / expected - 1) <= _SCALE_ERROR:
        return broken(
            f"scores of {worst} are q k^T x {slopes[worst]:.4g}, where 1 / sqrt({head_dim}) = {expected:.4g} is due",
            "scores are not scaled by 1 / sqrt(head size), so that the softmax saturates and its gradient vanishes. "
            "Divide q k^T by the root of the size of one head, not of the model.",
            **numbers,
        )
    left_out = f"; more is in the scores of {len(weights) - len(slopes)}" if len(slopes) < len(weights) else ""
    return ok(f"q k^T / sqrt({head_dim}) in {counted(len(slopes), 'attention')}{left_out}", **numbers)


def attention_weights(subject: Subject) -> Finding:
    """Rows are distributions."""
    weights = recorded(subject, subject.sentences)
    odd = [
        name
        for name, each in weights.items()
        if not (float((each.sum(-1) - 1).abs().max()) <= _SAME and float(each.min()) >= 0)
    ]
    if odd:
        return broken(
            f"the weights of {some(odd)} do not sum to 1, or are negative",
            "the softmax runs over another dimension than the keys, or what is masked is left out after it.",
        )
    return ok(f"the rows of {counted(len(weights), 'attention')} sum to 1")


def head_use(subject: Subject) -> Finding:
    """No head weighs all keys alike whatever is asked, and cross-attention as a whole is not fixed on one place."""
    weights, data = recorded(subject, subject.equal_sentences), subject.equal_sentences
    dead, fixed, cross = [], 0, 0
    for name, each in weights.items():
        each = each[:, :, 1:]  # the first target position of causal attention has one key
        keys = (each > 0).sum(-1, keepdim=True)
        uniform_H = ((each * keys - 1).abs() * (each > 0)).amax(dim=(0, 2, 3)) <= _SAME
        dead += [f"head {head + 1} of {name}" for head in uniform_H.nonzero()[:, 0].tolist()]
        if "cross_attention" in name:
            cross += each.shape[1]
            fixed += int((each.amin(dim=(0, 2)).amax(-1) > _FIXED).sum())
    if dead:
        return suspicious(
            f"{some(dead)}: all keys weigh the same, whatever the query",
            "a dead head: its queries or keys are zero. Were they initialised, and do they get a gradient?",
        )
    if cross and fixed == cross:
        return suspicious(
            f"cross-attention ({counted(cross, 'head')}) looks at one and the same place of every source",
            "cross-attention is dead: the model may write without reading. Are the sources shuffled against the "
            "targets (nmt data check), or is training too short?",
        )
    heads = counted(sum(each.shape[1] for each in weights.values()), "head")
    return ok(f"in {heads} weights follow the query", pairs=len(data.src_BS))


@torch.no_grad()
def order_seen(subject: Subject) -> Finding:
    """Other orders of the same tokens are other sentences."""
    data, model = subject.equal_sentences, subject.exact
    logits = model(data.src_BS, data.tgt_in_BT)
    turned = torch.cat([data.src_BS[:, :-1].flip(1), data.src_BS[:, -1:]], dim=1)
    of_source = difference(logits, model(turned, data.tgt_in_BT))
    prefix = torch.cat([data.tgt_in_BT[:, :1], data.tgt_in_BT[:, 1:-1].flip(1), data.tgt_in_BT[:, -1:]], dim=1)
    of_target = difference(logits[:, -1], model(data.src_BS, prefix)[:, -1])
    blind = [side for side, moved in (("source", of_source), ("target", of_target)) if not moved > _SAME]
    numbers = {"source": of_source, "target": of_target}
    if blind:
        return broken(
            f"a {' and a '.join(blind)} whose words are turned around give the same logits",
            f"the {' and the '.join(blind)} has no positions: they are not added to the embeddings, are zero, or the "
            f"same everywhere.",
            **numbers,
        )
    return ok(f"turned around, a source changes logits by {of_source:.2g}, a target by {of_target:.2g} sd", **numbers)


def future_unseen(subject: Subject) -> Finding:
    """What is predicted at t depends on nothing after t: neither by value nor by gradient."""
    data, model = subject.equal_sentences, subject.exact
    length = data.tgt_in_BT.shape[1]
    other = data.tgt_in_BT.roll(1, dims=0)
    with torch.no_grad():
        memory = model.encode(data.src_BS)
        states = model.decode(data.tgt_in_BT, memory)
        leaks = 0.0
        for t in range(1, length):
            changed = model.decode(torch.cat([data.tgt_in_BT[:, :t], other[:, t:]], dim=1), memory)
            leaks = max(leaks, _or_inf(difference(states[:, :t], changed[:, :t])))
    if leaks <= _SAME:
        leaks = _or_inf(_gradient_from_the_future(subject, memory, length // 2))
    if not leaks <= _SAME:
        return broken(
            f"what is predicted at t changes with the target after t, by {leaks:.2g} sd",
            "the decoder sees the future: its self-attention lacks the causal mask, or has it on the wrong side of the "
            "diagonal. Training looks brilliant then, and translations are rubbish.",
            leak=leaks,
        )
    return ok(f"no prediction at {length - 1} positions depends on later target tokens", leak=leaks)


@torch.no_grad()
def padding_unseen(subject: Subject) -> Finding:
    """A sentence has the same logits alone and padded beside longer ones, whatever stands in the padding."""
    data, model = subject.sentences, subject.exact
    together = model(data.src_BS, data.tgt_in_BT, data.keep_BS)
    other = data.src_BS.flip(0).masked_fill(data.keep_BS, 0) + data.src_BS.masked_fill(~data.keep_BS, 0)
    by_content = difference(together, model(other, data.tgt_in_BT, data.keep_BS))
    alone = max(
        _or_inf(difference(logits[None], model(src[keep][None], tgt[None])))
        for logits, src, keep, tgt in zip(together, data.src_BS, data.keep_BS, data.tgt_in_BT, strict=True)
    )
    on_padding = {
        name: float((each * ~data.keep_BS[:, None, None]).sum(-1)[~data.keep_BS.all(1)].mean())
        for name, each in recorded(subject, data).items()
        if each.shape[-1] == data.keep_BS.shape[1] and not ("decoder" in name and "self_attention" in name)
    }
    most = max(on_padding, key=lambda name: on_padding[name])
    share = on_padding[most]
    numbers = {"share on padding": share, "alone or padded": alone, "content of padding": by_content}
    if alone <= _SAME and by_content <= _SAME and share <= _SAME:
        return ok("sentences have the same logits alone and padded beside longer ones", **numbers)
    found = (
        f"logits change with padding by {max(alone, by_content):.2g} sd; {share:.0%} of the weight of {most} is on it"
    )
    if share > 0.5:
        return broken(
            found,
            "the padding mask has the inverted sense: it must be True where a token is to be seen (src != pad).",
            **numbers,
        )
    return broken(
        found,
        "padding leaks: the mask does not reach that attention, or the encoder mixes padding in before it.",
        **numbers,
    )


@torch.no_grad()
def source_read(subject: Subject) -> Finding:
    """Each target position depends on the source."""
    data, model = subject.equal_sentences, subject.exact
    states = model.decode(data.tgt_in_BT, model.encode(data.src_BS))
    other = model.decode(data.tgt_in_BT, model.encode(data.src_BS.roll(1, dims=0)))
    moved_T = (states - other).abs().amax(dim=(0, 2)) / states.std()
    blind = [t + 1 for t, moved in enumerate(moved_T.tolist()) if not moved > _SAME]
    if blind:
        where = "any position" if len(blind) == len(moved_T) else f"{len(blind)} of {len(moved_T)} positions"
        return broken(
            f"another source changes nothing at {where} of the target",
            "cross-attention does not read the encoder: its output is not added, its values are zero, or it attends to "
            "the target instead of the memory.",
        )
    return ok(f"another source changes all {len(moved_T)} target positions, by {float(moved_T.min()):.2g} sd at least")


@torch.no_grad()
def cached_decoding(subject: Subject) -> Finding:
    """Steps with cached keys and values give the logits of the whole decoder, with prefixes reordered in between."""
    model = subject.exact
    generator = torch.Generator().manual_seed(subject.seed)
    src_BS, keep_BS = subject.sentences.src_BS[::2], subject.sentences.keep_BS[::2]
    src, keep, batch = src_BS.repeat_interleave(_WIDTH, 0), keep_BS.repeat_interleave(_WIDTH, 0), len(src_BS)
    state = model.prefill(src_BS, keep_BS, _WIDTH)
    prefixes_BWT = torch.full((batch, 1, 1), subject.special.bos)
    worst, at = 0.0, 0
    for t in range(_STEPS):
        logits_BWV = model.decode_step(prefixes_BWT[..., -1], state)
        rows = logits_BWV.shape[1]
        step = slice(None) if rows == _WIDTH else slice(None, None, _WIDTH)
        full_NTV = model(src[step], prefixes_BWT.flatten(0, 1), keep[step])
        apart = _or_inf(difference(full_NTV[:, -1], logits_BWV.flatten(0, 1)))
        if not apart <= max(worst, _SAME):
            worst, at = apart, at or t + 1
        parents_BW = torch.randint(rows, (batch, _WIDTH), generator=generator)
        state.reorder(parents_BW)
        prefixes_BWT = prefixes_BWT.gather(1, parents_BW[..., None].expand(-1, -1, t + 1))
        words_BW1 = torch.randint(subject.tgt_pieces, (batch, _WIDTH, 1), generator=generator)
        prefixes_BWT = torch.cat([prefixes_BWT, words_BW1], dim=2)
    if not worst <= _SAME:
        return broken(
            f"decoding with the cache differs from the whole decoder, first at step {at}, by {worst:.2g} sd at most",
            "the cache is wrong: keys and values are written to the wrong place, positions are counted wrongly, or "
            "prefixes are not reordered with the beam. (Different at step 1 already: the encoder runs otherwise in "
            "prefill than in training.)",
            difference=worst,
        )
    return ok(
        f"{_STEPS} cached steps of {_WIDTH} prefixes, reordered at each, equal the whole decoder", difference=worst
    )


def _or_inf(number: float) -> float:
    """NaN as infinity, which `max` keeps."""
    return number if math.isfinite(number) else math.inf


def _queries_and_keys(
    name: str, heads: int, head_dim: int, projected: dict[str, Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Those of an attention, (B, H, Q, K) and (B, H, S, K), from its projections; None if it has no such ones."""
    if f"{name}.q_norm" in projected and f"{name}.k_norm" in projected:  # they have the shapes of heads already
        q_BHQK, k_BGSK = projected[f"{name}.q_norm"], projected[f"{name}.k_norm"]
        return q_BHQK, k_BGSK.repeat_interleave(heads // k_BGSK.shape[1], dim=1)
    if f"{name}.qkv" in projected:
        together = projected[f"{name}.qkv"]
        of_keys = (together.shape[-1] - heads * head_dim) // 2
        q, k, _ = torch.split(together, [heads * head_dim, of_keys, of_keys], dim=-1)
    elif f"{name}.q" in projected and f"{name}.kv" in projected:
        q, (k, _) = projected[f"{name}.q"], projected[f"{name}.kv"].chunk(2, dim=-1)
    else:
        return None
    if q.shape[-1] != heads * head_dim or k.shape[-1] % head_dim:
        return None
    q_BHQK, k_BGSK = (each.view(*each.shape[:2], -1, head_dim).transpose(1, 2) for each in (q, k))
    return q_BHQK, k_BGSK.repeat_interleave(heads // k_BGSK.shape[1], dim=1)


def _slope(weights_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor) -> float | None:
    """Of the line that (q k^T, logarithm of the weight) lie on, each row less its mean; None if they lie on none."""
    seen = weights_BHQS > 0

    def centred(x: Tensor) -> Tensor:
        mean = (x * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        return (x - mean) * seen

    log_BHQS = centred(weights_BHQS.masked_fill(~seen, 1.0).log())
    products_BHQS = centred(q_BHQK @ k_BHSK.transpose(-2, -1))
    slope = float((log_BHQS * products_BHQS).sum() / (products_BHQS**2).sum())
    off_the_line = float((log_BHQS - slope * products_BHQS).norm() / log_BHQS.norm())
    return slope if off_the_line < _OFF_THE_LINE else None


def _gradient_from_the_future(subject: Subject, memory: Tensor, t: int) -> float:
    """The largest gradient of what is predicted at t with respect to a later input, over the largest of any input."""
    embedded: list[Tensor] = []

    def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = subject.exact.tgt_embedding.register_forward_hook(hook)
    try:
        states = subject.exact.decode(subject.equal_sentences.tgt_in_BT, memory)
    finally:
        handle.remove()
    found = torch.autograd.grad(states[:, t].square().sum(), embedded, allow_unused=True, materialize_grads=True)
    gradient_BTD = torch.cat(found, dim=1)  # of one call for all positions, or of one for each
    return float(gradient_BTD[:, t + 1 :].abs().max() / gradient_BTD.abs().max())
