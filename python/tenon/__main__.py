# SPDX-License-Identifier: Apache-2.0
"""The command line: ``tenon`` and ``python -m tenon``.

``demo`` trains a model on batches from a C library and prints the costs. ``config`` prints the paths of the
files for C and C++ programs. ``ls`` lists feeds and the memory that processes share. ``gc`` releases what
dead processes held. ``doctor`` says what the machine allows. ``plot`` draws a file of `tenon.trace`.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Any

from tenon import TenonError, _core

CONFIG_OPTIONS = {
    "--cflags": "the compiler's options for tenon/tenon.h",
    "--libs": "the linker's options for libtenon, with its run path",
    "--includedir": "the folder of tenon/tenon.h",
    "--includes": "the same as --cflags",
    "--cmakedir": "the folder for find_package(tenon)",
    "--pkgconfigdir": "the folder of tenon.pc, for PKG_CONFIG_PATH",
    "--libdir": "the folder of libtenon.so",
    "--version": "the version of the package",
}


_WIDTH = max(map(len, CONFIG_OPTIONS)) + 2


class _Version(argparse.Action):
    """Prints the version and ends the program. argparse's own action ignores a full disk."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        print(f"tenon {_core.__version__}")
        parser.exit()


def _config(arguments: argparse.Namespace) -> int:
    # The folder of the extension, also if the package is elsewhere.
    prefix = os.path.dirname(os.path.realpath(_core.__file__))
    include, lib = f"{prefix}/include", f"{prefix}/lib"
    cmake, pkgconfig = f"{lib}/cmake/tenon", f"{lib}/pkgconfig"
    answers = {  # option: what it prints, and a file that must be there
        "cflags": (f"-I{include}", f"{include}/tenon/tenon.h"),
        "libs": (f"-L{lib} -Wl,-rpath,{lib} -ltenon", f"{lib}/libtenon.so"),
        "includedir": (include, f"{include}/tenon/tenon.h"),
        "includes": (f"-I{include}", f"{include}/tenon/tenon.h"),
        "cmakedir": (cmake, f"{cmake}/tenonConfig.cmake"),
        "pkgconfigdir": (pkgconfig, f"{pkgconfig}/tenon.pc"),
        "libdir": (lib, f"{lib}/libtenon.so"),
    }
    asks_all = not any(getattr(arguments, name[2:]) for name in CONFIG_OPTIONS)
    for name, (answer, file) in answers.items():
        if asks_all or getattr(arguments, name):
            if not os.path.isfile(file):
                print(f"tenon config: {file} is missing; reinstall tenon-arrays", file=sys.stderr)
                return 1
            print(f"{'--' + name:<{_WIDTH}}{answer}" if asks_all else answer)
    if asks_all or arguments.version:
        print(f"{'--version':<{_WIDTH}}{_core.__version__}" if asks_all else _core.__version__)
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from tenon.demo import DemoError, run
    from tenon.demo.report import table, verdict

    try:
        result = run(arguments.framework, arguments.workers, arguments.seed, arguments.quick)
    except DemoError as error:
        print(f"tenon demo: {error}", file=sys.stderr)
        return 1
    print("\n" + table(result), flush=True)
    if arguments.json:
        import json

        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        print("\n" + verdict(result), flush=True)
    return 0


def _ls(arguments: argparse.Namespace) -> int:
    import time

    if arguments.group is not None and arguments.at is None:
        print("tenon ls: --group is for --at SOCKET", file=sys.stderr)
        return 1
    if arguments.at is not None:
        import tenon

        try:
            tenon.attach_pool(arguments.at, group=arguments.group)  # the pool stays open, so it is shown
        except (OSError, ValueError) as error:
            print(f"tenon ls: {error}", file=sys.stderr)
            return 1
    before = _look(arguments)
    if arguments.watch is None:
        return 0
    try:
        while True:
            time.sleep(arguments.watch)
            try:
                before = _look(arguments, before)
            except (TenonError, MemoryError) as error:  # the next look may succeed
                print(f"tenon ls: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return 0


def _look(
    arguments: argparse.Namespace, before: tuple[dict[str, Any], float] | None = None
) -> tuple[dict[str, Any], float]:
    """Prints what there is, with rates since an earlier look; returns it with its time."""
    import json
    import time

    from tenon._tools import observers as _observers
    from tenon._tools import terminal as _terminal

    seen: dict[str, Any] = json.loads(_core.describe_shared())
    if arguments.names:
        _observers.keep_named(seen, arguments.names)
    now = time.monotonic()
    _observers.add_rates(seen, before, now)
    if arguments.json:
        print(json.dumps(seen, allow_nan=False), flush=True)
    else:
        only = arguments.messages
        lines = _observers.listing(seen) if only is None else _observers.messages(seen, only)
        _terminal.show(lines, clears=arguments.watch is not None)
    return seen, now


def _gc(arguments: argparse.Namespace) -> int:
    text = _core.collect_shared()
    if not arguments.json:
        import json

        from tenon._tools import observers as _observers

        text = _observers.summary(json.loads(text))
    print(text, flush=True)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from tenon._tools import doctor as _doctor

    found = _doctor.findings()
    if arguments.json:
        import json

        print(json.dumps([finding._asdict() for finding in found]), flush=True)
    else:
        print(_doctor.listing(found), flush=True)
    return int(any(finding.state == "problem" for finding in found))


def _plot(arguments: argparse.Namespace) -> int:
    try:
        from tenon._tools import plot as plot
    except ImportError as error:
        reason = f"it draws with matplotlib, which cannot be used ({error})"
        print(f'tenon plot: {reason}: pip install "tenon-arrays[plot]"', file=sys.stderr)
        return 1
    try:
        text = plot.draw_file(arguments.trace, arguments.picture)
    except (OSError, ValueError, OverflowError) as error:
        print(f"tenon plot: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no time between 0 and 3600 s")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


class _Help(argparse.HelpFormatter):
    """As its base, which imports shutil for the width of the terminal for each argument of the parser."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


@functools.cache
def _width() -> int:
    try:
        columns = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
        except (AttributeError, ValueError, OSError):
            pass
    return (columns or 80) - 2


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tenon", description="Lists feeds and shared memory, checks this machine, prints build options."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version of the package")
    commands = parser.add_subparsers(prog=parser.prog, required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="a C library feeds a model that learns digits; prints what it costs"
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    demo.add_argument("--framework", choices=("auto", "torch", "numpy"), default="auto")
    demo.add_argument(
        "--workers", type=_positive, help="threads that run the C function (default: cores - 1)"
    )
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--quick", action="store_true", help="a few seconds, rough figures")
    demo.set_defaults(call=_demo)

    ls = commands.add_parser("ls", help="feeds, and shared memory: which processes have it open or hold it")
    ls.add_argument(
        "names", nargs="*", metavar="NAME", help="only memory with this name, as a pattern: 'camera-*'"
    )
    ls.add_argument(
        "--at", metavar="SOCKET", help="also the tensor pool that a process of another container serves there"
    )
    ls.add_argument(
        "--group",
        type=lambda text: int(text) if text.isdecimal() else text,
        help="with --at: of a pool of another user, the group to which it is served",
    )
    ls_form = ls.add_mutually_exclusive_group()
    ls_form.add_argument(
        "--json", action="store_true", help="print one JSON object on a line (docs/inspect.md)"
    )
    ls_form.add_argument(
        "--messages",
        nargs="?",
        const="",
        metavar="TAG",
        help="only the messages of tensor pools, the oldest first; with this tag",
    )
    ls.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=1.0,
        metavar="S",
        help="repeat it every S seconds (default 1), with rates, until Ctrl-C",
    )
    ls.set_defaults(call=_ls)

    gc = commands.add_parser("gc", help="give back what dead processes held of memory that others have")
    gc.add_argument("--json", action="store_true", help="print one JSON object (docs/inspect.md)")
    gc.set_defaults(call=_gc)

    plot = commands.add_parser("plot", help="draw what tn.trace has written, as SVG or PNG")
    plot.add_argument("trace", metavar="RUN.JSON")
    plot.add_argument("picture", metavar="OUT.SVG|OUT.PNG")
    plot.set_defaults(call=_plot)

    doctor = commands.add_parser(
        "doctor", help="what this machine allows: limits, names, other processes; 1 if there is a problem"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON list")
    doctor.set_defaults(call=_doctor)

    config = commands.add_parser(
        "config", help="print where the files for C and C++ programs lie; without options: all of it"
    )
    for option, text in CONFIG_OPTIONS.items():
        config.add_argument(option, action="store_true", help=text)
    config.set_defaults(call=_config)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:  # it was closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ntenon: interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # for example a full disk
        is_reader_gone = isinstance(error, BrokenPipeError) and _is_reader_gone()  # as in `tenon ls | head`
        if not is_reader_gone:
            print(f"tenon: {error}", file=sys.stderr)
        _give_up_output()
        return 0 if is_reader_gone else 1


def _run(argv: list[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    status: int = arguments.call(arguments)
    return status


def _is_reader_gone() -> bool:
    """Whether the process that reads standard output has closed it. Other pipes can break, too."""
    import select

    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # an error is reported without being asked for
    return bool(poller.poll(0))


def _give_up_output() -> None:
    """Python writes the rest of the buffer at its exit, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
