"""``exactly-once``: inspect the transactions and checkpoints of sinks, and recover a sink.

Exit codes: 0 all is well, 1 something is wrong or was refused, 2 wrong usage.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from exactly_once.errors import ExactlyOnceError, InvalidOption
from exactly_once.tools.cli import operations
from exactly_once.tools.cli.arguments import parse
from exactly_once.tools.cli.operations import Result

#: Width of the lines that go into a file or a pipe: enough for a transactional id with its partitions.
PIPED_WIDTH = 180


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Default: the arguments of the process.

    Returns
    -------
    int
        The exit code; see the module.
    """
    args = parse(argv)
    try:
        if "main" in args:  # a command that another package adds
            return int(args.main(args))
        with _quiet():
            operation = operations.chosen(args)
            result: Result = args.act(args) if operation is None else operations.run(operation, args)
        if args.json:
            _print_json(result.document)
        else:
            result.show(Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False))
        sys.stdout.flush()
        return result.code
    except BrokenPipeError:  # the reader closed the pipe (head); the flush at exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(
            "Interrupted. The brokers may already have carried out the request: run exactly-once transactions "
            "list to see.",
            file=sys.stderr,
        )
        return 130
    except ExactlyOnceError as e:
        return _fail(e, args.json)
    except Exception as e:  # an operator needs the error, not a traceback through this code
        return _fail(
            ExactlyOnceError(
                f"{type(e).__name__}: {e}",
                "Run exactly-once transactions list to see the state, then repeat the command. If it fails again, "
                "report this line as a bug",
                "How far the command got is unknown",
            ),
            args.json,
        )


def _fail(e: ExactlyOnceError, as_json: bool) -> int:
    if as_json:
        phrase = getattr(e, "phrase", None)
        _print_json({"error": {"code": e.code, "what": e.what, "safe": e.safe, "way_out": e.way_out, "force": phrase}})
    # most commands write nothing in any case: that nothing was written would only make a reader wonder
    said = f"{e.code}: {e.what}. What to do: {e.way_out}." if e.safe == ExactlyOnceError.default_safe else e
    print(said, file=sys.stderr)
    return 2 if isinstance(e, InvalidOption) else 1


def _print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the Kafka client, whose connection trouble the error at the end reports once."""
    logger = logging.getLogger("kafka")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
