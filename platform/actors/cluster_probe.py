"""Check whether a Ray cluster answers at an address. Ray's own client tries for minutes, and ignores signals."""

import os
import socket

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Start of an HTTP/2 connection, which gRPC uses: preface and empty SETTINGS frame (RFC 9113, sections 3.4 and 6.5)."""

HEADER, SETTINGS = 9, 4
"""Size in bytes of a frame's header, whose fourth byte is the type; type of the first frame that a server sends."""


def trouble_at(address: str, seconds: float) -> str | None:
    """Reason why no gRPC server answers at HOST:PORT within `seconds`; None if one does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return None
            connection.sendall(HELLO)
            header = connection.recv(HEADER, socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if len(header) == HEADER and header[3] == SETTINGS else "the server there is not Ray"
