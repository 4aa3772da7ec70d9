"""The corpora that training reads: the sources of a config, or the domains of its only one, each with its weight."""

from nmt.config import DataConfig, Source


class OfDomains(Source):
    """The pairs of a source to which a file, line by line, gives one of these domains; or none of them, if `others`."""

    file: str
    domains: list[str]
    others: bool = False


def corpora_of(data: DataConfig) -> list[Source]:
    """What an epoch sees, each as often as its `weight` says; domains of weight 0 are left out."""
    if data.train_domain is None:
        return data.train
    (source,), file = data.train, data.train_domain

    def part(domains: list[str], weight: float, *, others: bool = False) -> OfDomains:
        keys = {**dict(source), "weight": source.weight * weight}
        return OfDomains.model_construct(**keys, file=file, domains=domains, others=others)

    parts = [part([domain], weight) for domain, weight in data.domain_weights.items() if weight]
    return [*parts, part(list(data.domain_weights), 1.0, others=True)]


def corpus_weights(data: DataConfig) -> list[float]:
    """How often an epoch sees each pair of each corpus."""
    return [source.weight for source in corpora_of(data)]


def selection_of(source: Source) -> str:
    """Which pairs of its files are meant, in words; empty if all are."""
    if not isinstance(source, OfDomains):
        return ""
    return "other domains" if source.others else ", ".join(source.domains)
