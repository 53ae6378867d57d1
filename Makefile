# SPDX-License-Identifier: Apache-2.0
#
# The commands of the project. Everything that is made lies under .venv and build.
#
#   make demo    a C library feeds a model; needs a compiler and Python with venv
#   make test    lints, C, C++ and fast Python tests       make check  the rest of what must hold before a change
#   make soak    the same laws with full counts            make bench  measurements beside their peers
#   make test-gpu  memory of devices, on a machine with a CUDA driver
#   make lint    the lints alone                           make docs   the documentation as HTML
#   make format  clang-format and ruff                     make deps   what C++ tests need of the system
#   make clean   removes build (.venv stays)
#
# ARGS adds arguments to the demo and the benchmarks: make demo ARGS=--json

PYTHON ?= python3
ENV := $(PYTHON) tools/env.py
ARGS ?=

.PHONY: demo test check soak test-gpu lint format bench docs deps clean

demo:
	@$(ENV) demo
	@.venv/bin/tenon demo $(ARGS)

test: deps
	@$(PYTHON) tools/run_tests.py test

check: deps
	@$(PYTHON) tools/run_tests.py check

soak: deps
	@$(PYTHON) tools/run_tests.py soak

test-gpu:
	@$(ENV) test
	@.venv/bin/python -m pytest tests/gpu $(ARGS)

lint:
	@$(PYTHON) tools/run_tests.py lint

format:
	@$(ENV) test
	@.venv/bin/ruff check --quiet --fix-only
	@.venv/bin/ruff format --quiet
	@find include src python tests bench examples -name '*.[ch]' -o -name '*.cc' -o -name '*.hpp' -o -name '*.inc' \
	  | xargs .venv/bin/clang-format -i

bench:
	@$(ENV) test --profiled
	-@$(ENV) mxnet --profiled
	@.venv/bin/python bench/run.py $(ARGS)

docs:
	@$(ENV) docs
	@.venv/bin/python -m sphinx -W --keep-going -b html docs build/docs

deps:
	@sh tools/deps.sh

clean:
	rm -rf build
