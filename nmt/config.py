"""One TOML file a recipe: its sections, types, ranges and defaults, and how a wrong one is reported.

`load_config` reads a file, applies `--set section.key=value` overrides and returns a frozen `Config`. Every mistake
is a `ConfigError` that names the key, the nearest valid key and the allowed values.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from nmt.config_mistakes import AUTO_OR_FLAG, AUTO_OR_NUMBER, allowed_range, explain
from nmt.errors import ConfigError, StorageError


class Section(BaseModel):
    """A frozen table of the TOML file; unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_KIND_BY_ENDING = re.compile(r"\.(tsv|jsonl|parquet)(\.gz|\.xz|\.zst|\.bz2)?$")
CONTROL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
_LONGEST_SYMBOL = 64


def _checked_symbol(symbol: str) -> str:
    """Raises: ValueError, if it cannot be one piece of its own."""
    if not symbol or any(char.isspace() or char == "▁" or not char.isprintable() for char in symbol):
        raise ValueError(f"{symbol!r} is no symbol: it must be printable, without white space and '▁', as \"<2de>\"")
    if symbol in CONTROL_PIECES or re.fullmatch("<0x[0-9A-F]{2}>", symbol):
        raise ValueError(f'{symbol!r} is a piece that the tokenizer has for itself; choose another, as "<2de>"')
    if len(symbol) > _LONGEST_SYMBOL:
        raise ValueError(f"{symbol[:20]!r}… has {len(symbol)} characters; {_LONGEST_SYMBOL} are allowed")
    return symbol


class Source(Section):
    """Where sentence pairs come from: exactly one of `prefix`, `src` + `tgt`, `tsv`, `jsonl`, `parquet` and `hf`.

    In TOML a plain string stands for a file of its kind if it ends in `.tsv`, `.jsonl` or `.parquet`, else for a
    prefix. Text, TSV and JSON lines may be compressed by gzip, xz, zstandard or bzip2: `.tsv.gz`, or a prefix whose
    files are `PREFIX.en.zst`.
    """

    prefix: str | None = None  # files PREFIX.<src_lang> and PREFIX.<tgt_lang>
    src: str | None = None
    tgt: str | None = None
    tsv: str | None = None  # one pair a line, source TAB target
    jsonl: str | None = None  # one object a line
    parquet: str | None = None  # a file, a folder of them, or a pattern as "part-*.parquet"
    # tsv: the number of the column, from 1. jsonl, parquet: the name of the field, "a.b" for b inside a; by default the
    # language, else translation.<language>.
    src_field: int | str | None = None
    tgt_field: int | str | None = None
    hf: str | None = None  # data set id on the hub, or a local folder laid out like the hub's repository
    name: str | None = None  # the data set's configuration, as in load_dataset(hf, name)
    split: str = "train"
    column: str = "translation"  # the column that holds {language: text}
    weight: float = Field(default=1.0, gt=0.0, le=1000.0)  # how often an epoch of training sees each pair
    tag: str = ""  # a user symbol, as "<lo>", that is put before every source text
    licence: str = ""  # for the model's sheet

    @field_validator("tag")
    @classmethod
    def _is_symbol(cls, tag: str) -> str:
        return _checked_symbol(tag) if tag else tag

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        if isinstance(value, str):
            kind = _KIND_BY_ENDING.search(value)
            return {kind[1] if kind else "prefix": value}
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        kinds = [self.prefix, self.tsv, self.jsonl, self.parquet, self.hf, self.src or self.tgt]
        if sum(kind is not None for kind in kinds) != 1 or (self.src is None) != (self.tgt is None):
            raise ValueError(
                'give exactly one of: prefix = "…", src = "…" with tgt = "…", tsv = "…", jsonl = "…", parquet = "…", '
                'hf = "…"'
            )
        return self

    @model_validator(mode="after")
    def _fields_of_their_kind(self) -> Self:
        fields = [field for field in (self.src_field, self.tgt_field) if field is not None]
        if self.tsv is not None and not all(isinstance(field, int) and field > 0 for field in fields):
            raise ValueError("src_field and tgt_field of a TSV file are numbers of columns, from 1")
        if self.tsv is None and not all(isinstance(field, str) and field for field in fields):
            raise ValueError("src_field and tgt_field are names of fields, as text")
        if fields and not (self.tsv or self.jsonl or self.parquet):
            raise ValueError("src_field and tgt_field go with tsv, jsonl and parquet")
        return self


Filter = Literal[
    "encoding", "mojibake", "identical", "too long", "ratio", "script", "swapped", "language", "misaligned",
    "unrelated", "numbers", "placeholders", "markup", "garbage",
]  # fmt: skip


class DataConfig(Section):
    """`[data]`: the corpora and the rules by which pairs are dropped."""

    src_lang: str = "en"
    tgt_lang: str = "de"
    dir: str = "."  # relative paths below are resolved against it; --data overrides it
    offline: bool = False  # never ask the Hugging Face hub: take what its library has kept, and local files
    train: list[Source] = Field(min_length=1)
    train_domain: str | None = None  # a file with the domain of each pair of the one source of train, line by line
    # How often an epoch of training sees each pair of a domain; never, if 0. Those of domains without a weight: once.
    domain_weights: dict[str, Annotated[float, Field(ge=0.0, le=1000.0)]] = Field(default_factory=dict)
    valid: Source | None = None  # None: `valid_size` pairs are held out of train
    valid_size: int = Field(default=1000, ge=1, le=100_000)
    max_length: int = Field(default=256, ge=2, le=4096)  # pieces a side, end of sentence included
    max_length_ratio: float = Field(default=4.0, ge=1.0, le=1000.0)  # longer side / shorter side, in pieces
    remove_duplicates: bool = True  # a pair seen before is dropped
    filters: list[Filter] = Field(default_factory=list)  # rules of `nmt data check` by which training pairs are dropped

    @model_validator(mode="after")
    def _domains_of_one_source(self) -> Self:
        if (self.train_domain is None) != (not self.domain_weights):
            raise ValueError("train_domain = FILE goes with domain_weights = { DOMAIN = WEIGHT }")
        if any(not domain or domain != domain.strip() for domain in self.domain_weights):
            raise ValueError("a domain of domain_weights has no name, or spaces around it")
        if self.train_domain is not None and len(self.train) != 1:
            raise ValueError("train_domain is of one source; several of train have a weight = … of their own each")
        return self

    @model_validator(mode="after")
    def _held_out_is_unseen(self) -> Self:
        if self.valid is None and not self.remove_duplicates:
            raise ValueError(
                "without valid, pairs are held out of train; that needs remove_duplicates = true, or they occur in both"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_source_is_a_list(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("train"), str | dict):
            return {**value, "train": [value["train"]]}
        return value


class TokenizerConfig(Section):
    """`[tokenizer]`: a SentencePiece model, trained when the run starts unless one is given."""

    type: Literal["unigram", "bpe"] = "bpe"
    vocab_size: int = Field(default=8000, ge=16, le=1_000_000)  # soft: lowered with a warning for a small corpus
    joint: bool = True  # one vocabulary for both languages
    character_coverage: float = Field(default=1.0, ge=0.98, le=1.0)  # what SentencePiece takes
    byte_fallback: bool = True  # an unseen character becomes its UTF-8 bytes instead of <unk>
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    train_lines: int = Field(default=1_000_000, ge=100, le=50_000_000)  # sampled lines, both sides together
    user_symbols: list[str] = []  # as "<2de>": always one piece; the tags of sources are added
    src_model: str | None = None  # a SentencePiece file (relative to data.dir); serves both sides if joint
    tgt_model: str | None = None

    @field_validator("user_symbols")
    @classmethod
    def _are_symbols(cls, symbols: list[str]) -> list[str]:
        return list(map(_checked_symbol, symbols))

    @model_validator(mode="after")
    def _given_models(self) -> Self:
        if self.joint and self.tgt_model is not None:
            raise ValueError("tgt_model is for joint = false; with joint = true give src_model alone")
        if not self.joint and (self.src_model is None) != (self.tgt_model is None):
            raise ValueError("with joint = false give both src_model and tgt_model, or neither")
        return self


_OF_TRANSFORMERS = {
    "num_heads", "num_kv_heads", "qk_norm", "positions", "max_positions", "d_ff", "norm", "activation",
    "activation_dropout",
}  # fmt: skip
_OF_RNNS = {"cell", "attention"}


class ModelConfig(Section):
    """`[model]`: its kind and shape, and its dropout rates. docs/attention.md has the equations.

    Keys of the other type are not used, so that one recipe trains both.
    """

    type: Literal["transformer", "rnn"] = "transformer"  # Vaswani et al. 2017, or Bahdanau et al. 2015 and after
    num_encoder_layers: int = Field(default=6, ge=1, le=128)
    num_decoder_layers: int = Field(default=6, ge=1, le=128)
    d_model: int = Field(default=512, ge=2, le=8192)
    tied_embeddings: Literal["none", "decoder", "all"] = "all"  # decoder: target embedding = output layer
    output_bias: bool = False  # of the output layer; models of other programs may have one
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)  # on every residual branch; rnn: on the input of every layer
    embedding_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # on attention weights

    # of a transformer
    num_heads: int = Field(default=8, ge=1, le=256)
    num_kv_heads: int | None = Field(default=None, ge=1, le=256)  # fewer share keys and values (GQA; 1: MQA); all
    qk_norm: bool = False  # queries and keys are normalised before they meet
    # Of tokens; all but the first two act inside self-attention. "relative" is T5's, "shaw" Shaw's.
    positions: Literal["sinusoidal", "learned", "rope", "relative", "shaw"] = "sinusoidal"
    max_positions: int = Field(default=1024, ge=16, le=1_000_000)  # of learned ones: pieces a side at most
    d_ff: int = Field(default=2048, ge=1, le=65536)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # inside the feed-forward layer

    # of an rnn
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["bahdanau", "luong_dot", "luong_general", "luong_concat"] = "bahdanau"

    @property
    def head_dim(self) -> int:
        """Width of one attention head; a recurrent model has one."""
        return self.d_model if self.type == "rnn" else self.d_model // self.num_heads

    @property
    def widest(self) -> int:
        """Numbers of the widest layer's output, at one position."""
        return 4 * self.d_model if self.type == "rnn" else self.d_ff

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    def used(self) -> dict[str, object]:
        """The keys that this type of model uses, with their values."""
        unused = _OF_TRANSFORMERS if self.type == "rnn" else _OF_RNNS
        keys = {key: value for key, value in self.model_dump().items() if key not in unused}
        if self.positions != "learned":
            keys.pop("max_positions", None)
        return keys

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.d_model % 2:
            what = "positions" if self.type == "transformer" else "an encoder's two directions"
            raise ValueError(f"d_model = {self.d_model} must be even: {what} come in halves")
        if self.type == "rnn":
            return self
        if self.d_model % self.num_heads:
            heads = min((h for h in range(1, 257) if self.d_model % h == 0), key=lambda h: abs(self.d_model / h - 64))
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by num_heads = {self.num_heads}; 64 a head is usual, "
                f"here num_heads = {heads} gives {self.d_model // heads}"
            )
        if self.num_heads % self.kv_heads:
            fitting = [str(heads) for heads in range(1, self.num_heads + 1) if self.num_heads % heads == 0]
            raise ValueError(
                f"num_heads = {self.num_heads} cannot be shared out over num_kv_heads = {self.kv_heads}; "
                f"{', '.join(fitting)} can be"
            )
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(
                f'positions = "rope" turns pairs of numbers, but a head has {self.head_dim} (d_model / num_heads)'
            )
        return self


# The tags say which of a key's types a wrong value was held against.
_NUMBER, _FLAG = "number", "flag"
AutoOrNumber = Annotated[
    Annotated[Literal["auto"], Tag(AUTO_OR_NUMBER)] | Annotated[int, Field(ge=16, le=10_000_000), Tag(_NUMBER)],
    Discriminator(lambda value: AUTO_OR_NUMBER if isinstance(value, str) else _NUMBER),
]
AutoOrFlag = Annotated[
    Annotated[Literal["auto"], Tag(AUTO_OR_FLAG)] | Annotated[bool, Tag(_FLAG)],
    Discriminator(lambda value: AUTO_OR_FLAG if isinstance(value, str) else _FLAG),
]


class TrainingConfig(Section):
    """`[training]`: optimisation, length of the run, what is kept. An update is one optimiser step."""

    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    # Padded tokens of the longer side; auto: the most that fit into memory (up to 65,536; on a CPU 4,096).
    tokens_per_batch: AutoOrNumber = 4096
    accumulation: int = Field(default=1, ge=1, le=1024)  # micro-batches an update, on each rank
    # Batches of sources of one length, which need no mask, so that flash attention runs; auto: on CUDA.
    equal_source_lengths: AutoOrFlag = "auto"
    compile: AutoOrFlag = "auto"  # layers by torch.compile while training; auto: on CUDA, if it works
    gradient_checkpointing: bool = False  # less memory for about a third more time: layers are computed twice
    sharding: Literal["none", "full"] = "none"  # full: every rank holds a part of weights, gradients and moments
    learning_rate: float = Field(default=5e-4, gt=0.0, le=10.0)  # the peak, reached after warm-up
    warmup_updates: int = Field(default=4000, ge=0, le=1_000_000)
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.98, ge=0.0, lt=1.0)
    epsilon: float = Field(default=1e-9, gt=0.0, le=1e-2)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    clip_norm: float = Field(default=1.0, ge=0.0, le=1e6)  # 0: no clipping
    # Other pieces of the same text at every epoch, on both sides; 0: always the same ones.
    bpe_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # of a bpe tokenizer: the share of merges left out; 0.1
    unigram_alpha: float = Field(default=0.0, ge=0.0, le=100.0)  # of unigram: pieces drawn by probability ^ this; 0.2
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    max_updates: int | None = Field(default=None, ge=1, le=100_000_000)
    max_epochs: int | None = Field(default=None, ge=1, le=1_000_000)
    max_minutes: float | None = Field(default=None, gt=0.0, le=1e6)  # with validation, summed over resumes
    log_every: int = Field(default=50, ge=1, le=100_000)  # updates between lines of log.jsonl
    checkpoint_every: int | None = Field(default=None, ge=1, le=10_000_000)  # default: validation.every
    keep_last: int = Field(default=5, ge=1, le=1000)
    keep_best: int = Field(default=1, ge=1, le=1000)
    average: Literal["last", "best"] = "last"
    average_count: int = Field(default=5, ge=1, le=1000)  # checkpoints averaged into the final bundle
    rank_timeout_s: float = Field(default=600.0, ge=1.0, le=1e6)  # of several ranks: one that is silent longer is lost
    init_from: str | None = None  # a bundle or run folder: its weights and tokenizer; [tokenizer] is then not used

    @property
    def batch_tokens(self) -> int:
        """`tokens_per_batch` of a resolved config, which is a number."""
        assert isinstance(self.tokens_per_batch, int), "auto is resolved when a run is opened"
        return self.tokens_per_batch

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.max_updates is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("say when to stop: set max_updates, max_epochs or max_minutes")
        if self.schedule in ("linear", "cosine") and self.max_updates is None:
            raise ValueError(f'schedule = "{self.schedule}" ends at max_updates: set it')
        if self.compile is True and self.sharding == "full":
            raise ValueError('compile = true was never tried with sharding = "full": give up one of them')
        kept = self.keep_last if self.average == "last" else self.keep_best
        if self.average_count > kept:
            raise ValueError(
                f"average_count = {self.average_count} checkpoints cannot be averaged when keep_{self.average} = {kept}"
            )
        return self


class ValidationConfig(Section):
    """`[validation]`: how often, on what metric, and when to stop early."""

    every: int = Field(default=1000, ge=1, le=10_000_000)  # updates
    metric: Literal["loss", "bleu", "chrf"] = "bleu"  # decides the best checkpoint and the early stop
    patience: int = Field(default=0, ge=0, le=100_000)  # validations without a better score; 0: never stop early
    beam_size: int = Field(default=1, ge=1, le=100)
    max_sentences: int = Field(default=0, ge=0, le=1_000_000)  # translated at each validation; 0: all
    tokenize: str | None = None  # sacreBLEU's tokenizer for BLEU, as "char"; default: by language


class DecodingConfig(Section):
    """`[decoding]`: the defaults that the bundle carries; the command line wins. Lengths are in pieces, without EOS."""

    beam_size: int = Field(default=4, ge=1, le=1000)  # 1: greedy
    n_best: int = Field(default=1, ge=1, le=1000)  # translations found a line
    length_penalty: float = Field(default=0.6, ge=0.0, le=10.0)  # alpha; 0: plain log-probability
    length_penalty_type: Literal["gnmt", "power"] = "gnmt"  # ((5 + length) / 6) ** alpha, or length ** alpha
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=10.0)  # GNMT's beta
    max_length_ratio: float = Field(default=2.0, gt=0.0, le=100.0)  # target <= ratio * source + extra
    max_length_extra: int = Field(default=20, ge=1, le=10_000)
    max_length: int = Field(default=10_000, ge=1, le=100_000)  # target, whatever the source
    min_length: int = Field(default=1, ge=0, le=1000)  # before the end may come
    min_length_ratio: float = Field(default=0.0, ge=0.0, le=100.0)  # of the source
    no_repeat_ngram: int = Field(default=0, ge=0, le=100)  # 0: n-grams may come again
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0)
    sample: bool = False  # draw instead of searching
    temperature: float = Field(default=1.0, gt=0.0, le=100.0)
    top_k: int = Field(default=0, ge=0, le=1_000_000)  # 0: all
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    tag: str = ""  # a user symbol of the model's, as "<lo>", put before every source text

    @field_validator("tag")
    @classmethod
    def _is_symbol(cls, tag: str) -> str:
        return _checked_symbol(tag) if tag else tag

    # Whether the sentences of a line are translated one by one; auto: if over 95 % of the training lines were one each.
    split_sentences: Literal["auto", "always", "never"] = "auto"

    # Word alignments, and where --protect puts things: which cross-attention they are taken from.
    align_layer: int = Field(default=0, ge=0, le=128)  # of the decoder, from 1; 0: the mean of the upper half
    align_head: int = Field(default=0, ge=0, le=1024)  # from 1; 0: the mean of all
    align_shift: bool = False  # when the token is read, instead of when it is predicted
    align_threshold: float = Field(default=0.0, ge=0.0, le=1.0)  # a word's largest weight, below which it has no link

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if not self.sample and self.n_best > self.beam_size:
            raise ValueError(f"n_best = {self.n_best} needs a beam_size of at least that, not {self.beam_size}")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ValueError("temperature, top_k and top_p are for sample = true")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length = {self.min_length} is more than max_length = {self.max_length}")
        return self

    def fewest_pieces(self, src_pieces: int) -> int:
        """Target pieces, without EOS, that a source of so many, with EOS, is given at least."""
        return max(self.min_length, int(self.min_length_ratio * src_pieces))

    def most_pieces(self, src_pieces: int) -> int:
        """Target pieces, without EOS, that a source of so many, with EOS, is given at most."""
        return min(self.max_length, int(self.max_length_ratio * src_pieces) + self.max_length_extra - 1)

    def changed(self, **keys: object) -> "DecodingConfig":
        """A copy with other values; None leaves a key as it is. Raises: ConfigError."""
        given = {key: value for key, value in keys.items() if value is not None}
        try:
            return DecodingConfig.model_validate({**self.model_dump(), **given})
        except ValidationError as error:
            problem = error.errors()[0]
            if problem["type"] == "extra_forbidden":
                raise ConfigError(explain({**problem, "loc": ("decoding", *problem["loc"])}, Config)) from None
            key = ".".join(map(str, problem["loc"]))
            message = problem["msg"].removeprefix("Value error, ")
            allowed = allowed_range(["decoding", key], Config)
            raise ConfigError(f"{key} = {given.get(key)}: {message}{allowed}." if key else f"{message}.") from None


class Config(Section):
    """A whole recipe."""

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig
    validation: ValidationConfig = ValidationConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _sampling_of_the_type(self) -> Self:
        if self.tokenizer.src_model is None and self.training.init_from is None:  # else the type is that model's
            other = "unigram_alpha" if self.tokenizer.type == "bpe" else "bpe_dropout"
            if getattr(self.training, other):
                raise ValueError(f'training.{other} is not for tokenizer.type = "{self.tokenizer.type}"')
        return self

    @model_validator(mode="after")
    def _positions_suffice(self) -> Self:
        if self.model.type == "transformer" and self.model.positions == "learned":
            limit = self.model.max_positions
            if self.data.max_length > limit:
                raise ValueError(
                    f"data.max_length = {self.data.max_length} pieces, but model.max_positions = {limit} positions are "
                    f"learned: raise the one or lower the other"
                )
        return self

    @model_validator(mode="after")
    def _of_transformers_alone(self) -> Self:
        asked = {"compile": True, "gradient_checkpointing": True, "sharding": "full"}
        for key, value in asked.items():
            if self.model.type == "rnn" and getattr(self.training, key) == value:
                raise ValueError(f'training.{key} is not for model.type = "rnn"')
        return self

    @model_validator(mode="after")
    def _one_vocabulary_to_tie(self) -> Self:
        if self.model.tied_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError('model.tied_embeddings = "all" needs tokenizer.joint = true; "decoder" works with both')
        return self

    def replace(self, **sections: Mapping[str, Any]) -> "Config":
        """A copy with some keys changed: `config.replace(training={"seed": 2})`; checked like a file.

        Keys that were left to their defaults still count as not given.
        """
        tables = self.model_dump(exclude_none=True, exclude_unset=True)
        for section, changes in sections.items():
            tables[section] = {**tables.get(section, {}), **changes}
        return parse_config(tables, where="the changed config")

    def to_toml(self) -> str:
        """The resolved config, every key written out (keys without a value are left out)."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load_config(path: Path, overrides: Sequence[str] = (), *, trains: bool = True) -> Config:
    """Read a TOML recipe and apply `section.key=value` overrides, whose values are TOML too.

    Without `trains` the section [training] may be missing.

    Raises: ConfigError (missing file, bad TOML, unknown key, wrong type or range).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no config {path}. The recipes that come with nmt are in configs/.") from None
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config {path} is no text file in UTF-8: {error}.") from error
    except OSError as error:
        raise StorageError(f"Cannot read the config {path}: {error}.") from error
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    if not trains:
        tables.setdefault("training", {"max_updates": 1})
    apply_overrides(tables, overrides)
    changed = f" with --set {' --set '.join(overrides)}" if overrides else ""
    return parse_config(tables, where=f"{path}{changed}")


def apply_overrides(tables: dict[str, Any], overrides: Iterable[str]) -> None:
    """Write each `section.key=value` into `tables`; a value that is no TOML is taken as a string."""
    for override in overrides:
        dotted, equals, text = override.partition("=")
        keys = [key.strip() for key in dotted.split(".")]
        if not equals or len(keys) < 2 or not all(keys):
            raise ConfigError(f"--set {override!r} is not of the form section.key=value, as in training.seed=2.")
        try:
            parsed = tomllib.loads(f"v = {text}")
            value = parsed["v"] if len(parsed) == 1 else text.strip()
        except (ValueError, RecursionError):
            value = text.strip()
        table = tables
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {override!r}: {key!r} is a value, not a table.")
        table[keys[-1]] = value


def parse_config(tables: Mapping[str, Any], where: str) -> Config:
    """Check the tables of a recipe; `where` names their origin in messages. Raises: ConfigError."""
    _refuse_nul(tables, where)
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        problems = "\n".join(f"  {explain(problem, Config)}" for problem in error.errors())
        raise ConfigError(f"{where} has {error.error_count()} mistake(s):\n{problems}") from None


def _refuse_nul(value: object, where: str, key: str = "") -> None:
    """Raises: ConfigError, for a text with a NUL character, which no name of a file or language has."""
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where}: {key} = {value!r} holds a NUL character.")
    nested = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, each in nested:
        _refuse_nul(each, where, f"{key}.{name}".lstrip("."))
