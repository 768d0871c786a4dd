"""Dead letters that were sent again, on a real broker: each repaired one counts once, and a copy is found."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import TopicPartition

from exactly_once.error_headers import CODE, PREFIX, RESENT
from exactly_once.kafka.admin import Admin
from exactly_once.tools.verify.by_origin import tails
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from testkit import broker as brokers
from testkit import oracle
from testkit.traced import Row, Traced

#: What the sink says of a dead letter, behind the headers of its row.
LETTER = ((CODE, b"EO-RECORD"), (f"{PREFIX}exception", b"RecordTooLargeException"))


class Shop(Traced):
    """A stream with a topic for dead letters."""

    def __init__(self, connection: Any, folder: Any, of: str = ""):
        super().__init__(connection, folder, of=of)
        self.dead = brokers.create_topic(connection.bootstrap_servers, brokers.fresh_name("dead"), 1)
        self.rejected = (self.dead,)

    def bury(self, *rows: Row) -> list[str]:
        """Write rows as dead letters; returns the place of each."""
        before = {m.offset for m in oracle.read(self.connection, [self.dead])}
        self.write([row._replace(partition=0, headers=(*row.headers, *LETTER)) for row in rows], topic=self.dead)
        found = [m.offset for m in oracle.read(self.connection, [self.dead]) if m.offset not in before]
        return [f"{self.dead}-0-{offset}" for offset in found]

    def batch_with_letters(self, dead: int, count: int = 10) -> tuple[list[Row], list[str]]:
        """A batch whose last rows of ``count`` are dead letters: these rows, and their places."""
        rows = self.rows(self.feed(count))
        self.write(rows[:-dead])
        letters = self.bury(*rows[-dead:])
        self.decide()
        return rows[-dead:], letters

    def verified(self, last: int | None = None, order: str = "key") -> ComparisonResult:
        """By origin, over both topics."""
        return self.compared(last=last, order=order, refuse_foreign=True)


def sent_again(row: Row, letter: str, **changed: Any) -> Row:
    """The record that the job sends for a letter."""
    return row._replace(headers=(*row.headers, (RESENT, letter.encode())), **changed)


@pytest.fixture
def shop(elsewhere, connection, tmp_path) -> Shop:
    made = Shop(connection, tmp_path)
    made.elsewhere = elsewhere
    return made


def named(result: ComparisonResult) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {f.anomaly.value: (f.records, f.places) for f in result.findings}


def at(place: str) -> str:
    head, _, offset = place.rpartition("-")
    return f"{head}@{offset}..{offset}"


def test_a_dead_letter_that_was_sent_again_counts_as_repaired_and_is_in_nobodys_order(shop: Shop) -> None:
    """Duplicate that is none: each repaired row would turn the check red for good. And a repair comes after records of
    later input with its key.
    """
    rows, letters = shop.batch_with_letters(3)
    shop.batch()
    before = shop.verified()
    assert before.findings == () and before.counts["sent again"] == 0
    shop.write([sent_again(row, letter, value="repaired") for row, letter in zip(rows[:2], letters, strict=False)])
    result = shop.verified()
    assert result.findings == () and result.unproven == {}
    counts = {"input": 20, "output": 22, "foreign": 0, "earlier": 0, "under way": 0, "sent again": 2}
    assert result.counts == counts
    assert shop.verified(order="partition").findings == ()


@pytest.mark.long
def test_a_letter_that_was_sent_twice_one_of_nothing_and_one_of_other_input_are_found(shop: Shop) -> None:
    """Duplicate: two repairs of one letter. Phantom: a repair of nothing, or of what is no letter. Loss: a repair that
    holds another row.
    """
    rows, letters = shop.batch_with_letters(4)
    shop.write([sent_again(rows[0], letters[0], partition=0)])
    shop.write([sent_again(rows[0], letters[0], partition=1)])
    shop.write([sent_again(rows[1], f"{shop.dead}-0-99", partition=2)])
    shop.write([sent_again(rows[2], letters[3], partition=1)])
    shop.write([sent_again(rows[3], f"{shop.output}-0-0", partition=2), sent_again(rows[3], f"{shop.dead}-8-0")])
    result = shop.verified()
    found = sorted((f.anomaly.value, f.records, f.what, f.places) for f in result.findings)
    assert [(kind, n) for kind, n, _, _ in found] == [("duplicate", 1), *[("phantom", 1)] * 4]
    assert at(letters[0]) in found[0][3] and found[0][3][0].startswith(f"{shop.output}-1@"), "the copy"
    assert sorted(places[1] for _, _, _, places in found[1:]) == sorted(
        [f"{shop.dead}-0@99..99", f"{shop.dead}-8@0..0", at(letters[3]), f"{shop.output}-0@0..0"]
    )
    assert sum("came from other input" in what for _, _, what, _ in found) == 1
    assert result.counts["sent again"] == 1


@pytest.mark.long
def test_a_copy_of_a_good_record_is_a_duplicate_as_before(shop: Shop) -> None:
    """Duplicate: what hides behind a header that names another stream's letter, or nothing."""
    rows = shop.batch()
    elsewhere = brokers.create_topic(shop.connection.bootstrap_servers)
    shop.write([sent_again(rows[0], f"{elsewhere}-0-0"), sent_again(rows[1], "nonsense"), rows[2]])
    result = shop.verified()
    assert {f.anomaly.value for f in result.findings} == {"duplicate"} and sum(f.records for f in result.findings) == 3


def rejected(shop: Shop, row: Row) -> Row:
    """The record of ``exactly_once.split``: it has no header of the stream's, and ours name the input record."""
    topic, partition, offset = str(row.source).rsplit("-", 2)
    names = {"topic": topic, "partition": partition, "offset": offset}
    return row._replace(headers=(*LETTER, *((f"{PREFIX}{name}", said.encode()) for name, said in names.items())))


@pytest.mark.long
def test_a_rejected_record_is_the_output_of_the_record_that_its_headers_name(shop: Shop) -> None:
    """Loss that is none: the function that adds the header ran for the good rows alone, or the rejected row has such a
    header of the stream before.
    """
    first, second, third, fourth, *good = shop.rows(shop.feed(10))
    shop.write(good)
    shop.write([rejected(shop, first)._replace(partition=0, source=None)], topic=shop.dead)
    shop.write([rejected(shop, second)._replace(partition=0, source="upstream-0-3")], topic=shop.dead)
    shop.write([rejected(shop, third)._replace(partition=0, source="a text of someone else")], topic=shop.dead)
    upstream = str(good[0].source)  # of an earlier stream, by chance a place in this input
    shop.write([rejected(shop, fourth)._replace(partition=0, source=upstream)], topic=shop.dead)
    shop.decide()
    for last in (None, 1_000):
        result = shop.verified(last)
        assert result.findings == () and result.unproven == {} and result.counts["foreign"] == 0
    [letter] = [m for m in oracle.read(shop.connection, [shop.dead]) if m.offset == 0]
    shop.write([sent_again(first, f"{letter.topic}-0-0")])
    assert shop.verified().findings == ()
    shop.write([rejected(shop, good[0])._replace(partition=0, source=None)], topic=shop.dead)
    assert named(shop.verified()).keys() == {"duplicate"}


@pytest.mark.long
def test_a_letter_that_could_not_be_written_again_is_replaced_by_the_letter_that_came_of_it(shop: Shop) -> None:
    """Duplicate that is none: a repair that did not help, and the one that did."""
    [row], [first] = shop.batch_with_letters(1)
    [second] = shop.bury(sent_again(row, first))
    assert shop.verified().findings == ()
    shop.write([sent_again(row, second)])
    result = shop.verified()
    assert result.findings == () and result.counts["sent again"] == 2
    shop.write([sent_again(row, first)])
    assert named(shop.verified()).keys() == {"duplicate"}


@pytest.mark.long
def test_a_repair_whose_letter_retention_has_deleted_stands_for_itself(shop: Shop) -> None:
    """Loss that is none: the dead letter topic keeps a week, and the output a year."""
    rows, letters = shop.batch_with_letters(2)
    shop.write([sent_again(row, letter) for row, letter in zip(rows, letters, strict=True)])
    with Admin(shop.connection) as admin:
        admin.client.delete_records({TopicPartition(shop.dead, 0): int(letters[1].rpartition("-")[2])})
    result = shop.verified()
    assert result.findings == () and result.counts["sent again"] == 1
    shop.write([rows[0]])
    assert named(shop.verified())["duplicate"][0] == 1


@pytest.mark.long
def test_old_repairs_at_the_end_do_not_hide_where_the_newest_batches_begin(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss that is none: a repair of last week stands behind the records of today, of which the check would read half.
    Duplicate: a copy of it, though its letter is not among what is read.
    """
    monkeypatch.setattr(tails, "FIRST_STEP", 8)
    rows, letters = shop.batch_with_letters(12, 20)
    shop.batch(60)
    shop.batch(60)
    shop.write([sent_again(row, letter) for row, letter in zip(rows, letters, strict=True)])
    result = shop.verified(last=70)
    assert result.findings == () and result.unproven == {} and result.counts["sent again"] == 12
    shop.write([sent_again(rows[0], letters[0])])
    assert named(shop.verified(last=70)).keys() == {"duplicate"}
