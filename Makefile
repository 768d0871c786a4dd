# Everything runs from the project's own .venv; what is downloaded goes to one cache folder (EXACTLY_ONCE_CACHE).
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
DISTRIBUTIONS := distributions/dagster-exactly-once distributions/exactly-once-local
RUN := $(CURDIR)/.run

# Of each minor release that the sink takes the newest patch. All other tests run on that of distributions/constraints.txt.
SPARKS := 3.5.9 4.0.5 4.1.4 4.2.1 4.3.0
# Drivers that are killed at each point; CI takes two of them.
SPARKS_CRASHES := tests/faults/test_crash_points.py
# What nobody has promised, a session, records, formats, modes that are refused, input to its end, reads without an end,
# kills, state, foreachBatch, a batch write, rights, a run of Dagster's, a query that waits. Some of them are long.
SPARKS_TESTS := tests/contract tests/integration/test_session_jar.py tests/integration/test_sink_records.py \
	tests/integration/test_sink_modes.py tests/integration/test_formats.py \
	tests/integration/test_caught_up.py tests/integration/test_unbounded_reads.py \
	tests/integration/test_refusals.py::test_of_a_batch_that_the_brokers_refuse_the_very_row_is_named \
	$(SPARKS_CRASHES) \
	tests/faults/test_stateful.py::test_a_stateful_query_that_is_stopped_in_its_commit_goes_on_with_the_right_state \
	tests/faults/test_foreach_batch.py::test_a_driver_killed_under_foreach_batch_loses_and_duplicates_nothing[decided] \
	tests/faults/test_foreach_batch.py::test_a_batch_that_fails_is_aborted_at_once_and_the_next_start_writes_it \
	tests/faults/test_batch_writes.py::test_a_second_write_with_the_same_id_writes_nothing_and_another_id_does \
	tests/integration/test_rights.py::test_the_references_rights_are_enough_for_a_stream_and_for_looking_at_it \
	tests/integration/test_rights.py::test_a_missing_right_is_named \
	tests/dagster/test_rejected.py::test_malformed_events_come_out_rejected_beside_the_valid_ones \
	tests/dagster/test_hours.py

# The tests start hundreds of Python processes: each would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

# Processes that share the test files of make test and make test-unit: three keep two cores busy, and two of them have a
# Spark (dev/testkit/scheduling.py). 0: one after the other in this one, as for --pdb.
TEST_WORKERS ?= 3
SHARED := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

# What the engine uses of kafka-python, and the requests that go through it, on a real broker.
NEWEST_KAFKA_TESTS := tests/contract/test_kafka_python.py tests/contract/test_kafka_brokers.py \
	tests/integration/test_hanging.py \
	tests/integration/test_outcome_table.py tests/integration/test_offsets_since.py

# Of each line the newest patch: the first line that the sink takes, the last of Kafka 3, the first and the newest of Kafka 4.
KAFKAS := 3.0.2 3.9.2 4.0.2 4.4.0
# What nobody has promised, its own release, every crash point, records, hanging transactions, the answers to each version of EndTxn from 3, verify,
# doctor. CI leaves out what is long of it.
KAFKAS_TESTS := tests/contract/test_kafka_brokers.py tests/contract/test_librdkafka.py \
	tests/contract/test_kafka_clients.py \
	tests/integration/test_embedded_broker.py::test_the_broker_is_of_the_release_of_kafka_that_was_asked_for \
	tests/faults/test_crash_points.py tests/integration/test_sink_records.py tests/integration/test_hanging.py \
	tests/integration/test_outcome_table.py tests/integration/test_verify.py \
	tests/integration/test_doctor.py::test_what_cannot_work_is_wrong_with_its_way_out

# The processor time of a record, in that of Spark's own sink: what it was when it was measured, and a quarter more.
GUARD := 1.3

# What Spark, Dagster and pytest would put elsewhere.
export SPARK_LOCAL_DIRS ?= $(RUN)/spark
export PYTEST_DEBUG_TEMPROOT ?= $(RUN)/tests
# Its theme would speak of another product at each build.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup setup-example archive run cluster demo ui test test-unit test-contract test-long test-restart \
	test-all test-sparks test-upgrades test-newest-kafka test-kafkas test-kerberos s3 test-s3 test-hdfs test-naughty test-managed test-lineage test-extras \
	test-pythons findings tutorial jar golden check docs benchmark guard soak faults faults-compare audit sbom coverage dist clean \
	lock lock-jars

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything into .venv and the cache folder; once
	@sh dev/tools/setup.sh dev

setup-example: # What run, cluster, demo and ui need, in half the time
	@sh dev/tools/setup.sh example

run: setup-example ## The main job: Kafka -> Spark -> Kafka under Dagster, on real input, with a report at the end
	@$(PYTHON) -m platform_assets.cli run

cluster: setup-example ## The main job with its tasks on a Spark standalone cluster of two workers, from the beginning
	@$(PYTHON) -m platform_assets.cli cluster

demo: setup-example ## The duel: Spark's own sink and this one, both killed with kill -9; a table and a picture
	@$(PYTHON) -m exactly_once.tools.cli demo $(DEMO_ARGS)

ui: setup-example ## The main job as a live stream, with Dagster's web server and daemon
	@$(PYTHON) -m platform_assets.cli ui

archive: setup
	@$(PYTHON) -m testkit.spark_archive

test: archive ## Every layer on a real broker and a real Spark, in 8 minutes
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -m "not long" $(SHARED) --ignore=tests/lint $(PYTEST_ARGS)

test-unit: setup ## Pure logic alone, in a minute
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -m "not long" $(SHARED) tests/unit $(PYTEST_ARGS)

test-contract: archive ## What the product leans on and no dependency has promised, in a minute: run it after each upgrade
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest tests/contract $(PYTEST_ARGS)

coverage: setup ## The unit tests, and which lines of the packages they run; a report without a bar
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m coverage erase
	$(PYTHON) -m coverage run -m pytest -q -m "not long" $(SHARED) tests/unit $(PYTEST_ARGS)
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report --skip-covered --sort=cover

test-long: archive ## The tests that make test leaves out
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -m long --ignore=tests/upgrades $(PYTEST_ARGS)

test-restart: archive ## What the sensors are for, by the long way: a run is killed, and they start it again
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest tests/dagster/test_restart.py $(PYTEST_ARGS)

test-all: archive ## Everything
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest --ignore=tests/upgrades $(PYTEST_ARGS)

test-sparks: $(SPARKS:%=test-spark-%) ## A selection on each minor release of PySpark, ten minutes each; SPARKS="3.5.9": on that one

test-spark-%: setup
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	@$(PYTHON) -m tools.environments $*
	$(RUN)/spark-$*/bin/python -m pytest $(SHARED) $(SPARKS_TESTS) $(PYTEST_ARGS)

# UPGRADES: rows of docs/upgrade.md, by a word of their names.
test-upgrades: archive ## The table of docs/upgrade.md, row by row: half a minute to six each; UPGRADES="4.4.0": those
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -s tests/upgrades $(if $(UPGRADES),-k "$(UPGRADES)") $(PYTEST_ARGS)

test-extras: setup ## Each distribution and each extra alone, in an environment of its own, on the oldest Python that is found
	@$(PYTHON) dev/tools/extras.py

test-pythons: setup ## The unit tests and tests/contract on every other Python that is found, in an environment of its own
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	@$(PYTHON) -m tools.pythons -m "not long" $(SHARED) $(PYTEST_ARGS)

tutorial: setup ## docs/tutorial.md, from-spark-sink.md and one-bad-record.md, each command, in empty folders; four minutes each
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -m long tests/integration/test_tutorial.py -s $(PYTEST_ARGS)

test-newest-kafka: setup ## What the engine leans on in kafka-python, on its newest release
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pip install --no-input --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(RUN)/kafka-python kafka-python
	PYTHONPATH=$(RUN)/kafka-python $(PYTHON) -m pytest -m "not long" $(NEWEST_KAFKA_TESTS) $(PYTEST_ARGS)

test-kafkas: $(KAFKAS:%=test-kafka-%) ## A selection on other releases of Kafka, with what is long; KAFKAS="3.9.2": on that one

test-kafka-%: archive
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	TEST_KAFKA=$* $(PYTHON) -m pytest $(SHARED) $(KAFKAS_TESTS) $(PYTEST_ARGS)

S3 := $(RUN)/s3

s3: setup ## A local S3 server (moto) and the jars of its clients, into .run/s3; once
	@[ -f $(S3)/complete ] || { $(PYTHON) -m pip install --no-input --quiet --disable-pip-version-check \
		-c distributions/constraints.txt --upgrade --target $(S3)/python 'moto[s3]>=5.1,<6' flask flask-cors && touch $(S3)/complete; }
	$(PYTHON) deploy/preload.py $(S3)/jars

test-s3: s3 archive ## Streams with their checkpoint on a local S3 server, killed, and S3 paused
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	TEST_S3=$(S3) $(PYTHON) -m pytest tests/integration/test_object_store.py \
		tests/integration/test_tables_on_s3.py tests/faults/test_lab_file_stores.py -rs $(PYTEST_ARGS)

test-hdfs: archive ## Streams with their checkpoint on a local HDFS, killed, and HDFS too; fetches a jar of 56 MB the first time
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	TEST_HDFS=1 $(PYTHON) -m pytest tests/integration/test_hdfs.py tests/faults/test_lab_file_stores.py -rs $(PYTEST_ARGS)

test-kerberos: archive ## Logins by Kerberos with a KDC on this machine (Debian: krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc)
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pip install --no-input --quiet --disable-pip-version-check -c distributions/constraints.txt \
		--upgrade --target $(RUN)/gssapi gssapi
	PYTHONPATH=$(RUN)/gssapi $(PYTHON) -m pytest -m long tests/integration/test_kerberos.py -rs $(PYTEST_ARGS)

NAUGHTY := $(RUN)/naughty

test-naughty: archive ## Two collections of texts that break programs, as records; asks npm for them the first time
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	@$(PYTHON) dev/tools/naughty.py $(NAUGHTY)
	EXACTLY_ONCE_NAUGHTY=$(NAUGHTY) $(PYTHON) -m pytest tests/integration/test_split.py \
		tests/integration/test_dead_letters.py -k nobody_here_wrote -rs $(PYTEST_ARGS)

test-managed: archive ## The first five minutes on brokers that refuse what each managed service refuses, and on odd sessions
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest $(SHARED) tests/integration/test_managed.py tests/integration/test_session_classes.py $(PYTEST_ARGS)

LINEAGE := $(RUN)/lineage

test-lineage: archive ## What OpenLineage hears of a stream under Dagster; asks PyPI for its packages
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	@$(PYTHON) -m pip install --quiet --upgrade --target $(LINEAGE) -c distributions/constraints.txt openlineage-python cattrs
	@$(PYTHON) -m pip install --quiet --upgrade --target $(LINEAGE) --no-deps -c distributions/constraints.txt dagster-openlineage
	PYTHONPATH=$(LINEAGE) $(PYTHON) -m pytest tests/dagster/test_openlineage.py -rs $(PYTEST_ARGS)

jar: setup ## The sink's jar, from java/: into the package, with its sum
	@$(PYTHON) dev/tools/jar.py build

golden: setup ## The golden files below tests/golden, as the code says now
	@$(PYTHON) -m tools.golden

check: setup ## Lint, format, types, import contracts, documents and names; and that the jar is what java/ gives
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo
	@mkdir -p $(PYTEST_DEBUG_TEMPROOT)
	$(PYTHON) -m pytest -q -m "not long" $(SHARED) tests/lint
	$(PYTHON) -m pytest -q tests/lint/docs/test_site.py
	$(PYTHON) dev/tools/jar.py check

docs: setup ## This documentation as a site, with a search and the API reference; DOCS_ARGS="-a localhost:9000": there
	$(PYTHON) -m mkdocs serve -f dev/tools/mkdocs.yml $(DOCS_ARGS)

benchmark: setup ## This sink beside Spark's own, Flink and Quix Streams, in one run of 40 minutes; a table and a plot
	$(PYTHON) -m benchmarks $(BENCHMARK_ARGS)

guard: setup ## Fails when a record takes much more processor time than with Spark's own sink
	$(PYTHON) -m benchmarks --only throughput --records 2400000 --repeats 5 --at-most $(GUARD)

audit: setup ## Known vulnerabilities of what is pinned; needs the vulnerability service of PyPI, or AUDIT_ARGS="-s osv"
	@$(PYTHON) dev/tools/dependencies.py audit $(AUDIT_ARGS)

sbom: setup ## A bill of materials, .run/sbom.json: the pinned packages and jars
	@$(PYTHON) dev/tools/dependencies.py sbom

# DURATION, RATE, SEED: seconds, records a second, of the faults.
soak: archive ## A steady rate under random faults, in pieces that each go on where the last one ended
	$(PYTHON) -m faultlab.soak $(if $(DURATION),--duration $(DURATION)) $(if $(RATE),--rate $(RATE)) \
		$(if $(SEED),--seed $(SEED)) $(SOAK_ARGS)

# DURATION: seconds, no round begins later; SEED: of the first round, by default a new one.
faults: archive $(if $(findstring --checkpoint s3,$(FAULTS_ARGS)),s3) ## Rounds of random faults on a real stream: prints seed and history, fails when one is not clean
	$(PYTHON) -m faultlab $(if $(DURATION),--duration $(DURATION)) $(if $(SEED),--seed $(SEED)) $(FAULTS_ARGS)

faults-compare: archive ## This sink, Spark's own and Flink's exactly-once sink under the same faults, side by side
	$(PYTHON) -m faultlab.compare $(if $(DURATION),--duration $(DURATION)) $(if $(SEED),--seed $(SEED)) $(COMPARE_ARGS)

# Outside CI: what other software does is no fault of this project. FINDINGS: a part of the names.
findings: ## Surprises of other software (findings/README.md), each run anew: a line each, fails when one has changed
	@mkdir -p $(RUN)/findings; failed=; for script in findings/*$(FINDINGS)*.sh; do \
		name=$$(basename $$script .sh); began=$$(date +%s); \
		bash $$script >$(RUN)/findings/$$name.log 2>&1; code=$$?; seconds=$$(($$(date +%s) - began)); \
		case $$code in 0) verdict="as described";; 1) verdict=CHANGED;; *) verdict="could not run";; esac; \
		echo "$$verdict ($$seconds s): $$name"; \
		[ $$code -eq 0 ] || { failed="$$failed $$name"; tail -n 5 $(RUN)/findings/$$name.log; }; \
	done; [ -z "$$failed" ] || { echo "Failed:$$failed. Whole output: $(RUN)/findings/"; exit 1; }

clean: ## Remove the files of runs and tools from the project folder; keeps .venv and the cache folder
	rm -rf $(RUN) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache spark-warehouse metastore_db derby.log build dist
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

dist: setup ## The wheel and the source distribution of the sink, its Dagster half, and a laptop's broker and demo, into dist/
	rm -rf dist
	for folder in . $(DISTRIBUTIONS); do \
		(cd $$folder && $(CURDIR)/$(PYTHON) -m hatchling build -d $(CURDIR)/dist) || exit 1; \
	done

lock: ## Rebuild distributions/constraints.txt from what all distributions ask for (needs uv)
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-annotate --no-emit-index-url \
		--no-emit-package pyspark-kafka-exactly-once --no-emit-package exactly-once-local \
		--custom-compile-command "make lock" --output-file distributions/constraints.txt \
		pyproject.toml $(DISTRIBUTIONS:%=%/pyproject.toml)

lock-jars: setup ## Rebuild the sums of jars from each Ivy file
	@$(PYTHON) -m exactly_once.sparkenv.jars exactly_once/sparkenv/ivy.xml exactly_once/sparkenv/connectors.xml java/ivy.xml dev/testkit/ivy-kafkas.xml \
		dev/testkit/ivy-clients.xml dev/tools/mermaid.xml
