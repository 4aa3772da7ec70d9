"""Make tests/interop/marian: a tiny MarianMT model in Hugging Face's format, and what transformers does with it.

Run with a python that has transformers (as peers/hf/bin/python, which `make bench-train` sets up); `make test` only
reads what it wrote. The model is laid out as OPUS-MT's: </s> and <unk> first, <pad> last, and a piece of source.spm
that vocab.json does not have. It is trained for some seconds, word for word, because a random one stops at once or
never.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import sentencepiece as spm
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

FOLDER = Path(__file__).parent / "marian"
SOURCE_WORDS = "the a dog cat bird man child sees hears likes small big red old here today and not house tree"
TARGET_WORDS = "der ein hund katze vogel mann kind sieht hört mag klein groß rot alt hier heute und nicht haus baum"
SOURCE, TARGET = SOURCE_WORDS.split(), TARGET_WORDS.split()


def lines(words: list[str], count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(count)]


def train_pieces(path: Path, text: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_text("\n".join(text))
        spm.SentencePieceTrainer.train(
            input=f"{folder}/text", model_prefix=f"{folder}/m", vocab_size=60, hard_vocab_limit=False,
            model_type="unigram", normalization_rule_name="identity", minloglevel=2,
        )  # fmt: skip
        path.write_bytes((Path(folder) / "m.model").read_bytes())
    processor = spm.SentencePieceProcessor(str(path))
    return [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]


def write_tokenizer(text: list[str]) -> dict[str, int]:
    source = train_pieces(FOLDER / "source.spm", lines(SOURCE, 200, 1))
    target = train_pieces(FOLDER / "target.spm", lines(TARGET, 200, 2))
    processor = spm.SentencePieceProcessor(str(FOLDER / "source.spm"))
    used = [piece for line in text for piece in processor.encode(line, out_type=str)]
    missing = min(set(used) & set(source) - set(target), key=lambda piece: (-used.count(piece), piece))
    pieces = ["</s>", "<unk>", *dict.fromkeys(p for p in source + target if p != missing), "<pad>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    (FOLDER / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    names = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(names))
    print("source.spm alone has", missing, "which occurs", used.count(missing), "times")
    return vocabulary


def make_model(vocabulary: dict[str, int], seed: int) -> MarianMTModel:
    size, pad = len(vocabulary), vocabulary["<pad>"]
    config = MarianConfig(
        vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, activation_function="swish",
        scale_embedding=True, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                continue
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.model.shared.weight[pad] = 0.0
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, [vocabulary["<unk>"], pad]] = -50.0  # as a trained model, never to be generated
    model.generation_config = GenerationConfig(
        num_beams=4, length_penalty=1.0, max_length=64, bad_words_ids=[[pad]], pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=0,
    )  # fmt: skip
    return model


def train(model: MarianMTModel, tokenizer: MarianTokenizer, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        sources = lines(SOURCE, 32, 1000 + step)
        targets = [" ".join(TARGET[SOURCE.index(word)] for word in line.split()) for line in sources]
        batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", float(loss.detach()))


def main(seed: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = lines(SOURCE, 50, 3)
    vocabulary = write_tokenizer(text)
    tokenizer = MarianTokenizer.from_pretrained(FOLDER)
    model = make_model(vocabulary, seed)
    train(model, tokenizer, steps=110)
    model.save_pretrained(FOLDER)
    with torch.inference_mode():
        expected = expectations(model, tokenizer, text, vocabulary)
    (FOLDER / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))


def expectations(
    model: MarianMTModel, tokenizer: MarianTokenizer, text: list[str], vocabulary: dict[str, int]
) -> dict[str, object]:
    """What transformers makes of the lines."""
    expected: dict[str, object] = {"lines": text, "src_ids": [tokenizer(line)["input_ids"] for line in text]}
    searches = {
        "greedy": {"num_beams": 1},
        "beam4": {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
        "beam4_power": {"num_beams": 4, "length_penalty": 1.0, "early_stopping": True},
    }
    for name, options in searches.items():
        rows = [model.generate(**tokenizer(line, return_tensors="pt"), **options)[0].tolist() for line in text]
        ids = [[number for number in row[1:] if number] for row in rows]  # without start and end
        texts = [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in rows]
        expected[name] = {"ids": ids, "texts": texts}
        print(name, len({tuple(i) for i in ids}), "different; lengths", sorted(map(len, ids)))
    greedy = expected["greedy"]["ids"]  # type: ignore[index]
    expected["logits"] = [
        model(**tokenizer(line, return_tensors="pt"), decoder_input_ids=torch.tensor([[len(vocabulary) - 1, *ids]]))
        .logits[0, [0, -1]]
        .tolist()
        for line, ids in zip(text[:3], greedy[:3], strict=True)
    ]
    return expected


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
