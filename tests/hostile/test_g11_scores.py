"""G11: what `nmt eval --hyp` prints is what the `sacrebleu` command prints, to the last digit and the signature."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.cli import _run

# File by file: hypotheses, references, and the target language.
FILES = {
    "ordinary": ("the cat sat on the mat\na dog barked .\n", "the cat sat on a mat\nthe dog barked.\n", "en"),
    "empty hypotheses": ("\n\nfine words here now\n", "some words\n\nfine words here now then\n", "en"),
    "Chinese": ("我喜欢吃苹果。\n今天天气很好\n", "我爱吃苹果。\n今天的天气很好!\n", "zh"),
    "carriage returns": ("one\rtwo three four five\r\nsix seven\r\n", "one two three\rfour five\nsix seven\n", "de"),
    "U+2028": (
        "six\u2028seven eight nine ten\nlast one \u2029is it\n",
        "six seven\u2028eight nine\nlast one is it\n",
        "de",
    ),
}


# The real command, several times in one process; it opens the standard streams anew each time.
SACREBLEU = """
import json, sys
from sacrebleu.sacrebleu import main
kept = []
for arguments in json.loads(sys.argv[1]):
    kept += [sys.stdin, sys.stdout]
    sys.argv = ["sacrebleu", *arguments]
    main()
    sys.stdout.flush()
"""


def printed_by_sacrebleu(cases: list[tuple[Path, Path, str, str]]) -> list[str]:
    calls = [
        [str(ref), "-i", str(hyp), "-m", metric, "-f", "text", "-w", "2", "-l", f"en-{language}"]
        for hyp, ref, language, metric in cases
    ]
    command = [sys.executable, "-c", SACREBLEU, json.dumps(calls)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def printed_by_nmt(hyp: Path, ref: Path, language: str, metric: str, capsys: pytest.CaptureFixture[str]) -> str:
    """In sacreBLEU's order: name|signature = score detail."""
    assert _run(f"eval --hyp {hyp} --ref {ref} --metric {metric} --tgt-lang {language} -q".split(), debug=False) == 0
    scores, _, signature = capsys.readouterr().out.strip().rpartition("  ")
    name, score = scores.split(" ", 1)
    return f"{name}|{signature} = {score}"


def test_eval_prints_what_sacrebleu_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    cases = []
    for number, (hypotheses, references, language) in enumerate(FILES.values()):
        hyp, ref = tmp_path / f"{number}.hyp", tmp_path / f"{number}.ref"
        hyp.write_bytes(hypotheses.encode())
        ref.write_bytes(references.encode())
        cases += [(hyp, ref, language, metric) for metric in ("bleu", "chrf")]
    pairs = list(zip([printed_by_nmt(*case, capsys) for case in cases], printed_by_sacrebleu(cases), strict=True))
    assert len({ours for ours, _ in pairs}) == 10 and sum("tok:zh" in ours for ours, _ in pairs) == 1  # they differ
    different = [f"{ours} instead of {theirs}" for ours, theirs in pairs if ours != theirs]
    value = f"{len(pairs) - len(different)} of {len(pairs)} lines equal {different or ''}".strip()
    figure("g11_sacrebleu", value, "10 of 10", not different)
