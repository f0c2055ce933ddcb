# Needs Python 3.10 or later, make and git; everything else is installed into .venvs/ on the first use.
#
#   make test                        what must pass before a change lands: the checks, the documentation, all tests, on the newest
#                                    Python found here
#   make test ARGS="-k codec"        only these tests: seconds after the first time
#   make test PYTHONS="3.10 3.12"    on these Pythons, with or without ARGS
#   make test-all                    the same on every Python from 3.10 on that is found: all tests on the newest, on the others
#                                    those that `pytest --brief` selects; what CI runs
#   make check                       ruff, mypy and pyright
#   make campaign MINUTES=30         kills, damage, hostile entries, random pipelines and fuzzing, in rounds, into docs/reliability.md;
#                                    SEED=17 repeats its choices; without MINUTES, also public scripts and the long tests at full length

export PYTHONS ARGS MINUTES SEED

# Any Python that really runs: a version manager's stand-in may be on the path and refuse.
PYTHON := $(shell for p in "$$PYTHON" python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3 python; do \
	[ -n "$$p" ] && "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 && echo "$$p" && break; done)
ifeq ($(PYTHON),)
$(error No Python 3 runs here: install Python 3.10 or later, or name one with PYTHON=/path/to/python)
endif

.DEFAULT_GOAL := help
.PHONY: help test test-all check format docs captures demo bench campaign clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

test:  ## checks, documentation and all tests, on the newest Python found (ARGS="-k name": only these tests)
	@$(PYTHON) -m tests.everywhere test

test-all:  ## the same, and a selection of the tests on every other Python from 3.10 on
	@$(PYTHON) -m tests.everywhere test-all

check:  ## ruff, mypy and pyright
	@$(PYTHON) -m tests.everywhere check

format:  ## lay the code out, and mend what ruff can mend by itself
	@$(PYTHON) -m tests.everywhere format

docs:  ## the documentation as a site, in build/site; a warning is an error
	@$(PYTHON) -m tests.everywhere docs

captures:  ## run the sessions that README shows, and put what a terminal shows into it
	@$(PYTHON) -m tests.everywhere captures

demo:  ## a pipeline that fails at its fourth step and is started again; then commands to paste
	@python="$$($(PYTHON) -m tests.everywhere demo-python)" && "$$python" examples/demo.py

bench:  ## oncemore beside its peers and the limits, into docs/performance.md (QUICK=1: two minutes; ARGS="calls store.hit": only these)
	@python="$$($(PYTHON) -m tests.everywhere bench-python)" && "$$python" -m benchmarks $(if $(QUICK),--quick) $(ARGS)

campaign:  ## kills, damage, attacks and fuzzing for MINUTES=30, into docs/reliability.md (SEED=17 repeats; ARGS="--only 17": one script)
	@$(PYTHON) -m tests.everywhere campaign

clean:  ## remove environments, stores of the demo, caches
	rm -rf .venvs examples/.demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
