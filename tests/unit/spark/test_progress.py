"""Which of the progress that Spark reports is that of a batch."""

from exactly_once.spark.progress import last_ended, of_batches


def progress(batch, rows=0, idle=False):
    """As Spark 4.2 reports it, in the parts that are read."""
    steps = {"latestOffset": 2, "triggerExecution": 3} | ({} if idle else {"addBatch": 700, "triggerExecution": 900})
    return {"batchId": batch, "numInputRows": rows, "durationMs": steps}


def rows_of(reported):
    return [(p["batchId"], p["numInputRows"]) for p in of_batches(reported)]


def test_a_query_that_waits_announces_the_next_batch_and_is_not_taken_for_it():
    """The real batch came later under the same id, and its rows, event times and watermark were lost."""
    waiting = progress(1, idle=True)
    assert rows_of([progress(0, 5), waiting, waiting, progress(1, 7)]) == [(0, 5), (1, 7)]
    assert rows_of([progress(0, 5), waiting]) == [(0, 5)]
    assert rows_of([progress(0, idle=True), progress(0, 3), progress(1, 4)]) == [(0, 3), (1, 4)]


def test_a_batch_without_rows_that_ran_is_a_batch():
    """It moves the watermark and closes windows."""
    assert rows_of([progress(0, 5), progress(1)]) == [(0, 5), (1, 0)]


def test_of_two_batches_of_one_id_the_newest_counts():
    assert rows_of([progress(0, 5), progress(1, 7), progress(1, 8), progress(1, idle=True)]) == [(0, 5), (1, 8)]


def test_a_query_that_waits_says_that_the_batch_before_has_ended():
    assert [last_ended(progress(0, idle=True)), last_ended(progress(0)), last_ended(progress(3, idle=True))] == [
        -1,
        0,
        2,
    ]
