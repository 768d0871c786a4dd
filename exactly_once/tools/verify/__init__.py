"""``verify``: prove from outside that the output of a sink is exactly-once, or name what is not.

Two ways, which can be combined. *By the commit log*: every decision in it names its parts with number, digest and
place; the records of the last batches are read back and must be these. *By origin*: each output record tells the input
record that it came from; the whole output is compared with the whole input. The reader of both is the checker's own;
its connection (kafka-python) and the commit log's reader are also the sink's. Changes nothing, fences nobody, and may
run while the stream does.
"""

from exactly_once.tools.verify.anomalies import Anomaly, Finding
from exactly_once.tools.verify.parameters import VerifyParameters
from exactly_once.tools.verify.report import Progress, Report
from exactly_once.tools.verify.run import verify

__all__ = ["Anomaly", "Finding", "Progress", "Report", "VerifyParameters", "verify"]
