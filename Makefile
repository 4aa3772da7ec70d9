# Set-up and checks. `make demo` and `make test` are all that a fresh machine needs: Python 3.11 or newer, and pip.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow test-faults test-text lint type bench-multi30k bench-wmt bench-safety bench-train bench-loader bench-translate bench-invariance bench-stream bench-sampling bench-attention bench-alignment bench-help gpu-check clean

setup: .venv/installed
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

demo: setup            # the commands of the README's first minute, timed and scored
	$(BIN)/python tests/e2e/demo.py

test: setup lint type  # what CI runs
	OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' --ignore tests/faults --numprocesses 2 --dist loadfile
	$(BIN)/pytest -m 'not slow' $(FAULTS)

test-slow: setup       # all tests, the slow ones too; with Chromium installed, the attention page in a browser
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest

FAULTS := tests/faults --numprocesses 2 --dist loadfile  # each test uses one core
FAMILY =
test-faults: setup     # the fault tests in full: 25 minutes; FAMILY="c1 c4" picks some
	NMT_FAULTS=full $(BIN)/pytest $(FAULTS) --timeout 3600 -k "$$(echo $(FAMILY) | sed 's/ / or /g')"

TEXT := tests/hostile tests/text tests/data tests/test_config.py tests/decoding/test_parts.py \
	tests/decoding/test_protected.py tests/training/test_sampling.py --numprocesses 2 --dist loadfile
test-text: setup       # text, data and hostile input in full; protect and the check on ../shared/data: an hour
	NMT_TEXT=full OMP_NUM_THREADS=1 $(BIN)/pytest $(TEXT) --timeout 3600
	$(BIN)/python tests/bench/protect.py
	$(BIN)/python tests/bench/check.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/mypy

bench-multi30k: setup  # trains 20 minutes on ../shared/data/multi30k, scores test_2016_flickr
	$(BIN)/python tests/bench/multi30k.py

bench-wmt: setup       # 4.5 million made-up pairs through data, tokenizer, cache and 200 updates: about 30 minutes
	$(BIN)/python tests/bench/wmt.py

bench-safety: setup    # what exact resume and its checks cost an update; a base model's checkpoint: 5 minutes
	$(BIN)/python tests/bench/safety.py

bench-train: setup     # training speed against the peers, which it installs: 30 minutes
	$(BIN)/python tests/bench/train.py

bench-loader: setup    # batches a second, building the token cache, memory on 2 GB of text: 8 minutes
	$(BIN)/python tests/bench/loader.py

SIZES = tiny base
bench-translate: setup # decoding speed against CTranslate2 and transformers: 50 minutes, and 80 to train the models
	$(BIN)/python tests/bench/translate.py $(SIZES)

LINES = 500
bench-invariance: setup # 500 lines in 26 settings of batch size and order, in every precision: two hours
	$(BIN)/python tests/bench/invariance.py $(LINES) $(MODES)

bench-stream: setup    # private memory while two million lines are translated: 6 minutes
	$(BIN)/python tests/bench/stream_memory.py

bench-sampling: setup  # what subword sampling costs a core: one minute
	$(BIN)/python tests/bench/sampling.py

bench-alignment: setup # word alignments against eflomal, which it installs; trains three small models: 2 hours
	$(BIN)/python tests/bench/alignments.py

bench-help: setup      # the time of nmt --help
	$(BIN)/python tests/bench/help_time.py

ROWS = all
SEEDS = 1,2
UPDATES = 600
bench-attention: setup # every attention mechanism, two seeds each, resumable: 70 minutes; ROWS=rope,shaw SEEDS=1 pick some
	$(BIN)/python tests/bench/attention.py --rows $(ROWS) --seeds $(SEEDS) --updates $(UPDATES)

gpu-check: setup       # on a GPU, 8 minutes: tests/gpu, speed against the GEMM peak, kernels that ran, a model's BLEU
	$(BIN)/python tests/bench/gpu_check.py

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
