# SPDX-License-Identifier: Apache-2.0
"""What one call makes of an array is made of one moment: while another thread writes whole patterns under a
lease, each result is that of one of the patterns."""

import copy
import hashlib
import io
import math
import operator
import pickle
import threading
import time
import zlib

import numpy as np
import pytest
import soak

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

N = 192
SECONDS = 120.0


def patterns():
    rng = np.random.default_rng(5)
    # Positive definite, so that all decompositions exist.
    made = [m @ m.T / N + np.eye(N) * (k + 1) for k, m in enumerate(rng.random((2, N, N)))]
    return [np.ascontiguousarray(p) for p in made]


def saved(a):
    file = io.BytesIO()
    np.save(file, a)
    return file.getvalue()


def in_place(a):
    into = np.ones((N, N))
    into += a
    return into


def assigned(a):
    into = np.empty((N, N))
    into[...] = a
    return into


def copied_to(a):
    into = np.empty((N, N))
    np.copyto(into, a)
    return into


def with_out(a):
    into = np.empty((N, N))
    return np.multiply(a, 2, out=into)


UFUNCS = (
    "add subtract multiply divide maximum minimum hypot fmod copysign logaddexp arctan2 greater equal "
    "float_power inner kron dot matmul"
)
UNARY = (
    "negative absolute sqrt square exp log log1p sin cos tanh floor ceil rint sign reciprocal isfinite "
    "cbrt deg2rad signbit expm1 sum prod mean std var min max ptp median argmin argmax cumsum cumprod "
    "nansum nanmean nanmax nanstd all any count_nonzero average nonzero sort argsort unique diff "
    "gradient trapezoid add.reduce add.accumulate linalg.inv linalg.det linalg.slogdet linalg.cholesky "
    "linalg.eigvalsh linalg.norm linalg.qr linalg.cond fft.fft fft.ifft fft.rfft fft.fft2 fft.rfft2 "
    "fft.fftshift"
)


def of_one(name):
    return f"np.{name}(a)", operator.attrgetter(name)(np)


def of_two(name):
    function = getattr(np, name)
    return f"np.{name}(a, a)", lambda a: function(a[:20, :20], a.transpose()[:20, :20])


CALLS = {
    **dict(map(of_one, UNARY.split())),
    **dict(map(of_two, UFUNCS.split())),
    "np.roll": lambda a: np.roll(a, 1),
    "np.outer": lambda a: np.outer(a[3], a[4]),
    "np.linalg.solve": lambda a: np.linalg.solve(a, a[0]),
    "np.array": np.array,
    "np.array, f4": lambda a: np.array(a, dtype="f4"),
    "np.array, F": lambda a: np.array(a, order="F"),
    "np.array([a, a])": lambda a: np.array([a, a]),
    "np.asarray, f4": lambda a: np.asarray(a, dtype="f4"),
    "np.asfortranarray": np.asfortranarray,
    "np.copy": np.copy,
    "np.copyto": copied_to,
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.stack": lambda a: np.stack([a, a], axis=-1),
    "np.vstack": lambda a: np.vstack([a, a]),
    "np.tile": lambda a: np.tile(a, (2, 1)),
    "np.repeat": lambda a: np.repeat(a, 2),
    "np.where": lambda a: np.where(True, a, 0),
    "np.clip": lambda a: np.clip(a, 0.3, 1.0),
    "np.round": lambda a: np.round(a, 3),
    "np.take": lambda a: np.take(a, np.arange(0, N * N, 3)),
    "np.histogram": lambda a: np.histogram(a, 20, (0, 4)),
    "np.percentile": lambda a: np.percentile(a, [10, 50, 99]),
    "np.searchsorted": lambda a: np.searchsorted(np.linspace(0, 4, 50), a),
    "np.interp": lambda a: np.interp(a, [0, 1, 4], [0, 5, 6]),
    "np.einsum": lambda a: np.einsum("ij,ji->i", a, a),
    "np.trace": np.trace,
    "np.pad": lambda a: np.pad(a, 2),
    "np.isclose": lambda a: np.isclose(a, 0.3),
    "np.allclose": lambda a: np.allclose(a, a),
    "np.array_equal": lambda a: np.array_equal(a, a),
    "np.partition": lambda a: np.partition(a, 50, axis=None),
    "np.lexsort": lambda a: np.lexsort([a[0], a[1]]),
    "np.packbits": lambda a: np.packbits(np.greater(a, 1)),
    "np.corrcoef": np.corrcoef,
    "np.convolve": lambda a: np.convolve(a[0], a[1]),
    "np.save": saved,
    "rng.permutation": lambda a: np.random.default_rng(3).permutation(a),
    "rng.choice": lambda a: np.random.default_rng(3).choice(a, 50),
    "np.multiply(out=)": with_out,
    "x += a": in_place,
    "x[...] = a": assigned,
    "a + a": lambda a: a + a,
    "a @ a": lambda a: a @ a,
    "-a": lambda a: -a,
    "a > 1": lambda a: a > 1,
    "a ** 2": lambda a: a**2,
    "a.copy": lambda a: np.asarray(a.copy()),
    "a.astype": lambda a: np.asarray(a.astype("f4")),
    "a.tolist": lambda a: a.tolist(),
    "copy.deepcopy": lambda a: np.asarray(copy.deepcopy(a)),
    "pickle": lambda a: np.asarray(pickle.loads(pickle.dumps(a))),
    "bytes": bytes,
    "bytearray": bytearray,
    "hashlib": lambda a: hashlib.sha256(a).digest(),
    "zlib": zlib.crc32,
    "BytesIO": lambda a: io.BytesIO(a).getvalue(),
    "math.dist": lambda a: math.dist(np.array(a[0]), np.array(a[0])),
}


def is_same(x, y):
    if isinstance(x, tuple):
        return len(x) == len(y) and all(map(is_same, x, y))
    if isinstance(x, (bytes, bytearray, list, int, float)):
        return x == y
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape or x.dtype.kind not in "fc":
        return np.array_equal(x, y)
    return np.allclose(x, y, rtol=1e-9, atol=1e-12, equal_nan=True)  # BLAS may add in another order


class Writer(threading.Thread):
    """Writes one pattern after the other."""

    def __init__(self, a, all_patterns):
        super().__init__(daemon=True)
        self.a, self.patterns = a, all_patterns
        self.n_written = 0
        self.error = None
        self.is_over = threading.Event()
        self.start()

    def run(self):
        try:
            while not self.is_over.is_set():
                for pattern in self.patterns:
                    with self.a.write() as v:
                        v[...] = pattern
                    self.n_written += 1
        except BaseException as error:
            self.error = error

    def end(self):
        self.is_over.set()
        self.join(SECONDS)
        assert not self.is_alive() and self.error is None, self.error
        del self.a


# Calls that give the GIL away while they use a buffer: 20 times as many as showed a torn result where leases
# did not wait for such calls.
ROUNDS = {
    "np.array": 2700,
    "np.array, f4": 400,
    "np.asarray, f4": 400,
    "np.array([a, a])": 150,
    "hashlib": 100,
    "zlib": 500,
}


def check(rounds, seconds=0.0):
    """Calls each of them at least so often, and for so long."""
    names = list(rounds)
    all_patterns = patterns()
    a = tn.array(all_patterns[0])
    expected = {name: [CALLS[name](p) for p in all_patterns] for name in names}
    writer = Writer(a, all_patterns)
    torn = []
    try:
        for name in names:
            end, n = time.monotonic() + seconds, 0
            while (time.monotonic() < end or n < rounds[name]) and name not in torn:
                result = CALLS[name](a)
                n += 1
                if not any(is_same(result, whole) for whole in expected[name]):
                    torn.append(name)
    finally:
        writer.end()
    assert writer.n_written > 0 and not torn


@pytest.mark.slow
def test_each_function_sees_one_moment():
    check(dict.fromkeys(CALLS, 2), soak.times(0.5, 0.05))


@pytest.mark.slow
def test_calls_that_use_a_buffer_see_one_moment_many_times():
    check(ROUNDS)
