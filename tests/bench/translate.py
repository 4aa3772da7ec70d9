"""Decoding speed against CTranslate2 and Hugging Face generate: the same weights, exported, in one run and one table.

    python tests/bench/translate.py [tiny] [base]

tiny: the model of `make bench-multi30k` on its 1,000 test lines. base: `configs/mixed-en-de-base.toml`, trained here
for an hour if it is not there, on 1,000 lines of tatoeba/test and of libreoffice/help_test; after an hour on a CPU it
gives a word or two a line, so each line is made to have as many pieces as the references have on average (which costs
us, who take one more step to end, up to a tenth). Ours is `Translator` with its defaults; CTranslate2 is the best of
its compute types, threads and batch sizes, chosen on the first lines. All get the same lines and give pieces, and
search with length ** 1.0 as the penalty. Ours runs before and after the others. Hugging Face has no pre-norm Marian: it
takes part where the model is post-norm, in bf16 with the first lines alone. A start is the whole life of a process that
translates one line.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sacrebleu
import tomli_w

from figures import REAL_DATA, ROOT, figure_line, nmt
from nmt.bundle import find_bundle, read_tokenizer

PYTHON = ROOT / "peers" / "hf" / "bin" / "python"
BEAMS = (1, 4)
LATENCY_LINES = 40
FIRST_LINES, BF16_LINES = 200, 50
STARTS = 3
LONGEST = 256  # pieces
ASKED = {"tiny": 1.0, "base": 1.5}
HF_ASKED = 2.5
MULTI30K = ("configs/multi30k-en-de.toml", REAL_DATA / "multi30k", ROOT / "runs" / "multi30k-en-de")
MIXED = ("configs/mixed-en-de-base.toml", REAL_DATA, ROOT / "runs" / "mixed-en-de-base")
CASES = {
    "tiny": (MULTI30K, {"multi30k": "multi30k/test_2016_flickr"}),
    "base": (MIXED, {"tatoeba": "tatoeba/test", "help": "libreoffice/help_test"}),
}

OURS = """
from nmt.decoding.translator import Translator
decoding = {"beam_size": job["beam"], "length_penalty": 1.0, "length_penalty_type": "power"}
decoding |= {"min_length": job["shortest"], "max_length": job["longest"]}
if job["shortest"] == job["longest"]:
    decoding |= {"max_length_ratio": 100.0}
translator = Translator(job["model"], device="cpu", decoding=decoding, **job["mode"])
def translate(lines):
    found = translator.translations(lines)
    return [translator.bundle.tokenizer.tgt_pieces(translation.hypotheses[0].ids) for translation in found]
runs = {"": translate}
"""
CTRANSLATE2 = """
import ctranslate2, sentencepiece
source = sentencepiece.SentencePieceProcessor(job["model"] + "/source.spm")
limits = {"max_decoding_length": job["longest"], "min_decoding_length": job["shortest"], "length_penalty": 1.0}
opened = {}
def engine(*setting):  # one at a time
    if setting not in opened:
        opened.clear()
        kind, inter, intra = setting
        opened[setting] = ctranslate2.Translator(
            job["model"], compute_type=kind, inter_threads=inter, intra_threads=intra)
    return opened[setting]
runs = {}
for kind in sorted(ctranslate2.get_supported_compute_types("cpu"), key=lambda kind: (kind != "int8", kind)):
    for inter, intra in ((1, 2), (2, 1)):
        for batch in (32, 64, 128):
            def translate(lines, setting=(kind, inter, intra), batch=batch):
                pieces = source.encode(lines, out_type=str)
                found = engine(*setting).translate_batch(pieces, beam_size=job["beam"], max_batch_size=batch, **limits)
                return [result.hypotheses[0] for result in found]
            runs[f"{kind} {inter}x{intra} batch {batch}"] = translate
"""
TRANSFORMERS = """
import torch
from transformers import MarianMTModel, MarianTokenizer
dtype = torch.bfloat16 if job["mode"].get("precision") == "bf16" else torch.float32
model = MarianMTModel.from_pretrained(job["model"], dtype=dtype).eval()
tokenizer = MarianTokenizer.from_pretrained(job["model"])
def translate(lines):
    order, found = sorted(range(len(lines)), key=lambda i: len(lines[i])), [None] * len(lines)
    for start in range(0, len(order), 64):
        batch = order[start : start + 64]
        with torch.inference_mode():
            ids = model.generate(
                **tokenizer([lines[i] for i in batch], return_tensors="pt", padding=True), num_beams=job["beam"],
                max_new_tokens=job["longest"], min_new_tokens=job["shortest"], length_penalty=1.0,
                early_stopping=job["beam"] > 1)
        for i, row in zip(batch, ids):
            row = [token for token in row.tolist() if token not in tokenizer.all_special_ids]
            found[i] = tokenizer.convert_ids_to_tokens(row)
    return found
runs = {"": translate}
"""
# Open and translate a line, from the start of the process; warm up, and if there are several ways choose the fastest
# with the first lines; translate all lines; then some one by one.
MEASURE = """
import json, resource, sys, time
job = json.load(open(sys.argv[1]))
lines = job["lines"]
{engine}
def timed(translate, lines):
    began = time.perf_counter()
    pieces = translate(lines)
    return len(lines) / (time.perf_counter() - began), pieces
def speed_on_first(name):
    runs[name](lines[:32])
    return timed(runs[name], lines[: job["first_lines"]])[0]
if job["first_lines"] == 0:
    next(iter(runs.values()))(lines[:1])
    sys.exit()
name = max(runs, key=speed_on_first) if len(runs) > 1 else ""
translate = runs[name]
translate(lines[:32])
speed, pieces = timed(translate, lines)
waits = []
for line in lines[: job["latency_lines"]]:
    began = time.perf_counter()
    translate([line])
    waits.append(1000 * (time.perf_counter() - began))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("RESULT" + json.dumps({{"lines/s": speed, "name": name, "pieces": pieces, "ms": waits, "peak MB": peak}}))
"""


def main(sizes: list[str]) -> None:
    """Print the tables and the figures."""
    if not REAL_DATA.is_dir():
        sys.exit("bench-translate needs ../shared/data and ../shared/bench")
    if not PYTHON.exists():
        setup = ROOT.parent / "shared" / "bench" / "setup_peers.sh"
        subprocess.run(["bash", setup, ROOT / "peers"], check=True, stdout=sys.stderr)
    for size in sizes:
        (recipe, data, run), texts = CASES[size]
        nmt("train", recipe, "--data", data, "--out", run)
        with tempfile.TemporaryDirectory() as folder:
            exports = _export(run, Path(folder))
            for name, text in texts.items():
                src, ref = ((REAL_DATA / f"{text}.{side}").read_text().split("\n")[:1000] for side in ("en", "de"))
                for beam in BEAMS:
                    _compare(size, f"{size}_{name}", beam, run, exports, src, ref)


def _export(run: Path, folder: Path) -> dict[str, Path]:
    """The model for each peer that can hold it."""
    norm = json.loads(nmt("model", "info", "-m", run, "--json"))["model"]["norm"]
    exports = {}
    for target in ("ctranslate2", *(["marian-hf"] if norm == "post" else [])):
        exports[target] = folder / target
        command = [PYTHON, "-m", "nmt", "model", "export", run, "--format", target, "--out", exports[target], "--quiet"]
        subprocess.run(command, check=True, env=_environment(folder), stdout=sys.stderr)
    return exports


def _environment(folder: Path) -> dict[str, str]:
    """For the peers' python: our package, and the one of its libraries that it lacks."""
    borrowed = folder / "borrowed"
    if not borrowed.exists():
        borrowed.mkdir()
        (borrowed / "tomli_w").symlink_to(Path(tomli_w.__file__).parent)
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{borrowed}"}


def _compare(
    size: str, name: str, beam: int, run: Path, exports: dict[str, Path], src: list[str], ref: list[str]
) -> None:
    shortest, longest = 1, LONGEST
    if size == "base":
        encoded = read_tokenizer(find_bundle(run)).encode_tgt(ref)
        shortest = longest = round(statistics.mean(len(ids) - 1 for ids in encoded))
    job: dict[str, Any] = {
        "lines": src,
        "beam": beam,
        "shortest": shortest,
        "longest": longest,
        "latency_lines": LATENCY_LINES,
        "first_lines": FIRST_LINES,
        "mode": {},
    }
    ours = {**job, "model": str(run)}
    first = _measure(sys.executable, OURS, ours)
    rows = {"ctranslate2": _measure(PYTHON, CTRANSLATE2, {**job, "model": str(exports["ctranslate2"])})}
    if "marian-hf" in exports:
        hf = {**job, "model": str(exports["marian-hf"])}
        rows["transformers fp32"] = _measure(PYTHON, TRANSFORMERS, hf)
        few = {"lines": src[:BF16_LINES], "latency_lines": 5, "mode": {"precision": "bf16"}}
        rows["transformers bf16"] = _measure(PYTHON, TRANSFORMERS, {**hf, **few})
    for label, mode in (("fp32", {"precision": "fp32"}), ("fp32 det.", {"precision": "fp32", "deterministic": True})):
        rows[f"nmt {label}"] = _measure(sys.executable, OURS, {**ours, "mode": mode})
    last = _measure(sys.executable, OURS, ours)
    rows = {"nmt": {**first, "lines/s": statistics.mean([first["lines/s"], last["lines/s"]])}, **rows}
    bleus = _print_table(f"{name}, beam {beam}", rows, run, ref)
    for label in [label for label in rows if not label.startswith("nmt")]:
        asked = ASKED[size] if label == "ctranslate2" else HF_ASKED
        if label == "ctranslate2" and beam == 1:
            continue  # asked of beam 4
        ratio = rows["nmt"]["lines/s"] / rows[label]["lines/s"]
        mine, theirs = rows["nmt"]["pieces"], rows[label]["pieces"]
        apart = abs(sum(map(len, mine[: len(theirs)])) / sum(map(len, theirs)) - 1)
        shown = f"{ratio:.2f} (lengths {apart:.1%} apart)"
        figure = f"translate_{name}_beam_{beam}_of_{label.replace(' ', '_')}"
        print(figure_line(figure, shown, f">= {asked}, lengths <= 2%", ratio >= asked and apart <= 0.02))
    loss = bleus["nmt fp32"] - bleus["nmt"]
    print(figure_line(f"translate_{name}_beam_{beam}_bleu_lost", f"{loss:.2f}", "<= 0.3", loss <= 0.3), flush=True)


def _print_table(title: str, rows: dict[str, dict[str, Any]], run: Path, ref: list[str]) -> dict[str, float]:
    """Returns: the BLEU of each row."""
    tokenizer = read_tokenizer(find_bundle(run))
    print(f"{title}: lines/s, of CTranslate2, pieces a line, BLEU, ms a line alone (median, p95), start s, peak MB")
    bleus = {}
    for label, row in rows.items():
        texts = [tokenizer.decode_pieces(pieces, side="tgt", ids=False) for pieces in row["pieces"]]
        bleus[label] = sacrebleu.corpus_bleu(texts, [ref[: len(texts)]]).score
        waits = sorted(row["ms"])
        alone = f"{statistics.median(waits):6.0f} {waits[int(0.95 * len(waits))]:5.0f} {row['start s']:5.1f}"
        quality = f"{statistics.mean(map(len, row['pieces'])):6.2f} {bleus[label]:6.2f}"
        speed = f"{row['lines/s']:7.1f} {row['lines/s'] / rows['ctranslate2']['lines/s']:5.2f}"
        print(f"  {label:18s} {speed} {quality} {alone} {row['peak MB']:6.0f}  {row['name'] or len(texts)}")
    return bleus


def _measure(python: Path | str, engine: str, job: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own, so that its peak memory is its own."""
    print("$", Path(str(job["model"])).name, engine.split()[1], job["mode"], file=sys.stderr, flush=True)
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        _run(python, engine, {**job, "first_lines": 0})
        starts.append(time.perf_counter() - began)
    for line in _run(python, engine, job).splitlines():
        if line.startswith("RESULT"):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
            return {**result, "start s": statistics.median(starts)}
    sys.exit("an engine gave no result")


def _run(python: Path | str, engine: str, job: dict[str, Any]) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        command = [str(python), "-W", "ignore", "-c", MEASURE.format(engine=engine), file.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"an engine failed: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
