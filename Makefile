.PHONY: dev
PY = .venv/bin/python
.venv/ok: pyproject.toml
	python3 -m venv .venv
	$(PY) -m pip install -q -e ".[dev,demo,bench,spark]"
	touch $@
dev: .venv/ok
test: dev
	$(PY) -m pytest tests
