"""Hostile bundles, as they are and with a manifest signed again, as an attacker would: refused in one sentence, or
loaded with the weights that the file holds; no code of theirs runs, nothing hangs, nothing fills the memory.
"""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nmt.bundle as bundle_module
import tiny
from hostile.sandbox import Outcome, outcomes
from nmt.bundle import Bundle, weights_of
from nmt.cli import _run
from nmt.config import TokenizerConfig, TrainingConfig
from nmt.errors import BundleError
from nmt.model.transformer import Transformer
from nmt.storage.manifest import MANIFEST, manifest_of
from nmt.text.protobuf import bytes_field, fields, varint
from nmt.text.tokenizer import Tokenizer, train_sentencepiece
from nmt.training.checkpoint import Snapshot, TrainState, restore, save_checkpoint
from nmt.training.optim import make_optimizer

Figure = Callable[..., None]
Files = dict[str, bytes]
LINES = ["the big old cat sees a dog </s>", "Grün ﬁ ｆｕｌｌ … \xa0 漢字", "", "x" * 300, "a\u0301e\u0308"]


pytestmark = pytest.mark.usefixtures("one_thread")


def random_bundle(normalization: str) -> Bundle:
    """A random bundle. A tokenizer without a table to normalise by has 6 KB instead of 250."""
    src, tgt = tiny.sentences(200)
    options = {"vocab_size": 400, "normalization": normalization}
    bundle = tiny.random_bundle()
    bundle.tokenizer = Tokenizer(train_sentencepiece(src + tgt, TokenizerConfig.model_validate(options)))
    sizes = bundle.tokenizer.src_vocab_size, bundle.tokenizer.tgt_vocab_size
    bundle.config = bundle.config.model_copy(update={"src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1]})
    bundle.model = Transformer(bundle.config.model, *sizes)
    return bundle


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a bundle."""
    return files_of(tiny.save(random_bundle("identity"), tmp_path_factory.mktemp("sound") / "bundle"))


@pytest.fixture(scope="module")
def normalising(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The same with a table of `nmt_nfkc` in its tokenizer."""
    return files_of(tiny.save(random_bundle("nmt_nfkc"), tmp_path_factory.mktemp("sound") / "bundle"))


def write(folder: Path, files: Files, *, signed: bool) -> Path:
    """Write a bundle; `signed`: its manifest anew, over whatever is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if signed:
        (folder / MANIFEST).write_bytes(manifest_of(folder))
    return folder


def file_tensors(content: bytes) -> dict[str, Any]:
    """The numbers of a safetensors file, read by nobody's library."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in entry["data_offsets"])
            kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
            numbers = np.frombuffer(content[begin:end], kind).reshape(entry["shape"])
            tensors[name] = (numbers.astype(np.uint32) << 16).view(np.float32) if kind == "<u2" else numbers
    return tensors


def load(folder: Path) -> str:
    """Load a bundle and use it: "loaded" if its weights are the file's and its tokenizer keeps to its ids."""
    bundle = Bundle.load(folder)
    weights, expected = weights_of(bundle.model), file_tensors((folder / "model.safetensors").read_bytes())
    if weights.keys() != expected.keys() or not all(np.array_equal(weights[n], expected[n]) for n in weights):
        return "loaded other weights"
    encoded = bundle.tokenizer.encode_src(LINES)
    for ids in encoded:
        bundle.tokenizer.decode(ids)
        with torch.inference_mode():
            bundle.model(torch.tensor([ids]), torch.tensor([[bundle.tokenizer.special.bos]]))
    return "loaded"


def refused(found: list[Outcome]) -> int:
    return sum(outcome.kind == "BundleError" for outcome in found)


def others(found: list[Outcome], cases: Any) -> list[str]:
    """What was not refused, for the figure."""
    return [f"{case}: {o.kind} {o.message}" for o, case in zip(found, cases, strict=True) if o.kind != "BundleError"]


# M1: pickles everywhere


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def payloads(mark: Path) -> Files:
    """Five forms of a pickle that makes the file `mark` when it is loaded, by the ending of its usual name."""
    saved, legacy, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(_Payload(mark), saved)
    torch.save(_Payload(mark), legacy, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(_Payload(mark)))
        file.writestr("model.safetensors", pickle.dumps(_Payload(mark)))
    pickles = pickle.dumps(_Payload(mark), protocol=2), legacy.getvalue(), saved.getvalue()
    return {
        "pkl": pickles[0], "ckpt": pickles[1], "pt": pickles[2], "zip": archive.getvalue(),
        "bin": pickle.dumps(_Payload(mark), protocol=5),
    }  # fmt: skip


def test_m1_no_pickle_is_ever_loaded(tmp_path: Path, figure: Figure) -> None:
    mark = tmp_path / "executed"
    bundle = random_bundle("identity")
    optimizer = make_optimizer(bundle.model, TrainingConfig(max_updates=1))
    kept = save_checkpoint(tmp_path / "run", Snapshot.take(bundle, optimizer, TrainState(update=5)))
    files = files_of(kept)
    clean: Counter[bool] = Counter()
    for ending, payload in payloads(mark).items():
        beside = f"pytorch_model.{ending}"
        for name in (
            "model.safetensors",
            "config.json",
            "tokenizer.model",
            "optimizer.safetensors",
            "state.json",
            beside,
        ):
            for signed in (False, True):
                folder = write(
                    tmp_path / "run" / "checkpoints" / "ckpt-000005", {**files, name: payload}, signed=signed
                )
                with pytest.raises(BundleError) as caught:
                    Bundle.load(folder)
                    restore(folder, bundle.model, optimizer)
                clean[signed] += name.split(".")[0] in str(caught.value)
                assert not mark.exists()
                if name == "model.safetensors" and signed:  # a run folder, too
                    with pytest.raises(BundleError, match=name):
                        Bundle.load(tmp_path / "run")
    torch.load(io.BytesIO(payloads(mark)["pt"]), weights_only=False)  # the control: it would have done harm
    assert mark.exists()
    figure(
        "m1_pickles",
        f"0 executed, {clean[False]} and {clean[True]} clean errors",
        "0, 30 and 30",
        set(clean.values()) == {30},
    )


# M3: safetensors files


def safetensors(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def abused(content: bytes) -> Files:
    """The weights of a bundle in every wrong form."""
    start = 8 + int.from_bytes(content[:8], "little")
    text, data = content[8:start], content[start:]
    names = [name for name in json.loads(text) if name != "__metadata__"]
    first, second = sorted(names, key=lambda name: json.loads(text)[name]["data_offsets"])[:2]

    def changed(change: Callable[[dict[str, Any]], object], more: bytes = b"") -> bytes:
        header = json.loads(text)
        change(header)
        return safetensors(header, data + more)

    def of_first(**keys: Any) -> bytes:
        return changed(lambda header: header[first].update(keys))

    def numbers(value: float) -> bytes:
        return safetensors(text, struct.pack("<f", value) + data[4:])

    begin, end = json.loads(text)[first]["data_offsets"]
    extra = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    again = json.dumps({first: json.loads(text)[first]}).encode()
    return {
        "empty file": b"",
        "seven bytes": content[:7],
        "header of 2^63": safetensors(text, data, 1 << 63),
        "header of 2^64 - 1": safetensors(text, data, (1 << 64) - 1),
        "header past the end": safetensors(text, data, len(text) + len(data) + 1),
        "header of 99 MB": safetensors(text, data, 99_000_000) + bytes(99_000_000),
        "no header": safetensors(b"", data),
        "header is no JSON": safetensors(b"x" + text[1:], data),
        "header is a list": safetensors(b"[]", data),
        "header is no UTF-8": safetensors(text.replace(b'"F32"', b'"\xff32"', 1), data),
        "header too deep": safetensors(b'{"a":' * 100_000, data),
        "header of 5 MB": safetensors(text[:-1] + b" " * 5_000_000 + b"}", data),
        "a key twice": safetensors(text[:-1] + b"," + again[1:], data),
        "overlap": changed(lambda header: header[second].update(data_offsets=[begin, begin + (end - begin)])),
        "hole": changed(lambda header: header[first].update(data_offsets=[begin + 4, end + 4])),
        "junk at the end": content + b"junk",
        "cut": content[:-4],
        "offsets past the end": of_first(data_offsets=[begin, len(data) + 64]),
        "offsets negative": of_first(data_offsets=[-4, end]),
        "offsets reversed": of_first(data_offsets=[end, begin]),
        "offsets of 2^63": of_first(data_offsets=[1 << 63, (1 << 63) + 4]),
        "shape overflows": of_first(shape=[1 << 62, 16]),
        "shape negative": of_first(shape=[-1, 16]),
        "shape of floats": of_first(shape=[1.0]),
        "shape missing": changed(lambda header: header[first].pop("shape")),
        "dtype I32": of_first(dtype="I32"),
        "dtype unknown": of_first(dtype="F31"),
        "dtype of half the size": of_first(dtype="F16"),
        "tensor missing": changed(lambda header: header.pop(first)),
        "tensor more": changed(lambda header: header.update(extra=extra), b"\0\0\0\0"),
        "tensor renamed": changed(lambda header: header.update({"\x1b]0;x\x07": header.pop(first)})),
        "NaN": numbers(float("nan")),
        "infinity": numbers(float("-inf")),
    }  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
def test_m3_abused_weights_are_refused(tmp_path: Path, sound: Files, signed: bool, full: bool, figure: Figure) -> None:
    cases = abused(sound["model.safetensors"])
    folders = [
        write(tmp_path / str(number), {**sound, "model.safetensors": content}, signed=signed)
        for number, content in enumerate([*cases.values(), sound["model.safetensors"]])
    ]
    *found, control = outcomes(load, folders)
    assert control.kind == "loaded"
    memory, seconds = max(o.megabytes for o in found), max(o.seconds for o in found)
    wrong = others(found, cases)
    value = f"{refused(found)} of {len(cases)} refused, +{memory:.0f} MB, {seconds:.2f} s at most {wrong or ''}".strip()
    ok = not wrong and memory < 64 and (seconds < 1 or not full)
    figure(f"m3_safetensors{'_signed' if signed else ''}", value, "all, < 64 MB, < 1 s", ok)


def test_m7_numbers_are_checked_and_swapped_tensors_are_the_files(tmp_path: Path, sound: Files, figure: Figure) -> None:
    content = sound["model.safetensors"]
    header = json.loads(content[8 : (start := 8 + int.from_bytes(content[:8], "little"))])
    alike = [name for name in header if name != "__metadata__" and header[name]["shape"] == [16]]
    one, two = alike[:2]
    named = []
    for name, value in ((one, float("nan")), (two, float("inf")), (one, float("-inf"))):
        at = start + header[name]["data_offsets"][0]
        broken = content[:at] + struct.pack("<f", value) + content[at + 4 :]
        folder = write(tmp_path / "b", {**sound, "model.safetensors": broken}, signed=True)
        with pytest.raises(BundleError) as caught:
            Bundle.load(folder)
        named.append(f"tensor {name} holds NaN or infinity" in str(caught.value))
    header[one], header[two] = header[two], header[one]
    swapped = {**sound, "model.safetensors": safetensors(header, content[start:])}
    with pytest.raises(BundleError, match=r"was changed|its manifest says"):
        load(write(tmp_path / "b", swapped, signed=False))
    assert load(write(tmp_path / "b", swapped, signed=True)) == "loaded"
    figure("m7_numbers", f"{sum(named)} of {len(named)} named; swapped tensors refused by the sum", "all", all(named))


# M4: configs and folders


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def text_config(text: str) -> Callable[[Path], None]:
    return replaced("config.json", lambda path: path.write_text(text))


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tables = json.loads((folder / "config.json").read_bytes())
        change(tables)
        (folder / "config.json").write_text(json.dumps(tables))

    return edit


def model(**keys: Any) -> Callable[[Path], None]:
    return edited(lambda tables: tables["model"].update(keys))


def listed(name: str) -> Callable[[Path], None]:
    """A manifest that names a file elsewhere, with its true size and sum."""

    def change(folder: Path) -> None:
        target = folder.parent / "outside"
        target.write_bytes(b"x")
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sums = {"bytes": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
        manifest["files"][name.format(target)] = sums
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))

    return change


def sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


BOMBS: dict[str, Callable[[Path], None]] = {
    "400 billion weights": model(d_model=8192, d_ff=65536, num_encoder_layers=128, num_decoder_layers=128),
    "a width of 10^18": model(d_model=10**18),
    "10^9 layers": model(num_encoder_layers=10**9),
    "a negative width": model(d_model=-16),
    "no heads": model(num_heads=0),
    "a width that is a float": model(d_model=16.0),
    "a width that is a string": model(d_model="16"),
    "a width that is NaN": model(d_model=float("nan")),
    "dropout that is infinite": model(dropout=float("inf")),
    "a width of true": model(d_ff=True),
    "a huge vocabulary": edited(lambda tables: tables.update(src_vocab_size=10**7, tgt_vocab_size=10**7)),
    "a vocabulary past its bound": edited(lambda tables: tables.update(src_vocab_size=1 << 64)),
    "a number of 5,000 digits": text_config('{"max_length": 1' + "0" * 5000),
    "a length of 10^12": edited(lambda tables: tables.update(max_length=10**12)),
    "a beam of 10^6": edited(lambda tables: tables["decoding"].update(beam_size=10**6)),
    "a language that is no text": edited(lambda tables: tables.update(src_lang="\ud800")),
    "deep JSON": text_config("[" * 500_000),
    "a key twice": text_config('{"format_version": 1, "format_version": 1}'),
    "a gigabyte of config": replaced("config.json", sparse(1 << 30)),
    "a gigabyte of tokenizer": replaced("tokenizer.model", sparse(1 << 30)),
    "a gigabyte of manifest": replaced(MANIFEST, sparse(1 << 30)),
    "a manifest that leads out": listed("../outside"),
    "a manifest that names a root": listed("{}"),
    "a link to itself": replaced("config.json", lambda path: path.symlink_to(path.name)),
    "a link to a device": replaced("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "a link to a folder": replaced("tokenizer.model", lambda path: path.symlink_to("..")),
    "a pipe for the config": replaced("config.json", os.mkfifo),
    "a pipe for the weights": replaced("model.safetensors", os.mkfifo),
    "a pipe for the manifest": replaced(MANIFEST, os.mkfifo),
    "a folder for the tokenizer": replaced("tokenizer.model", Path.mkdir),
    "a file more": replaced("payload.py", lambda path: path.write_text("print(1)")),
    "a folder more": replaced("code", Path.mkdir),
}  # fmt: skip


def test_m4_bombs_are_refused_before_they_are_read(tmp_path: Path, sound: Files, figure: Figure) -> None:
    folders = []
    for number, (name, bomb) in enumerate(BOMBS.items()):
        folders.append(write(tmp_path / str(number), sound, signed=False))
        bomb(folders[-1])
        if "manifest" not in name and "gigabyte" not in name and "device" not in name:
            (folders[-1] / MANIFEST).write_bytes(manifest_of(folders[-1]))  # which would read those to their end
    found = outcomes(load, folders)
    wrong = others(found, BOMBS)
    memory, seconds = max(o.megabytes for o in found), max(o.seconds for o in found)
    value = f"{refused(found)} of {len(BOMBS)} refused, +{memory:.0f} MB, {seconds:.2f} s at most {wrong or ''}".strip()
    figure("m4_bombs", value, "all, < 64 MB", not wrong and memory < 64)


def test_m4_links_to_the_same_files_are_a_bundle(tmp_path: Path, sound: Files) -> None:
    """As the cache of the Hugging Face hub lays models out: every file a link to one named by its sum."""
    blobs = write(tmp_path / "blobs", sound, signed=False)
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert load(snapshot) == "loaded"


# M5: mutations


def mutated(files: Files, seed: int, names: list[str]) -> Files:
    """One or more files with bytes flipped, set, put in, cut out, taken from elsewhere, or the end cut off."""
    rng = random.Random(seed)
    changed = dict(files)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        name = rng.choice(names)
        data = bytearray(changed[name])
        if not data:
            continue
        # The ends hold what is of most effect: headers, settings, the first pieces.
        near = rng.random() < 0.6
        at = min(int(rng.expovariate(1 / 300)), len(data) - 1) if near else rng.randrange(len(data))
        at = len(data) - 1 - at if near and rng.random() < 0.3 else at
        length = rng.randint(1, 12)
        match rng.randrange(8):
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at] = rng.randrange(256)
            case 3:
                data[at : at + length] = rng.randbytes(length)
            case 4:
                data[at : at + length] = bytes([rng.choice([0, 0x7F, 0x80, 0xFF])]) * len(data[at : at + length])
            case 5:
                other = changed[rng.choice(names)]
                begin = rng.randrange(max(1, len(other)))
                data[at : at + length * rng.randint(0, 1)] = other[begin : begin + length]
            case 6:
                digits = [place for place in range(min(len(data), 4000)) if 0x30 <= data[place] <= 0x39]
                if digits:
                    data[rng.choice(digits)] = rng.choice(b'0123456789-.e"[')
            case 7:
                del data[at : at + length if rng.random() < 0.8 else None]
        changed[name] = bytes(data)
    return changed


@pytest.mark.parametrize("signed", [False, True])
def test_m5_mutations(
    tmp_path: Path, sound: Files, normalising: Files, signed: bool, full: bool, figure: Figure
) -> None:
    names = [name for name in sorted(sound) if not signed or name != MANIFEST]

    def try_one(seed: int) -> str:
        whole = normalising if seed % 4 == 0 else sound
        files = mutated(whole, seed, names)
        kind = load(write(tmp_path / "bundle", files, signed=signed))
        return kind if signed or files != whole else "unchanged"

    found = outcomes(try_one, range(20_000 if full else 150))
    tally = Counter(outcome.kind for outcome in found)
    allowed = {"BundleError", "loaded"} if signed else {"BundleError", "unchanged"}
    wrong = [f"{seed}: {o.kind} {o.message}" for seed, o in enumerate(found) if o.kind not in allowed]
    assert tally["BundleError"] and (not signed or tally["loaded"])  # both ways are met
    figure(
        f"m5_mutations{'_signed' if signed else ''}",
        f"{dict(tally)} {wrong[:5] or ''}".strip(),
        f"only {sorted(allowed)}",
        not wrong,
    )


def test_m5_sees_weights_that_are_not_the_files(tmp_path: Path, sound: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    folder = write(tmp_path / "b", sound, signed=False)
    assert load(folder) == "loaded"
    read = bundle_module._read_tensors
    monkeypatch.setattr(bundle_module, "_read_tensors", lambda path: {n: -t for n, t in read(path).items()})
    assert load(folder) == "loaded other weights"


# M6: SentencePiece


def piece(text: bytes, kind: int = 1) -> bytes:
    return bytes_field(1, bytes_field(1, text) + b"\x15" + struct.pack("<f", -5.0) + b"\x18" + varint(kind))


def charsmap(proto: bytes, change: Callable[[bytes], bytes], spec: int = 3) -> bytes:
    """The model with another table in its normaliser."""
    raw = {number: value for number, _, value in fields(proto)}[3]
    assert isinstance(raw, bytes)
    table = {number: value for number, _, value in fields(raw)}[2]
    assert isinstance(table, bytes)
    return proto + bytes_field(spec, bytes_field(2, change(table)))


def crafted(proto: bytes) -> Files:
    pieces = [raw for number, raw, _ in fields(proto) if number == 1]
    rest = b"".join(raw for number, raw, _ in fields(proto) if number != 1)
    byte = next(raw for raw in pieces if b"<0x41>" in raw)

    def trie(unit: int) -> Callable[[bytes], bytes]:
        return lambda table: table[:4] + struct.pack("<I", unit) + table[8:]

    return {
        "a piece of 100 KB": proto + piece(b"a" * 100_001),
        "an unused piece of 10 MB": proto + piece(b"a" * 10_000_000, kind=5),
        "more than 16 MB": proto + piece(b"a" * (17 << 20)),
        "a trie that leads out": charsmap(proto, trie(0x3FFF0000)),
        "a trie that leads far out": charsmap(proto, trie(0xFFFFFE00)),
        "a trie of the denormaliser": charsmap(proto, trie(0x00FFFF00), spec=5),
        "a trie of no size": charsmap(proto, lambda table: bytes(4) + table[4:]),
        "a trie of 4 GB": charsmap(proto, lambda table: b"\xff" * 4 + table[4:]),
        "a character of 1 MB": charsmap(proto, lambda table: table[:-1] + b"a" * (1 << 20) + b"\0"),
        "<unk> of 1 MB": proto + bytes_field(2, bytes_field(44, b"u" * (1 << 20))),
        "a piece with NUL": proto + piece(b"a\0b"),
        "a piece that is NUL": proto + piece(b"\0"),
        "a piece that is no UTF-8": proto + piece(b"\xff\xfe"),
        "a byte piece that is none": proto.replace(byte, byte.replace(b"<0x41>", b"<0\xff41>")),
        "a piece twice": proto + pieces[-1],
        "a piece of nothing": proto + piece(b""),
        "another number of pieces": proto + piece(b"more"),
        "special pieces moved": b"".join([pieces[-1], *pieces[:-1]]) + rest,
        "special pieces that contradict": proto + bytes_field(2, varint(42 << 3) + varint(2)),
        "no padding": proto + bytes_field(2, bytes_field(48, b"a")),
        "no pieces": rest,
        "nothing": b"",
        "half": proto[: len(proto) // 2],
    }  # fmt: skip


def test_m6_tokenizers(tmp_path: Path, normalising: Files, figure: Figure) -> None:
    proto = normalising["tokenizer.model"]
    cases = crafted(proto)
    folders = [
        write(tmp_path / str(number), {**normalising, "tokenizer.model": content}, signed=True)
        for number, content in enumerate([*cases.values(), proto])
    ]
    *found, control = outcomes(load, folders)
    assert control.kind == "loaded"

    def by_file(folder: Path) -> str:
        Tokenizer.from_files(folder / "tokenizer.model")  # as [tokenizer] src_model does
        return "loaded"

    def by_command(folder: Path) -> str:
        return f"exit code {_run(['tokenizer', 'encode', '-m', str(folder / 'tokenizer.model')], debug=False)}"

    alone = outcomes(by_file, folders[:-1])
    wrong = others(found, cases) + [each for each in others(alone, cases) if "another number" not in each]
    codes = {o.kind for o, name in zip(outcomes(by_command, folders[:-1]), cases, strict=True) if "another" not in name}
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match="no regular file"):
        Tokenizer.from_files(tmp_path / "pipe")
    value = f"{refused(found)} of {len(cases)} refused in a bundle, {refused(alone)} as a file {wrong or ''}".strip()
    figure("m6_sentencepiece", value, f"{len(cases)}, {len(cases) - 1}", not wrong and codes == {"exit code 5"})
