# SPDX-License-Identifier: Apache-2.0
"""The peers in C and C++, and the floors."""

from . import build, native
from .cases import Peer


def no_headers():
    return "Boost's headers (Debian: libboost-dev)"


PEERS = [
    Peer(name, cases, kind="peer" if name.startswith("Boost") else "floor")
    for name, cases in native.contenders(str(build.LIBRARY)).items()
]
if not any(peer.kind == "peer" for peer in PEERS):
    PEERS.append(Peer("Boost", dict.fromkeys(native.GROUPS.values()), missing=no_headers))
