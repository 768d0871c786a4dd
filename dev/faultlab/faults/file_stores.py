"""The servers that hold the checkpoint: HDFS's are killed and paused, that of S3, which keeps its objects in memory, is
paused.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from faultlab.faults.fault import NOTHING, Fault
from testkit.hdfs import DATA_NODE, NAME_NODE, Hdfs
from testkit.s3 import S3

if TYPE_CHECKING:
    from faultlab.lab import Lab


class _FileStore(Fault):
    """A fault of one server. While a fault holds one, no other is struck: a start waits until HDFS serves."""

    kind: ClassVar[type[Hdfs] | type[S3]]

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.file_store is not None and isinstance(lab.file_store.server, cls.kind)

    def do(self, lab: Lab, random: Random) -> str:
        assert lab.file_store is not None
        self._strikes = not lab.file_store.struck
        if not self._strikes:
            return NOTHING
        lab.file_store.struck = True
        return self.strike(lab.file_store.server)

    def strike(self, server: Hdfs | S3) -> str:
        """Do it to the server, which runs; return its name."""
        raise NotImplementedError

    def undo(self, lab: Lab) -> None:
        assert lab.file_store is not None
        if self._strikes:
            self.mend(lab.file_store.server)
            lab.file_store.struck = False

    def mend(self, server: Hdfs | S3) -> None:
        """Take it back."""
        raise NotImplementedError


class _Kill(_FileStore):
    kind = Hdfs
    node: ClassVar[str]

    def strike(self, server: Hdfs | S3) -> str:
        assert isinstance(server, Hdfs)
        server.kill(self.node)
        return self.node.rpartition(".")[2]

    def mend(self, server: Hdfs | S3) -> None:
        assert isinstance(server, Hdfs)
        server.start(self.node)


class _Pause(_FileStore):
    kind = Hdfs
    node: ClassVar[str]

    def strike(self, server: Hdfs | S3) -> str:
        assert isinstance(server, Hdfs)
        server.pause(self.node)
        return self.node.rpartition(".")[2]

    def mend(self, server: Hdfs | S3) -> None:
        assert isinstance(server, Hdfs)
        server.resume(self.node)


class KillNameNode(_Kill):
    """Kill the name node: no file can be opened.

    The new name node is in safe mode until it knows where the blocks are.
    """

    name, node = "kill-name-node", NAME_NODE
    what = "kill -9 of the name node of the checkpoint's HDFS; it starts again"


class PauseNameNode(_Pause):
    """A name node that collects garbage: it does later what it was asked, also for a driver that is dead."""

    name, node = "pause-name-node", NAME_NODE
    what = "SIGSTOP of the name node of the checkpoint's HDFS, then SIGCONT"


class KillDataNode(_Kill):
    """Files have names and no content until it is back."""

    name, node = "kill-data-node", DATA_NODE
    what = "kill -9 of the only data node of the checkpoint's HDFS; it starts again, with its data"


class PauseDataNode(_Pause):
    """A file that is being written gets its end late."""

    name, node = "pause-data-node", DATA_NODE
    what = "SIGSTOP of the only data node of the checkpoint's HDFS, then SIGCONT"


class PauseS3(_FileStore):
    """An object store that does not answer, and puts objects late: also those of a driver that is dead."""

    name = "pause-s3"
    what = "SIGSTOP of the S3 server of the checkpoint, then SIGCONT"
    kind = S3

    def strike(self, server: Hdfs | S3) -> str:
        assert isinstance(server, S3)
        server.pause()
        return "S3"

    def mend(self, server: Hdfs | S3) -> None:
        assert isinstance(server, S3)
        server.resume()


FILE_STORES = (KillNameNode, PauseNameNode, KillDataNode, PauseDataNode, PauseS3)
