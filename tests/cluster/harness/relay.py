"""A TCP relay between a client and the API server that can fall silent: late watch events, and partitions."""

import socket
import threading
from contextlib import suppress

from tests.cluster.harness.control_plane import LOOPBACK

CHUNK = 65536


class Relay:
    """Forwards connections to a port on loopback; TLS passes through untouched.

    While it is silenced, what the server says stays in the relay; nothing is lost.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closing = False
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def silence(self) -> None:
        """Hold back everything that the server says from now on."""
        self._open.clear()

    def speak(self) -> None:
        """Deliver what was held back, and go on."""
        self._open.set()

    def close(self) -> None:
        """Stop accepting; connections end with their peers."""
        self._closing = True
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((LOOPBACK, self._target))
            threading.Thread(target=self._forward, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, self._open), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, gate: threading.Event | None) -> None:
        try:
            while data := source.recv(CHUNK):
                if gate is not None:
                    gate.wait()
                sink.sendall(data)
        except OSError:
            return  # the peer has gone; closing both ends tells the other one
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
