# SPDX-License-Identifier: Apache-2.0
"""Two ranks: 0 receives and 1 sends. In the end 0 prints what both have found as JSON."""

import json

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5

import tenon as tn
from tenon.demo._copy_meter import CopyMeter, why_unavailable

N = 8 << 20  # elements of a payload of 32 MiB
comm = MPI.COMM_WORLD
out_of_band = pkl5.Intracomm(comm)
receiver, sender = 0, 1
is_sender = comm.rank == sender
measures = why_unavailable() is None


found = {}


class DLPackOnly:
    """What an array looks like to a library that knows nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def payloads(work, nbytes):
    """Pages that this rank has written during work, in payloads. The other one waits."""
    if not measures:
        return work(), None
    comm.Barrier()
    with CopyMeter() as meter:
        meter.start()
        result = work()
        written = meter.stop() / nbytes
    comm.Barrier()
    return result, written


def error_of(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return None


def messages_land_in_place():
    a = tn.zeros((4, 6), "i4")
    numbers = np.arange(24).reshape(4, 6)
    if is_sender:
        a[...] = numbers
        comm.Send(a, receiver)
        comm.Send(a.readonly(), receiver)
        comm.Send(DLPackOnly(a), receiver)
        with a.read() as v:
            comm.Send(v[2:], receiver)
        comm.Send(a[1], receiver)
        return
    got = []
    comm.Recv(a, sender)
    got.append(a.tolist() == numbers.tolist())
    with a.write(overwrite=True) as v:
        v[...] = 0
        comm.Recv(v, sender)
    got.append(a.tolist() == numbers.tolist())
    b = tn.zeros((4, 6), "i4")
    comm.Recv(DLPackOnly(b), sender)
    got.append(b.tolist() == numbers.tolist())
    with b.write() as v:
        comm.Recv(v[:2], sender)
    got.append(b.tolist() == [*numbers[2:].tolist(), *numbers[2:].tolist()])
    channel = tn.Channel(tn.schema(row=("i4", (6,))), slots=2)
    with channel.loan() as item:
        comm.Recv(item.row, sender)
    got.append(channel.recv(timeout=600).row.tolist() == numbers[1].tolist())
    found.update(
        in_place=got,
        read_only=error_of(lambda: comm.Recv(a.readonly(), sender)),
        strided=error_of(lambda: comm.Recv(a[:, ::2], sender)),
    )


def our_side_copies_nothing():
    warm, a = tn.zeros(N), tn.zeros(N)
    for array in (warm, a):  # the first one makes MPI's own buffers
        array[...] = comm.rank + 1
        if is_sender:
            _, written = payloads(lambda array=array: comm.Send(array, receiver), a.nbytes)
        else:
            with array.write() as v:
                _, written = payloads(lambda v=v: comm.Recv(v, sender), a.nbytes)
    found.update({"sent" if is_sender else "received": written})
    assert float(a[-1]) == 2
    for _ in range(2):
        if is_sender:
            got, written = payloads(lambda: out_of_band.send(a, receiver), a.nbytes)
        else:
            got, written = payloads(lambda: out_of_band.recv(source=sender), a.nbytes)
    found.update({"sent_pickled" if is_sender else "received_pickled": written})
    if not is_sender:
        found.update(pickled=[got.writable, got.data_ptr % 16, float(got[-1]), got.shape == a.shape])


def a_shared_array_is_a_handle():
    if is_sender:
        s = tn.zeros(N, shared=True)
        _, written = payloads(lambda: comm.send(s, receiver), s.nbytes)
        comm.Barrier()
        found.update(sent_shared=written, seen_by_sender=s[:3].tolist())
    else:
        s, _ = payloads(lambda: comm.recv(source=sender), N * 4)
        s[:3] = 7
        comm.Barrier()


found.update(library=MPI.Get_library_version().split(",")[0])
messages_land_in_place()
our_side_copies_nothing()
a_shared_array_is_a_handle()
gathered = comm.gather(found, receiver)
if not is_sender:
    print(json.dumps(gathered[0] | gathered[1]), flush=True)
