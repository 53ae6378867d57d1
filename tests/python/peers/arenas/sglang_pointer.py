# SPDX-License-Identifier: Apache-2.0
"""SGLang's ShmPointerMMData on a tensor pool: the pointer carries a message, which each rank opens once.
There is no name, so nothing is left when a process is killed, and no rank waits for the others."""

import functools
import hashlib

import tenon as tn


@functools.cache
def pool():
    return tn.TensorPool("4 GiB", inline=0, timeout=600)


class ShmPointerMMData:
    ranks = 1  # that receive each pointer; a program sets it at its start

    def __init__(self, tensor, precomputed_hash=None):
        self.shape, self.dtype, self.precomputed_hash = tensor.shape, tensor.dtype, precomputed_hash
        self.message = pool().dumps(tensor.cpu(), opens=self.ranks)
        self.shm_name = "mm-" + hashlib.sha256(self.message).hexdigest()[:16]  # for messages of errors
        self.tensor = self._shm_handle = self._materialization_error = None
        self._is_sender = True

    def __getstate__(self):
        names = "shm_name", "shape", "dtype", "precomputed_hash", "message"
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state):
        self.__dict__.update(state, tensor=None, _shm_handle=None, _materialization_error=None)
        self._is_sender = False
        try:
            self.tensor = tn.loads(self.message)  # writes stay in this process
        except Exception as error:  # not raised: all ranks must come to the end of the broadcast
            kind = FileNotFoundError if isinstance(error, tn.MessageGone) else type(error)
            self._materialization_error = f"{kind.__name__}: {self.shm_name}: {error}"

    def materialize(self):
        if self._materialization_error is not None:
            raise RuntimeError(self._materialization_error)
        tensor, self.tensor = self.tensor, None
        return tensor

    def close_and_unlink(self):
        self.tensor = None
        if self._is_sender:
            pool().revoke(message=self.message)
