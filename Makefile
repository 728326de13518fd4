# One verb for each thing to do here. Every verb sets the environment up first, when it has to.
#   make run PYTHON=python3.12 ARGS="--scale 0.5"

PYTHON ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PEER := .venv-peer
PEER_NEEDS := cloudpickle pydantic blake3 cachetools regex cbor2 aiohttp openai openai-harmony pybase64 uvloop \
  py-cpuinfo requests prometheus-client transformers pillow psutil
STAMP := $(VENV)/.installed
BUSY := $(VENV)/.installing
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CI),--quiet) --constraint constraints.txt

# What makes an installation stale besides its files: the folder was copied or moved (an editable install
# names it), or PYTHON asks for another version than the one in there.
VERSION := import platform; print(platform.python_version())
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
STALE := stale
else ifneq ($(PYTHON),)
ifneq ($(shell $(PYTHON) -c '$(VERSION)' 2>&1),$(shell $(BIN)/python -c '$(VERSION)' 2>&1))
STALE := stale
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup run test check fuzz soak format bench gpu-check kills peer notebooks lab clean distclean stale

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## make .venv and install everything into it (once; about 7 GB)
	@echo "$(VENV) is ready"

run: $(STAMP) ## the main job: what each way from a frontend to the model costs (ARGS= for mmlab run)
	$(BIN)/mmlab run $(ARGS)

test: check ## lint, format, types, then the tests (ARGS= for pytest)
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP) ## lint, format and types, without the tests
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

fuzz: $(STAMP) ## a million mutated messages for the decoder (some minutes; ARGS="--processes 2", --help)
	$(BIN)/python tests/fuzz/fuzz_run.py $(ARGS)

soak: $(STAMP) ## ten minutes of random load on a pipeline, then nothing may be left over (ARGS="--minutes 2")
	$(BIN)/mmlab bench soak $(ARGS)

format: $(STAMP) ## let ruff format the code and mend what it can
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: $(STAMP) ## the main job at full size (long; ARGS= for mmlab run)
	$(BIN)/mmlab run --full $(ARGS)

gpu-check: $(STAMP) ## on a machine with a GPU: what the package promises about it, in four minutes (ARGS="--out FILE")
	$(BIN)/mmlab bench gpu $(ARGS)

kills: $(STAMP) ## SIGKILL at every stage, 20 times each, some with a model (an hour or more; ARGS= for mmlab bench kills)
	$(BIN)/mmlab bench kills --out runs/kills $(ARGS)
	$(BIN)/mmlab bench kills --model gemma3-tiny --repeats 2 --out runs/kills/gemma3-tiny $(ARGS)

peer: $(PEER)/.installed ## vLLM in .venv-peer, which shares .venv's packages: for `mmlab bench wire --peer vllm`

$(PEER)/.installed: $(STAMP) Makefile
	rm -rf $(PEER)
	$(BIN)/python -m venv $(PEER)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > "$$($(PEER)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	$(PEER)/bin/python -m pip install --disable-pip-version-check --no-deps vllm==0.33.0
	@# vLLM's serializer needs none of the pins that .venv does not follow: pip's complaints about them are
	@# left out, unless it fails
	$(PEER)/bin/python -m pip install -qqq $(PEER_NEEDS) || $(PEER)/bin/python -m pip install $(PEER_NEEDS)
	@touch $@
	@echo "$(PEER) is ready: $(BIN)/mmlab bench wire --peer vllm"

notebooks: $(STAMP) ## run every notebook with its defaults; outputs stay in it, counts and times do not
	$(BIN)/python -c "$$RUN_NOTEBOOKS"

lab: $(STAMP) ## open the notebooks in JupyterLab
	$(BIN)/python -m jupyterlab notebooks $(ARGS)

clean: ## remove caches and what was built; keep .venv and runs/
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove .venv too; keep runs/
	rm -rf $(VENV)

define RUN_NOTEBOOKS
import shutil, sys
from mmlab import notebook
for name, path in notebook.available().items():
    print(f"{path.name} ...", flush=True)
    done = notebook.execute(path, out_dir=f"runs/notebooks/{name}")
    notebook.strip(done, keep_outputs=True)
    if found := notebook.problems(done):
        sys.exit("\n".join(f"{done}: {line}" for line in found))
    shutil.copyfile(done, path)
endef
export RUN_NOTEBOOKS

# --- set-up -----------------------------------------------------------------------------------------

FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)

# Prints the first candidate that is 3.11 to 3.13 and can make an environment, or says what was found.
define find_python
found=""; \
for name in $(CANDIDATES); do \
	version=$$("$$name" -c '$(VERSION)' 2>/dev/null) || continue; \
	found="$$found$${found:+, }$$name ($$version"; \
	if ! "$$name" -c '$(FITS)'; then found="$$found)"; \
	elif ! "$$name" -c 'import ensurepip, venv' 2>/dev/null; then \
		found="$$found, without venv: on Debian and Ubuntu apt install python$${version%.*}-venv)"; \
	else echo "$$name"; exit 0; fi; \
done; \
echo "mmlab needs Python 3.11, 3.12 or 3.13 with its venv module." >&2; \
echo "Looked for: $(CANDIDATES). Found: $${found:-none of them}." >&2; \
echo "Install one of these, or name one: make setup PYTHON=/path/to/python3.12" >&2; \
exit 1
endef

# $(BUSY) stands while an install is under way: after one that was broken off, the next starts anew.
$(STAMP): pyproject.toml constraints.txt Makefile $(STALE)
	@set -e; \
	if [ -e $(BUSY) ]; then echo "an earlier set-up was broken off: starting anew"; rm -rf $(VENV); fi; \
	have=$$($(BIN)/python -c '$(VERSION)' 2>/dev/null || true); \
	want=$$($(if $(PYTHON),$(PYTHON) -c '$(VERSION)' 2>/dev/null || true,echo "$$have")); \
	if [ "$$have" = "$$want" ] && $(BIN)/python -c '$(FITS)' 2>/dev/null \
		&& $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "using $(VENV) (Python $$have)"; \
	else \
		python=$$($(find_python)); \
		echo "making $(VENV) with $$python (Python $$("$$python" -c '$(VERSION)'))"; \
		rm -rf $(VENV); mkdir $(VENV); touch $(BUSY); \
		"$$python" -m venv $(VENV); \
	fi; \
	rm -f $(STAMP); touch $(BUSY); \
	echo "installing mmlab[all] with constraints.txt (the first time: some minutes, about 7 GB)"; \
	$(PIP) --editable '.[all]'; \
	$(BIN)/python -m pip check; \
	echo '$(CURDIR)' > $(BUSY); mv $(BUSY) $(STAMP)
