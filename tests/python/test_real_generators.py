# SPDX-License-Identifier: Apache-2.0
"""Real decoders and other languages fill the slots of a feed: libjpeg-turbo, libsndfile, zlib, Fortran, Rust.

Each library writes to the memory that the feed gives it. Oracle: the same data decoded by a program that
shares no code with it here (Pillow, SciPy, Python's zlib), or computed anew with NumPy; bit by bit.
Skipped where the system has no such library or compiler.
"""

import gzip
import io
import os
import pathlib
import shutil
import subprocess

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

INCLUDE = pathlib.Path(__file__).parents[2] / "include"


def need_library(header, link, package):
    if not native_library.can_link(header, link):
        pytest.skip(f"the system has no {header} with lib{link} (Debian: {package})")


def need_program(name, package):
    if shutil.which(name) is None:
        pytest.skip(f"the system has no {name} ({package})")


def real(name, *options, links=()):
    return native_library.compiled(native_library.SOURCES / name, "-std=gnu99", *options, links=links)


def built(name, *command):
    """The path of a library made by another compiler."""
    library = native_library.folder() / f"lib{pathlib.Path(name).stem}.so"
    source = native_library.SOURCES / name
    subprocess.run([*command, str(source), "-o", str(library)], check=True, cwd=native_library.folder())
    return str(library)


def joined(pieces):
    """Byte strings one behind the other, and where each begins and the last ends."""
    offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return np.frombuffer(b"".join(pieces), np.uint8), offsets


def is_in_slots(feed, array):
    stats = feed.stats()
    return 0 <= array.data_ptr - stats.memory < stats.slots * stats.slot_nbytes


# --------------------------------------------------------------------------------- libjpeg-turbo

HEIGHT, WIDTH = 45, 67  # no multiples of the codec's blocks


def picture(number):
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    noise = np.random.default_rng(number).normal(0, 12, (HEIGHT, WIDTH, 3))
    waves = [127 + 100 * np.sin((x * (number % 5 + 1) + y * k) / 9.0) for k in range(3)]
    return np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def jpegs():
    image = pytest.importorskip("PIL.Image")
    files = []
    for number in range(10):
        file = io.BytesIO()
        image.fromarray(picture(number)).save(file, "JPEG", quality=80 + number, subsampling=number % 3)
        files.append(file.getvalue())
    return files


def jpeg_generator(files, **sizes):
    need_library("turbojpeg.h", "turbojpeg", "libturbojpeg0-dev")
    data, offsets = joined(files)
    return tn.c_function(
        real("real_jpeg.c", links=("turbojpeg",)),
        "int fill(uint8_t *image, int64_t *number, size_t n, uint64_t index, const uint8_t *jpegs, "
        "const int64_t *offsets, uint64_t count, int height, int width)",
        threadsafe=True,
        jpegs=data,
        offsets=offsets,
        count=len(files),
        **{"height": HEIGHT, "width": WIDTH, **sizes},
    )


JPEG_SCHEMA = {"image": ("u1", (4, HEIGHT, WIDTH, 3)), "number": ("i8", (4,))}


def test_libjpeg_turbo_decodes_into_the_rows_of_a_batch(jpegs):
    image = pytest.importorskip("PIL.Image")
    generator = jpeg_generator(jpegs)
    wanted = [np.asarray(image.open(io.BytesIO(file)).convert("RGB")) for file in jpegs]
    with tn.Feed(generator, tn.schema(**JPEG_SCHEMA), workers=2, batches=7) as feed:
        for _ in range(2):
            for batch in feed:
                numbers = (batch.index * 4 + np.arange(4)) % len(jpegs)
                assert is_in_slots(feed, batch.image)
                assert np.asarray(batch.number).tolist() == numbers.tolist()
                for row, number in zip(np.asarray(batch.image), numbers, strict=True):
                    # Both round exactly where they use the same transform; decoders may differ by one step.
                    difference = np.abs(row.astype(int) - wanted[number])
                    assert difference.max() <= 1
                    assert np.abs(row.astype(int) - picture(number)).mean() < 20  # it is that picture


@pytest.mark.parametrize(("length", "code"), [(300, 2), (1200, 4)])  # within the head, within the picture
def test_a_jpeg_that_is_cut_is_an_error_at_its_batch(jpegs, length, code):
    assert length < len(jpegs[5]) - 100
    cut = [*jpegs[:5], jpegs[5][:length], *jpegs[6:]]
    with tn.Feed(jpeg_generator(cut), tn.schema(**JPEG_SCHEMA), workers=2, batches=5) as feed:
        seen = []
        with pytest.raises(tn.OpError, match=f"returned {code} at batch 1 of epoch 0"):
            seen.extend(batch.index for batch in feed)
        assert seen == [0]


def test_a_jpeg_of_another_size_is_an_error(jpegs):
    smaller = {"image": ("u1", (4, HEIGHT - 1, WIDTH, 3)), "number": ("i8", (4,))}
    generator = jpeg_generator(jpegs, height=HEIGHT - 1)
    with (
        tn.Feed(generator, tn.schema(**smaller), batches=5) as feed,
        pytest.raises(tn.OpError, match="returned 3 at batch 0"),
    ):
        next(iter(feed))


# ------------------------------------------------------------------------------------ libsndfile


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_libsndfile_reads_a_wave_file_through_a_plug_in(tmp_path, channels, dtype):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    need_library("sndfile.h", "sndfile", "libsndfile1-dev")
    library = real("real_sound.c", f"-I{INCLUDE}", links=("sndfile",))
    frames, rows, window = 20_000, 8, 500
    time = np.arange(frames)[:, None] / 16_000
    sound = 0.7 * np.sin(2 * np.pi * (440 + 300 * time) * time + np.arange(channels))
    sound = (sound * 32767).astype("i2") if dtype == "i2" else sound.astype("f4")
    path = tmp_path / "chirp \u00e9.wav"
    wavfile.write(path, 16_000, sound)
    rate, read = wavfile.read(path)
    wanted = read.reshape(frames, channels).astype("f4") / np.float32(32768 if dtype == "i2" else 1)
    assert rate == 16_000

    plugin = tn.plugin(library, path=path, rows=rows, window=window)
    assert plugin.schema.fields[0] == ("wave", tn.float32, (rows, window, channels))
    batches = (frames - window) // (rows * window // 2)
    with tn.Feed(plugin, workers=3, batches=batches) as feed:
        for batch in feed:
            assert is_in_slots(feed, batch.wave)
            for row, start in zip(np.asarray(batch.wave), np.asarray(batch.start), strict=True):
                assert (row == wanted[start : start + window]).all()
        assert batch.index == batches - 1
    with tn.Feed(plugin) as feed, pytest.raises(tn.OpError, match=r"frame \d+ is beyond the end"):
        for batch in feed:
            assert batch.index <= batches


def test_a_file_that_is_missing_is_told_when_the_plug_in_is_made(tmp_path):
    need_library("sndfile.h", "sndfile", "libsndfile1-dev")
    library = real("real_sound.c", f"-I{INCLUDE}", links=("sndfile",))
    with pytest.raises(tn.OpError, match=r"open of plug-in 'sound' returned 3: .*no\.wav"):
        tn.plugin(library, path=tmp_path / "no.wav")


# ------------------------------------------------------------------------------------------ zlib


def inflate_generator(streams):
    need_library("zlib.h", "z", "zlib1g-dev")
    data, offsets = joined(streams)
    return tn.c_function(
        real("real_inflate.c", links=("z",)),
        "int fill(int16_t *samples, size_t n, uint64_t index, const uint8_t *streams, "
        "const int64_t *offsets, uint64_t count, uint64_t columns)",
        threadsafe=True,
        streams=data,
        offsets=offsets,
        count=len(streams),
        columns=1000,
    )


def test_zlib_inflates_into_the_slot():
    numbers = np.random.default_rng(3)
    blocks = [(numbers.normal(0, 3, (32, 1000)) * k).astype("i2") for k in range(6)]
    streams = [gzip.compress(block.tobytes(), k) for k, block in enumerate(blocks)]
    schema = tn.schema(samples=("i2", (32, 1000)))
    with tn.Feed(inflate_generator(streams), schema, workers=2, batches=20) as feed:
        for batch in feed:
            assert is_in_slots(feed, batch.samples)
            inflated = gzip.decompress(streams[batch.index % 6])
            assert np.asarray(batch.samples).tobytes() == inflated == blocks[batch.index % 6].tobytes()


def test_a_damaged_stream_is_an_error_at_its_batch():
    block = np.arange(32_000, dtype="i2")
    stream = bytearray(gzip.compress(block.tobytes()))
    stream[-6] ^= 1  # of the check sum
    streams = [gzip.compress(block.tobytes()), bytes(stream), gzip.compress(block.tobytes()[:-2])]
    with tn.Feed(inflate_generator(streams), tn.schema(samples=("i2", (32, 1000))), batches=3) as feed:
        batches = iter(feed)
        assert (np.asarray(next(batches).samples).ravel() == block).all()
        with pytest.raises(tn.OpError, match="returned 2 at batch 1"):
            next(batches)
        del batches
    with (
        tn.Feed(inflate_generator(streams[2:]), tn.schema(samples=("i2", (32, 1000))), batches=1) as feed,
        pytest.raises(tn.OpError, match="returned 3 at batch 0"),
    ):
        next(iter(feed))


# --------------------------------------------------------------------------- Fortran and Rust


def heat(source, height, width, steps):
    plate = np.zeros((height, width))
    plate[tuple(source)] = 1000
    for _ in range(steps):
        sums = (plate[1:-1, :-2] + plate[1:-1, 2:]) + (plate[:-2, 1:-1] + plate[2:, 1:-1])
        plate = np.pad(0.25 * sums, 1)
    return plate


def test_fortran_fills_batches():
    fortran = os.environ.get("FC", "gfortran")
    need_program(fortran, "Debian: gfortran")
    # Without contraction: NumPy has no fused multiplication and addition either.
    options = ("-O2", "-Wall", "-Werror", "-ffp-contract=off", "-shared", "-fPIC")
    library = built("real_heat.f90", fortran, *options)
    rows, height, width, steps = 5, 14, 19, 12
    generator = tn.c_function(
        library,
        "int fill(double *plate, int32_t *source, size_t n, int64_t index, int width, int height, int steps)",
        threadsafe=True,
        width=width,
        height=height,
        steps=steps,
    )
    schema = tn.schema(plate=("f8", (rows, height, width)), source=("i4", (rows, 2)))
    with tn.Feed(generator, schema, workers=2, batches=12) as feed:
        for batch in feed:
            assert is_in_slots(feed, batch.plate)
            for plate, source in zip(np.asarray(batch.plate), np.asarray(batch.source), strict=True):
                assert 0 < source[0] < height - 1
                assert 0 < source[1] < width - 1
                assert (plate == heat(source, height, width, steps)).all()
                assert plate.max() > 0
    with pytest.raises(tn.OpError, match="returned 2"):
        generator(np.zeros((1, 2, 2)), np.zeros((1, 2), "i4"), 1, 0, width=2, height=2)


def split_mix(seed, n):
    state = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def test_rust_fills_batches():
    need_program("rustc", "rustup.rs")
    options = ("--edition", "2021", "-O", "--crate-type", "cdylib", "-D", "warnings")
    library = built("real_noise.rs", "rustc", *options)
    rows, columns = 6, 100
    generator = tn.c_function(
        library,
        "int fill(float *noise, int64_t *largest, size_t n, uint64_t seed, uint64_t index, uint64_t columns, "
        "uint64_t bad_index)",
        threadsafe=True,
        columns=columns,
        bad_index=25,
    )
    schema = tn.schema(noise=("f4", (rows, columns)), largest=("i8", (rows,)))
    seed = 11
    seeds = split_mix(seed, 1)  # as tenon.Feed says how the seed of a batch follows
    with tn.Feed(generator, schema, workers=3, batches=40, seed=seed) as feed:
        seen = 0
        with pytest.raises(tn.OpError, match="returned -22 at batch 25"):
            for batch in feed:
                assert is_in_slots(feed, batch.noise)
                of_batch = split_mix(split_mix(seeds ^ np.uint64(0), 1)[0] ^ np.uint64(batch.index), 1)[0]
                wanted = (split_mix(of_batch, rows * columns) >> np.uint64(40)).astype("f4") / np.float32(
                    2**24
                )
                wanted = wanted.reshape(rows, columns)
                assert (np.asarray(batch.noise) == wanted).all()
                assert (np.asarray(batch.largest) == wanted.argmax(1)).all()
                seen += 1
        assert seen == 25
