"""A PostgreSQL server of the Debian package, on a folder of its own, for as long as the tests run."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile

from tests.database.databases import memory_folder


class PostgresServer:
    """Started when it is made; reached through a Unix socket in its folder. It does not fsync: nothing here kills the server."""

    def __init__(self) -> None:
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        assert programs, "PostgreSQL is missing: run scripts/install-crash-tools"
        self._programs = programs[-1]
        # It refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.folder = tempfile.mkdtemp(prefix="penstock-pg-", dir=memory_folder("/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._user)
        data = os.path.join(self.folder, "data")
        self._run(
            "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--no-instructions", "-E", "UTF8", "--locale=C"
        )
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", data, "-w", "-l", os.path.join(self.folder, "log"), "-o", options, "start")
        self._data = data

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [os.path.join(self._programs, program), *arguments],
            user=self._user if os.geteuid() == 0 else None, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, check=False, text=True, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def address(self, database: str = "postgres") -> str:
        return f"host={self.folder} user=postgres dbname={database}"

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)
