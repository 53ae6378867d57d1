# SPDX-License-Identifier: Apache-2.0
"""The peers in C and C++, and the floors."""

from . import build, native
from .cases import NATIVE_ASLEEP, NATIVE_SPINNING, RECOVERY, Peer

GROUPS = {"spinning": NATIVE_SPINNING, "asleep": NATIVE_ASLEEP, "recovery": RECOVERY}


def no_headers():
    return "Boost's headers (Debian: libboost-dev)"


def peers():
    found = [
        Peer(name, {GROUPS[group]: contender}, kind="peer" if name.startswith("Boost") else "floor")
        for group, name, contender in native.contenders(str(build.LIBRARY))
    ]
    if not any(peer.name.startswith("Boost") for peer in found):
        found.append(Peer("Boost", dict.fromkeys(GROUPS.values()), missing=no_headers))
    return found


PEERS = peers()
