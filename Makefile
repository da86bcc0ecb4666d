# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

export GPUFLEET_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpufleet

# A command in the virtual environment of that name, built when it is missing: $(WITH) docs antsibull-docs ...
WITH := tests/gates/with
COLLECTION := .collections/ansible_collections/gpufleet/sglang
CORES := $(sort $(patsubst requirements/core-%.txt,%,$(wildcard requirements/core-*.txt)))
GATES := $(CORES:%=sanity-%) lint docs-lint docs units $(CORES:%=units-%) importer

##@ Work

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z%.-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: dev
dev: ## .venv with all tools, and .collections with this checkout in it
	@tests/gates/env dev >/dev/null
	@mkdir -p $(dir $(COLLECTION)) && ln -sfn ../../.. $(COLLECTION)

.PHONY: lint ruff mypy shellcheck yamllint ansible-lint
lint: ruff mypy shellcheck yamllint ansible-lint ## all linters, each a target: ruff mypy shellcheck yamllint ansible-lint
ruff: dev
	@$(WITH) dev ruff check --quiet plugins roles tests
	@$(WITH) dev ruff format --quiet --diff plugins roles tests
# The second run is for what runs on targets: nothing that is newer than their Python (mypy knows 3.10 and later).
mypy: dev
	@$(WITH) dev mypy $(COLLECTION)/plugins $(COLLECTION)/tests
	@$(WITH) dev mypy --python-version 3.10 $(COLLECTION)/plugins/modules $(COLLECTION)/plugins/module_utils
	@$(WITH) dev mypy --python-version 3.10 $(wildcard roles/*/files/*.py)
shellcheck: dev
	@$(WITH) dev shellcheck $$(git grep -lI --untracked '^#!.*bash' -- .ci tests)
yamllint: dev
	@$(WITH) dev yamllint --strict .
ansible-lint: dev
	@$(WITH) dev ansible-lint --nocolor

.PHONY: docs-lint
docs-lint: ## documentation of modules, roles and guides; changelog
	@$(WITH) docs tests/gates/docs-lint
	@$(WITH) docs antsibull-changelog lint

.PHONY: docs
docs: dev ## the site with guides and reference, in build/docs
	@$(WITH) docs tests/gates/docs

.PHONY: units
units: dev ## unit and contract tests
	@$(WITH) dev pytest

# The same with another ansible-core than .venv has
units-%: dev
	@if compgen -G '.venv/lib/*/site-packages/ansible_core-$*.*' >/dev/null; then \
	    echo 'skipped: .venv has ansible-core $*'; \
	else \
	    $(WITH) --optional core-$* pytest; \
	fi

.PHONY: sanity
sanity: $(CORES:%=sanity-%) ## ansible-test sanity with each ansible-core that a Python is here for
sanity-%:
	@$(WITH) --optional core-$* tests/gates/sanity

.PHONY: build
build: dev ## the tarball for Galaxy, in build/
	@$(WITH) dev tests/gates/build

.PHONY: importer
importer: build ## what Galaxy checks on an upload
	@$(WITH) importer tests/gates/importer

.PHONY: molecule
molecule: dev ## the roles on real systemd hosts, two scenarios at a time
	@tests/support/run-molecule

.PHONY: test-quick
test-quick: dev ## all gates that need no host
	@.venv/bin/python tests/gates/run.py $(GATES)

.PHONY: test
test: dev ## everything
	@.venv/bin/python tests/gates/run.py $(GATES) --beside molecule

# Not all of it is in "test": real SGLang takes half a minute for each.
.PHONY: faults faults-standin
faults: dev ## verify that broken servers are reported: real SGLang and the stand-in
	@PYTHONPATH=.collections .venv/bin/python tests/bench/faults.py --check
faults-standin: dev ## the same without real SGLang
	@PYTHONPATH=.collections .venv/bin/python tests/bench/faults.py --check --standin

##@ See it work

.PHONY: demo demo-stop
demo: dev ## a systemd host on this machine, and a model served on it
	@tests/support/demo up
demo-stop: ## remove that host
	@tests/support/demo stop

bench-%: dev ## measure something: see tests/bench/
	@PYTHONPATH=.collections .venv/bin/python tests/bench/$(subst -,_,$*).py

##@ Maintenance

.PHONY: changelog
changelog: ## fold changelogs/fragments/ into CHANGELOG.md under the version in galaxy.yml
	@$(WITH) docs antsibull-changelog release --update-existing --reload-plugins --refresh-plugins

.PHONY: lock
lock: ## bring requirements/*.txt to the newest versions
	@tests/gates/lock

.PHONY: clean
clean: ## remove what make has made in the checkout
	@rm -rf .cache .collections .venv build
