# Two commands matter: `make demo` and `make test`. Both need only Python 3.11 or newer with venv, and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Every test starts processes by the dozen: where bytecode is not kept, each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit chaos-smoke chaos soak bench bench-retrieval bench-scale bench-incident bench-incident-times-ten format clean

demo: $(VENV)/.installed     ## index and search real input, survive kills before your eyes, clean up
	$(BIN)/python docs/demo/demo.py

test: $(VENV)/.installed-dev ## lint, types, tests, chaos smoke
	$(MAKE) --no-print-directory lint types chaos-smoke unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Two at a time on two cores, daemons and all, some wait in vain for the other: what failed is tried once more, alone.
unit: $(VENV)/.installed-dev ## all tests, two at a time; a worker that dies takes one test along, no more
	$(BIN)/python -m pytest -n 2 --dist worksteal || \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

chaos-smoke: $(VENV)/.installed-dev ## the fault scenarios that take a minute; `make chaos` runs them all
	$(BIN)/python -m chaos all --tier smoke

chaos: $(VENV)/.installed-dev ## every fault scenario, 15 minutes; the report is chaos/out/index.html
	$(BIN)/python -m chaos all --tier ci --out chaos/out

soak: $(VENV)/.installed-dev ## thousands of kills, for hours; goes on where it was stopped (SOAK=folder, JOBS=shards at a time)
	$(BIN)/python -m chaos soak --out $(or $(SOAK),chaos/out/soak) --jobs $(or $(JOBS),1)
	BULKHEAD_SCHEDULES=20000 $(BIN)/python -m pytest -q tests/unit/supervisor/test_fault_schedules.py

bench: $(VENV)/.installed-dev ## appends, searches, builds, memory: prints tables, asserts nothing
	$(BIN)/python -m bench all

bench-retrieval: $(VENV)/.installed-dev ## quality on the retrieval sets (EVAL=folder)
	$(BIN)/python -m bench retrieval --eval $(or $(EVAL),../shared/eval/dev)

bench-scale: $(VENV)/.installed-dev ## rebuilds of 1,000 to 100,000 chunks (SIZES=1000,1000000 for others): time, memory, publication
	$(BIN)/python -m bench scale $(if $(SIZES),--sizes $(SIZES)) --out $(or $(OUT),bench/out)/scale.jsonl

bench-incident: $(VENV)/.installed-dev ## half an hour: a rebuild on one SQLite file and on Bulkhead; renews tables and picture
	$(BIN)/python -m bench incident --picture docs/incident.svg --readme README.md \
		--measurements docs/MEASUREMENTS.md --out $(or $(OUT),bench/out)/incident.json

bench-incident-times-ten: $(VENV)/.installed-dev ## Bulkhead alone at ten times the size, hours; prints its table
	$(BIN)/python -m bench incident --times-ten --out $(or $(OUT),bench/out)/incident-times-ten.json

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed (PYTHON=… make …)")'
	$(PYTHON) -m venv $(VENV)

# The pinned versions are constraints, so an update is one reviewed change of one file.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml .ci/constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q -c .ci/constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check -q -c .ci/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache chaos/out bench/out
