"""The options of a schema registry in a declaration: subjects named after the output, and the option topic refused."""

from __future__ import annotations

import pytest

from dagster_exactly_once import BadDeclaration, StreamConfig, Table, exactly_once_stream
from dagster_exactly_once.declare.sink_options import encodes_values, without_registry
from exactly_once.errors import InvalidOption
from exactly_once.options import SinkOptions

FORMAT = {"schema.registry.url": "http://r", "Value.Format": "avro", "key.schema.type": "JSON"}
OURS = {"kafka.bootstrap.servers": "h:1", "sink.id": "s", "checkpointLocation": "c"}


def declared(**arguments):
    return exactly_once_stream(**{"name": "s", "source": "orders", "outputs": "priced", **arguments})(lambda e: e)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"rejected": "r"},
        {"rejected": "r", "dead_letters": "d"},
        {"outputs": ["priced", Table("t", lambda: None)], "options": {"schema.registry.url": "http://r"}},
    ],
)
def test_subjects_are_named_after_the_output_whatever_topics_stand_beside_it(arguments):
    """Guards against a page whose options do not load under Dagster, where no option topic names the output."""
    stream = declared(**{"options": FORMAT, **arguments})
    registry = SinkOptions.parse({**stream.sink_options(), **OURS}).registry
    assert registry is not None
    assert {f"priced-{side.column}" for side in registry.sides} == {side.subject for side in registry.sides}
    assert registry.sides


def test_options_of_one_run_count_as_those_of_the_declaration():
    """Guards against a format that a person tries in the launchpad, and that asks for a subject."""
    assert declared().sink_options(FORMAT) == {**FORMAT, "schema.registry.topic": "priced"}
    assert declared().sink_options({"sink.trace": "true"}) == {"sink.trace": "true"}


def test_a_topic_or_a_subject_that_the_declaration_names_stays():
    """Guards against records under another schema than the one that was named."""
    given = {**FORMAT, "Schema.Registry.Topic": "old"}
    assert declared(options=given).sink_options() == given
    registry = SinkOptions.parse(
        {**declared(options={**FORMAT, "value.schema.subject": "own"}).sink_options(), **OURS}
    ).registry
    assert registry is not None and [side.subject for side in registry.sides] == ["priced-key", "own"]


def test_two_outputs_need_a_subject():
    """Guards against rows of two topics under the subject of one of them."""
    with pytest.raises(InvalidOption, match=r"key\.schema\.subject is missing.* or schema\.registry\.topic"):
        declared(options=FORMAT, outputs=["priced", "free"])


@pytest.mark.parametrize("more", [{}, {"rejected": "r"}, {"dead_letters": "d"}, {"outputs": ["priced", "free"]}])
def test_the_option_topic_is_refused_when_the_code_loads(more):
    """Guards against rejected rows, dead letters sent again and rows of other outputs, all in one topic."""
    with pytest.raises(BadDeclaration, match=r"options names Topic, .*outputs .* Remove Topic"):
        declared(options={"Topic": "priced"}, **more)


@pytest.mark.parametrize("name", ["Topic", "sink.id", "Sink.ID", "checkpointLocation", "Kafka.Bootstrap.Servers"])
def test_an_option_of_one_run_whose_value_comes_from_elsewhere_is_refused(name):
    """Guards against a run that writes rejected rows to the output, or in a trial with sink.id, to the sink in use."""
    with pytest.raises(InvalidOption, match=f"sink_options holds {name}, .* Remove {name} from sink_options"):
        StreamConfig(sink_options={name: "elsewhere"}).checked_sink_options()


def test_what_is_sent_again_has_its_bytes_already():
    """Guards against a rejected record that comes back to the input encoded, or behind an id."""
    more = {"kafka.compression.type": "zstd", "sink.dead.letter.topic": "d"}
    assert without_registry({**FORMAT, "KEY.schema.subject": "k", **more}) == more
    assert encodes_values(FORMAT) and not encodes_values({"key.format": "avro", "value.schema.type": "AVRO"})
