"""Train configs/multi30k-en-de.toml for 20 minutes on real text, score test_2016_flickr, draw three attention maps.

The run lies in runs/multi30k-en-de and is resumed or used if it is there; delete it to train anew.
"""

import json
import sys

from figures import REAL_DATA, ROOT, figure_line, nmt

DATA = REAL_DATA / "multi30k"
RUN = ROOT / "runs" / "multi30k-en-de"
HYPOTHESES = RUN / "test_2016_flickr.hyp.de"


def main() -> None:
    """Train, score, show."""
    if not DATA.is_dir():
        sys.exit("this bench needs ../shared/data/multi30k")
    nmt("train", "configs/multi30k-en-de.toml", "--data", DATA, "--out", RUN)
    src, ref = DATA / "test_2016_flickr.en", DATA / "test_2016_flickr.de"
    scores = json.loads(nmt("eval", "-m", RUN, "--src", src, "--ref", ref, "--save-hyp", HYPOTHESES, "--json"))
    sources = src.read_text().split("\n")
    hypotheses, references = HYPOTHESES.read_text().split("\n"), ref.read_text().split("\n")
    for line in range(0, 1000, 100):
        print(f"\nsrc {sources[line]}\nhyp {hypotheses[line]}\nref {references[line]}")
    for number, line in enumerate((100, 300, 700), start=1):
        nmt("attn-plot", "-m", RUN, "--src", sources[line], "-o", RUN / f"attention-{number}.png")
    final = json.loads((RUN / "log.jsonl").read_text().splitlines()[-1])
    print(f"\n{final['update']:,} updates in {final['minutes']:.1f} minutes; {final['from']}")
    bleu = scores["BLEU"]
    print(f"chrF {scores['chrF2']['score']:.2f}; {bleu['signature']}")
    print(figure_line("multi30k_test_2016_bleu", f"{bleu['score']:.2f}", ">= 30", bleu["score"] >= 30))


main()
