# Joinery's commands. On a machine with Python 3.11 or newer, git and make, each of them sets itself up first.

PYTHON   ?= python3
SETUP    ?= 1
PIP_ARGS ?=

SUBJECT ?= impl,torch
BACKEND ?= gloo
WORLDS  ?=
SELECT  ?=
OUT     ?= out/conformance
JOBS    ?= 2
CONFORMANCE_JOBS = $(call given,JOBS,4)
RESUME  ?=
POISON  ?=
ARGS    ?=

WORLD     ?= 2
SWEEP     ?= default
BUDGET    ?=
PERF_BACK  = $(call given,BACKEND,auto)

# hosts on this machine, over a network: make perf HOSTS=4 NET=1gbit
HOSTS     ?=
NET       ?= 1gbit
DELAY     ?=
DELAYED    = $(if $(DELAY),--delay '$(DELAY)')
NO_HOSTS   = $(if $(DELAY)$(filter command,$(origin NET)),$(error NET and DELAY are the network between hosts: say how many by HOSTS))
ON_HOSTS   = $(if $(HOSTS),conformance hosts --hosts '$(HOSTS)' --rate '$(NET)' $(DELAYED) -- -m,$(NO_HOSTS))
# a WORLD beside HOSTS is given all the same, so that it is refused
BESIDE     = $(if $(filter file,$(origin WORLD)),,--world '$(WORLD)')
OVER_HOSTS = $(if $(HOSTS),--hosts '$(HOSTS)' --net '$(NET)' $(DELAYED) $(BESIDE),$(NO_HOSTS)--world '$(WORLD)')

HISTORY     ?= history
SERIES      ?= 1000
MINUTES     ?= 25
MUTANTS     ?= 200
KILLS       ?= 200
SEED        ?=
EXPLORE     ?= 2
TENTH       ?=
STRICT      ?=

# a variable's value if the user has given it, else another than its default here
given = $(if $(filter command environment,$(origin $(1))),$($(1)),$(2))

# whether a variable that is 1 or 0 is 1
is_on = $(if $(filter-out 0 1,$($(1))),$(error $(1) is 1 or 0, not '$($(1))'))$(filter 1,$($(1)))

VENV := .venv

# SETUP=0: use PYTHON's own environment as it is, and touch no network.
ifeq ($(SETUP),0)
RUN   := $(PYTHON)
READY :=
else
RUN   := $(VENV)/bin/python
READY := $(VENV)/ready
endif

.DEFAULT_GOAL := help
.PHONY: help setup docs test-quick conformance conformance-full clauses defects protocol repros perf perf-list rounding nightly dashboard judge-power gpu rehearsal test test-long lint clean explore power board faults soak kill-test

help:
	@echo "make conformance   judge implementations   SUBJECT=$(SUBJECT) BACKEND=$(BACKEND) OUT=$(OUT) JOBS=$(CONFORMANCE_JOBS)"
	@echo "                   the quick tier; every case of a part by WORLDS=2,3 or SELECT='JOIN-*'; RESUME=1 goes on"
	@echo "                   POISON=1 keeps NaN in the buffers of collectives in flight, to see who reads or writes too early"
	@echo "make conformance-full   every case, at 1, 2, 3, 4 and 8 ranks; goes on where an earlier run stopped"
	@echo "make clauses       list the guarantees and the checks that decide them   SELECT='JOIN-*'"
	@echo "make perf          measure a sweep   WORLD=$(WORLD) SWEEP=$(SWEEP) BACKEND=auto BUDGET=10m SUBJECT=$(SUBJECT) OUT=$(call given,OUT,out/perf)"
	@echo "                   on hosts of this machine, over a network: HOSTS=4 NET=1gbit (conformance, too)"
	@echo "make perf-list     the sweeps, workloads and axes that there are"
	@echo "make rounding      what rounding and mistakes do to every workload, at 1 to 16 ranks, against what is allowed"
	@echo "make nightly       judge and measure one night, keep it, say what changed   HISTORY=$(HISTORY) OUT=$(call given,OUT,out/nightly) BUDGET=30m"
	@echo "                   before that explore ours for EXPLORE=$(EXPLORE) minutes (0: not at all)"
	@echo "make dashboard     the page of a history that there is already   HISTORY=$(HISTORY) OUT=$(call given,OUT,out/dashboard)"
	@echo "make judge-power   what the nightly judgement finds in simulated years, and how often it is wrong   SERIES=$(SERIES)"
	@echo "make gpu           what is proved on this machine's GPUs, and what is not; goes on where it stopped   MINUTES=$(MINUTES)"
	@echo "make board         judge implementations from elsewhere, too; a page on who keeps what   COLUMNS=torch,megatron"
	@echo "make defects       plant defects in our implementation and see whether the suite catches them   SELECT='ddp/*' JOBS=$(JOBS)"
	@echo "make protocol      every order of steps and every failure of the join protocol, in one process   MINUTES=10 JOBS=$(JOBS)"
	@echo "make explore       training programs drawn at random, compared with one process   SUBJECT=$(SUBJECT) MINUTES=10 SEED= JOBS=$(JOBS)"
	@echo "make faults        every fault at every point in every role: a right result or an error that names it   SELECT='SIGKILL/*' JOBS=$(JOBS)"
	@echo "                   TENTH=1 SEED=7 only a tenth of the cells; STRICT=0 ours without its strict mode; goes on where it stopped"
	@echo "make soak          random programs on ranks that are stopped and slowed; does anything grow?   MINUTES=20 SEED= JOBS=$(JOBS)"
	@echo "make power         how many random mutants of our implementation the quick tier kills   MUTANTS=$(MUTANTS) SEED= JOBS=$(JOBS)"
	@echo "make kill-test     kill small runs of every kind at random moments, and look at what they leave   KILLS=$(KILLS) SEED=1"
	@echo "make repros        every script that shows a deviation of torch, run with torch and with ours"
	@echo "make test          our own tests: the implementation, the suite itself, the records"
	@echo "make test-long     the same, and those that run whole commands for minutes"
	@echo "make rehearsal     every command of make gpu once on the CPU: some minutes"
	@echo "make test-quick    those of them that take seconds: under two minutes in all"
	@echo "make lint          ruff, mypy, import-linter, places of the planted defects, documents"
	@echo "make docs          the documents as pages: out/docs/index.html"
	@echo "make setup         only the set-up, which the others do by themselves: $(VENV) from constraints.txt"
	@echo "make clean         remove $(VENV), caches and out/"
	@echo
	@echo "Anywhere: PYTHON=python3.12 (which Python), SETUP=0 (use PYTHON's environment as it is, no network),"
	@echo "PIP_ARGS='--extra-index-url …' (more for pip), ARGS='…' (more for the command). See README.md."

setup: $(READY)
	@$(RUN) -c 'import sys, torch; print("ready: Python", sys.version.split()[0], "and torch", torch.__version__)'

# Set up once, and again only when what is to be installed has changed. constraints.txt names every package with its
# exact version, so no other torch can come in; the project itself runs from its source tree.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Joinery needs Python 3.11 or newer, and $(PYTHON) is not (or was not found). Name one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Could not make $(VENV). The usual cause is a Python without its venv module (on Debian: python3-venv)." >&2; exit 1; }
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --requirement constraints.txt
	@touch $@

JUDGE = $(RUN) -m $(ON_HOSTS) conformance run --subject '$(SUBJECT)' --backend '$(BACKEND)' --select '$(or $(SELECT),*)' --out '$(OUT)' --jobs '$(CONFORMANCE_JOBS)'

# Without WORLDS and SELECT the quick tier; with them every case of that part.
conformance: $(READY)
	$(JUDGE) $(if $(WORLDS)$(SELECT),,--tier quick) $(if $(WORLDS),--worlds '$(WORLDS)') $(if $(call is_on,RESUME),--resume) $(if $(call is_on,POISON),--poison) $(ARGS)

# Goes on by itself with what an earlier run of the same question left unfinished in OUT.
conformance-full: $(READY)
	$(JUDGE) --tier full --resume possible $(if $(WORLDS),--worlds '$(WORLDS)') $(if $(call is_on,POISON),--poison) $(ARGS)

clauses: $(READY)
	$(RUN) -m conformance clauses --select '$(or $(SELECT),*)' $(ARGS)

perf: $(READY)
	$(RUN) -m perf run $(OVER_HOSTS) --sweep '$(SWEEP)' --backend '$(PERF_BACK)' --budget '$(BUDGET)' --subject '$(SUBJECT)' --out '$(call given,OUT,out/perf)' --charts $(ARGS)

perf-list: $(READY)
	$(RUN) -m perf list $(ARGS)

rounding: $(READY)
	ROUNDING=all $(RUN) -m pytest perf/tests/test_rounding.py $(ARGS)

# From the command line only: shells and terminals have a COLUMNS of their own.
board: $(READY)
	$(RUN) -m conformance board --columns '$(or $(if $(filter command,$(origin COLUMNS)),$(COLUMNS)),*)' --jobs '$(JOBS)' --out '$(call given,OUT,out/board)' $(ARGS)

defects: $(READY)
	$(RUN) -m conformance defects --select '$(or $(SELECT),*)' --jobs '$(JOBS)' $(ARGS)

protocol: $(READY)
	$(RUN) -m conformance protocol --minutes '$(call given,MINUTES,10)' --jobs '$(JOBS)' $(ARGS)
power: $(READY)
	$(RUN) -m conformance power --mutants '$(MUTANTS)' --seed '$(SEED)' --jobs '$(JOBS)' --out '$(call given,OUT,out/power)' $(if $(wildcard $(HISTORY)),--history '$(HISTORY)') $(ARGS)

repros: $(READY)
	REPROS=all $(RUN) -m pytest conformance/tests/test_repros.py conformance/tests/test_foreign_repros.py -rs $(ARGS)

# Goes on by itself with an unfinished record of the same cells in OUT.
faults: $(READY)
	@$(RUN) -m conformance faults --subject '$(call given,SUBJECT,impl)' --select '$(or $(SELECT),*)' $(if $(call is_on,TENTH),--tenth) $(if $(SEED),--seed '$(SEED)') $(if $(STRICT),$(if $(call is_on,STRICT),,--no-strict)) --jobs '$(JOBS)' --out '$(call given,OUT,out/faults)' $(ARGS)

soak: $(READY)
	@$(RUN) -m conformance soak --subject '$(call given,SUBJECT,impl)' --minutes '$(call given,MINUTES,20)' --seed '$(SEED)' --jobs '$(JOBS)' --out '$(call given,OUT,out/soak)' $(ARGS)

# Goes on by itself with an unfinished exploration of the same SEED in OUT.
explore: $(READY)
	@$(RUN) -m conformance explore --subject '$(SUBJECT)' --minutes '$(call given,MINUTES,10)' --seed '$(SEED)' --jobs '$(JOBS)' --out '$(call given,OUT,out/explore)' $(ARGS)

# make turns every failure into its own status 2; the command itself tells 1 (regressed) from 2 (could not judge).
nightly: $(READY)
	status=0; if [ '$(EXPLORE)' != 0 ]; then \
	  $(RUN) -m conformance explore --subject impl --minutes '$(EXPLORE)' --out '$(call given,OUT,out/nightly)/explore' || status=$$?; \
	fi; \
	case $$status in 2|130) exit $$status;; esac; \
	$(RUN) -m reports nightly --history '$(HISTORY)' --out '$(call given,OUT,out/nightly)' --budget '$(or $(BUDGET),30m)' --subject '$(SUBJECT)' --world '$(WORLD)' $(ARGS) || exit $$?; \
	[ $$status = 0 ] || exit 1

dashboard: $(READY)
	$(RUN) -m reports dashboard '$(HISTORY)' --out '$(call given,OUT,out/dashboard)' $(ARGS)

judge-power: $(READY)
	$(RUN) -m reports power --series '$(SERIES)' $(ARGS)

gpu: $(READY)
	@$(RUN) -m reports gpu --minutes '$(MINUTES)' --out '$(call given,OUT,out/gpu)' $(ARGS)

# Small runs of the suite, perf, the nightly and the board, killed at random moments: what was recorded must stay.
kill-test: $(READY)
	$(RUN) -m conformance.tests.killing --kills '$(KILLS)' --seed '$(or $(SEED),1)' $(ARGS)

# Three files of tests at a time, where pytest-xdist is installed: much of a test is waiting. In their order, since by
# itself xdist begins with the files of most tests, and the longest file has one.
SIDE_BY_SIDE = $$($(RUN) -c 'import xdist; print("-n 3 --dist loadfile --no-loadscope-reorder")' 2>/dev/null)

test: $(READY)
	@$(RUN) -m pytest $(SIDE_BY_SIDE) -m 'not long' $(ARGS)

test-long: $(READY)
	@$(RUN) -m pytest $(SIDE_BY_SIDE) $(ARGS)

rehearsal: $(READY)
	REHEARSAL=all $(RUN) -m pytest reports/tests/test_accelerator.py $(ARGS)

test-quick: $(READY)
	@$(RUN) -m pytest $(SIDE_BY_SIDE) -m 'not slow and not long' $(ARGS)

docs: $(READY)
	$(RUN) -m sphinx -W --keep-going -q docs out/docs
	@echo "written: out/docs/index.html"

# All of these run even if an earlier one complains, so that one run shows everything.
lint: $(READY)
	@status=0; \
	$(RUN) -m ruff check . || status=1; \
	$(RUN) -m mypy || status=1; \
	$(RUN) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' || status=1; \
	$(RUN) -m conformance defects --try || status=1; \
	$(RUN) -m sphinx -W --keep-going -q docs out/docs || status=1; \
	exit $$status

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
