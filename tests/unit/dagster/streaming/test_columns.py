"""The columns of outputs, and what they are made from: on the definitions, and once in what each run reports."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_exactly_once import BadDeclaration, Table, exactly_once_definitions, exactly_once_resources
from dagster_exactly_once import exactly_once_stream as declare
from dagster_exactly_once.streaming.reports import Reports
from dagster_exactly_once.streaming.windows import CommittedBatch, ReportWindow
from exactly_once.errors import StoreRefused
from exactly_once.protocol.records import Count
from tests.unit.dagster.streaming.test_progress_events import Context

SCHEMA, LINEAGE, ROWS = "dagster/column_schema", "dagster/column_lineage", "dagster/row_count"

PAID, OTHER, LAKE = dg.AssetKey("paid"), dg.AssetKey("other"), dg.AssetKey(["lake", "orders"])

BUSY = ReportWindow((CommittedBatch(1, 5, 1, 10, 9, 1),), 0, 0, 1.0, None, Count({"paid": 5, "other": 2}, 1_000))
IDLE = ReportWindow((), 0, 0, 1.0, None, Count({"paid": 5, "other": 2}, 1_000))


class Lake:
    """A table that says what it has, or cannot be opened."""

    name = "lake"

    def __init__(self, schema):
        self.schema, self.closed = schema, 0

    def row_count(self):
        return 9

    def table_schema(self):
        if self.schema is None:
            raise StoreRefused("there is no table", "Create it")
        return self.schema

    def close(self):
        self.closed += 1


CENTS = pa.schema([pa.field("cents", pa.int64(), nullable=False)])


def stream(schema=CENTS, **table):
    lake = Lake(schema)
    made = declare(
        name="pay",
        source="orders",
        outputs=["paid", "other", Table("lake/orders", lambda: lake, **table)],
        column_schema={"paid": "cents INT", "other": "x INT"},
        column_lineage={"paid": {"cents": "price"}},
    )(lambda events: events)
    return made, lake


def observed(instance, key):
    """What was observed of the asset, oldest first."""
    found = instance.fetch_observations(key, limit=20).records
    return [record.asset_observation.metadata for record in reversed(found)]


@pytest.mark.parametrize("first", [BUSY, IDLE], ids=["with input", "without input"])
def test_the_first_report_of_each_run_has_the_columns_of_each_output(first, instance):
    """Guards against columns that only a run shows which ends: an endless stream would show none, to no tool."""
    made, _ = stream(column_lineage={"cents": "price"})
    for _ in range(2):
        reports = Reports(Context(instance), made)
        for window in (first, BUSY, IDLE):
            reports.tell(window)
    for key, columns in ((PAID, ["cents"]), (OTHER, ["x"]), (LAKE, ["cents"])):
        shown = [[c.name for c in m[SCHEMA].value.columns] for m in observed(instance, key) if SCHEMA in m]
        assert shown == [columns, columns], key
    made_from = {"cents": [dg.TableColumnDep(dg.AssetKey("orders"), "price")]}
    for key in (PAID, LAKE):
        lineage = [m[LINEAGE].value.deps_by_column for m in observed(instance, key) if LINEAGE in m]
        assert lineage == [made_from, made_from], key
    assert not any(LINEAGE in m for m in observed(instance, OTHER))


def test_the_report_with_the_columns_has_the_total_of_its_output(instance):
    """Dagster shows the row count of the newest observation alone: it would vanish until there is input again."""
    made, _ = stream()
    Reports(Context(instance), made).tell(IDLE)
    assert [m[ROWS].value for key in (PAID, OTHER) for m in observed(instance, key)] == [5, 2]


def test_a_table_shows_the_columns_that_it_has_unless_the_declaration_says_them(instance):
    """The declaration of a stream describes what is in value; the table has columns of its own."""
    made, lake = stream()
    Reports(Context(instance), made).tell(IDLE)
    [said] = observed(instance, LAKE)
    [column] = said[SCHEMA].value.columns
    assert (column.name, column.type, column.constraints.nullable) == ("cents", "int64", False)
    assert lake.closed == 1

    made, lake = stream(column_schema="euros DECIMAL(10,2)")
    assert [c.name for c in made.assets[-1].metadata[SCHEMA].columns] == ["euros"]
    Reports(Context(instance), made).tell(IDLE)
    assert [c.name for c in observed(instance, LAKE)[-1][SCHEMA].value.columns] == ["euros"]
    assert lake.closed == 0


def test_a_table_that_does_not_answer_keeps_no_report_back(instance):
    """Mishap: a stream that dies, or is silent, over what is only shown."""
    made, _ = stream(schema=None)
    context = Context(instance)
    context.said = []
    context.warning = context.said.append
    reports = Reports(context, made)
    reports.tell(BUSY)
    reports.tell(BUSY)
    assert [ROWS in m and SCHEMA not in m for m in observed(instance, LAKE)] == [True, True]
    assert len(context.said) == 1 and "columns of lake/orders could not" in context.said[0]


def test_the_definitions_have_the_columns_before_any_run():
    """Guards against an asset page that is empty until the first report."""
    resources = exactly_once_resources(work_dir="s", checkpoints="c", kafka={"bootstrap_servers": "127.0.0.1:1"})
    made, lake = stream(column_schema="cents INT", column_lineage={"cents": ["price", "amount"]})
    graph = exactly_once_definitions(made, resources=resources).resolve_asset_graph()
    for key in (PAID, LAKE):
        assert [c.name for c in graph.get(key).metadata[SCHEMA].columns] == ["cents"]
    deps = [dg.TableColumnDep(dg.AssetKey("orders"), name) for name in ("amount", "price")]
    assert graph.get(LAKE).metadata[LINEAGE].deps_by_column == {"cents": deps}
    assert lake.closed == 0, "nobody opens a table to load a code location"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"column_schema": "cents"}, "pay: column_schema of lake/orders: 'cents' is not"),
        ({"column_lineage": {"cents": {"refunds": "x"}}}, "refunds is not an"),
    ],
)
def test_columns_of_a_table_that_are_none_are_refused_when_the_code_loads(table, says):
    """Guards against a run that fails at night over what is only shown."""
    with pytest.raises(BadDeclaration, match=says):
        stream(**table)
