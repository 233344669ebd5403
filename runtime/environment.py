"""What torchrun tells a process: its rank, the size of the world, and the store that all share."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import PrefixStore

from schedc.diagnostics import Diagnostic, DiagnosticError, render
from schedc.runtime.watchdog import ARRIVAL, PATIENCE, Identity


@dataclass(frozen=True, slots=True)
class Environment:
    """This process among the others. Without torchrun it is the only one."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    hosts_store: bool
    attempt: str

    @staticmethod
    def read(variables: Mapping[str, str]) -> Environment:
        rank, world = int(variables.get("RANK", 0)), int(variables.get("WORLD_SIZE", 1))
        agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Environment(
            rank=rank,
            world=world,
            local_rank=int(variables.get("LOCAL_RANK", rank)),
            local_world=int(variables.get("LOCAL_WORLD_SIZE", world)),
            address=variables.get("MASTER_ADDR", "127.0.0.1"),
            port=int(variables.get("MASTER_PORT", 0)),
            hosts_store=rank == 0 and not agent,
            attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def identity(self) -> Identity:
        """Processes of equal ``host`` see each other's process ids."""
        namespace = Path("/proc/self/ns/pid")
        inode = os.readlink(namespace) if namespace.is_symlink() else ""
        return Identity(self.rank, self.world, f"{self.host} {inode}", os.getpid())

    def connect(self) -> TCPStore:
        """The store of this run. Raises E904 where nobody hosts it."""
        try:
            store = TCPStore(
                self.address,
                self.port,
                is_master=self.hosts_store,
                timeout=timedelta(seconds=ARRIVAL),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            message = f"rank {self.rank} cannot reach the store at {self.address}:{self.port}"
            raise DiagnosticError(Diagnostic("E904", f"{message}: {error}")) from error
        store.set_timeout(timedelta(seconds=PATIENCE))
        return store

    def connect_again(self, store: TCPStore) -> TCPStore:
        """A second connection to ``store``, for another thread."""
        timeout = timedelta(seconds=PATIENCE)
        return TCPStore(self.address, store.port, is_master=False, timeout=timeout)

    def prefixed(self, store: TCPStore, name: str) -> PrefixStore:
        """A name space in the store: of this run's attempt, since torchrun keeps the store."""
        return PrefixStore(f"schedc/{self.attempt}/{name}", store)

    def prefer_loopback(self) -> None:
        """Where all ranks are on this host, let gloo use the loopback device.

        It would look up the host's own name otherwise, which not every container knows.
        """
        if self.local_world == self.world and Path("/sys/class/net/lo").exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Agreement:
    """Lets all ranks refuse together: what any of them found wrong is printed once, by rank 0."""

    def __init__(
        self,
        environment: Environment,
        store: PrefixStore,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``waiting`` is entered while this rank waits for the others."""
        self.rank, self.world, self.store = environment.rank, environment.world, store
        self._waiting = waiting
        self._phase = 0

    def settle(self, value: Any = None, error: DiagnosticError | None = None) -> list[Any]:
        """Every rank's ``value`` (JSON), by rank; exits with status 1 where one has an error."""
        self._phase += 1
        text = render(error.diagnostics, color=sys.stderr.isatty()) if error else ""
        mine = json.dumps({"value": value, "error": text})
        self.store.set(f"{self._phase}/{self.rank}", mine)
        keys = [f"{self._phase}/{rank}" for rank in range(self.world)]
        with self._waiting():
            found = [json.loads(self.store.get(key)) for key in keys]
        errors = dict.fromkeys(each["error"] for each in found if each["error"])
        if errors:
            if self.rank == 0:
                print("\n\n".join(errors), file=sys.stderr, flush=True)
            self._leave_together()
            sys.exit(1)
        return [each["value"] for each in found]

    def _leave_together(self) -> None:
        """Rank 0 goes last: it may host the store, and torchrun ends the others once one fails."""
        self.store.set(f"read/{self.rank}", "")
        if self.rank == 0:
            for rank in range(self.world):
                self.store.get(f"read/{rank}")
