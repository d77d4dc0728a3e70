# Everything a developer or a new user runs. Needs python3 (>= 3.11) and make; installs the rest.
.PHONY: demo dev check test oldest all bench lint doctest wheel release site site-version figures clean docs/sql.md
.DEFAULT_GOAL := test

PY := .venv/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt
CODE := src tests benchmarks examples tools
export OPENBLAS_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE  # what pytest rewrites is kept: 8 s of CPU for each worker

demo: .venv/demo.ok
	$(PY) -m streamveil demo

dev: .venv/installed.ok
	$(PY) -m streamveil.compiled  # nothing, unless code has changed

.venv/base.ok:
	python3 -m venv .venv
	touch $@

.venv/demo.ok: .venv/base.ok pyproject.toml constraints.txt
	$(PIP) --no-compile -e ".[demo]"  # most modules are never loaded
	touch $@

.venv/installed.ok: .venv/base.ok pyproject.toml constraints.txt
	$(PIP) --no-compile -e ".[dev,bench,demo,examples,spark]"
	touch $@

lint: .venv/installed.ok
	.venv/bin/ruff format --check $(CODE)
	.venv/bin/ruff check $(CODE)
	.venv/bin/mypy

doctest: dev
	$(PY) -m pytest -q --doctest-modules src/streamveil

check: lint doctest
	$(PY) -m pytest -q tests/test_architecture.py tests/test_readme.py

# a condition on marks
TESTS := not slow
test: dev
	$(PY) -m pytest -n 4 --dist loadfile -m "$(TESTS)"

# whether the lower bounds in pyproject.toml hold: rows and queries with the oldest packages
OLDEST := $(CURDIR)/.venv/oldest
OLD_RUN := PYTHONPATH=$(OLDEST)/src $(OLDEST)/bin/python -m
oldest: .venv/oldest.ok
	rm -rf $(OLDEST)/src && cp -r src $(OLDEST)/src && rm -rf $(OLDEST)/src/streamveil/_kernels
	$(OLD_RUN) streamveil.compiled
	$(OLD_RUN) pytest -n 2 --dist loadfile -m "not slow" tests/sql tests/results tests/test_cli.py tests/test_display.py \
	  tests/connectors/test_frames.py tests/connectors/test_files.py tests/runtime/test_rejects.py tests/dataflow/test_witness.py

.venv/oldest.ok: .venv/base.ok pyproject.toml constraints.txt
	$(PIP) uv
	.venv/bin/uv venv -q --clear --python $(PY) $(OLDEST)
	.venv/bin/uv pip install -q --python $(OLDEST) --resolution lowest-direct -r pyproject.toml \
	  $(addprefix --extra ,kafka schemas nats iceberg delta duckdb postgres metrics plots frames) \
	  $$(grep -E "^(pytest|pytest-xdist|hypothesis|dp-accounting|opendp)==" constraints.txt)
	touch $@

all: check test oldest
	STREAMVEIL_ACCOUNT_SECONDS=3600 $(PY) -m pytest -n 2 --dist loadfile -m slow

bench: dev
	for file in benchmarks/*.py; do $(PY) $$file || exit 1; done

# needs nothing of `dev`, so it builds with a Python that some tool of ours does not support yet
wheel: .venv/build.ok
	$(PY) -m streamveil.compiled --again
	$(PY) -m build --wheel

.venv/build.ok: .venv/base.ok pyproject.toml constraints.txt
	$(PIP) -e . build
	touch $@

release: wheel
	$(PY) -m build --sdist

site: .venv/site.ok
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q
	@echo "read it: python3 -m http.server -d site"

# the pages of this version beside those of others, with a selector
site-version: .venv/site.ok
	NO_MKDOCS_2_WARNING=1 SITE_VERSIONS=mike .venv/bin/mkdocs build -q -d site/$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
	$(PY) tools/site_versions.py site

.venv/site.ok: .venv/base.ok pyproject.toml constraints.txt
	$(PIP) -e ".[site]"
	touch $@

figures: dev
	$(PY) tools/draw_concepts.py

docs/sql.md: dev
	$(PY) tools/document_sql.py > $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache dist demo-out site out
