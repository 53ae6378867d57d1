# SPDX-License-Identifier: Apache-2.0
"""Runs test files of vLLM and SGLang without the rest of their packages: a plugin of pytest. THEIRS are
modules in the folder TENON_PEER_ARENAS; what else the tests import is a stand-in, which is a mock where no
test looks at it. With TENON_PEER_ADAPTER=NAME, the classes of that adapter replace those of their
module."""

import dataclasses
import importlib
import importlib.util
import logging
import multiprocessing
import os
import pathlib
import pickle
import sys
import tempfile
import types
import unittest
import uuid
from multiprocessing import shared_memory
from typing import ClassVar
from unittest import mock

import torch

from tenon import _core

FOLDER = pathlib.Path(os.environ["TENON_PEER_ARENAS"])
DEVICES = "vllm.distributed.device_communicators"
# What each adapter replaces, and what that imports.
MODULES = {
    "vllm_object_storage": f"{DEVICES}.shm_object_storage",
    "vllm_arena": f"{DEVICES}.shm_tensor_arena",
    "sglang_pointer": "sglang.srt.managers.mm_utils",
}
THEIRS = {*MODULES.values(), f"{DEVICES}.shm_broadcast"}


@dataclasses.dataclass
class Field:
    batch_size: int


@dataclasses.dataclass
class Element:
    data: torch.Tensor
    field: Field

    def __eq__(self, other):
        return torch.equal(self.data, other.data) and self.field == other.field


class Item(dict):
    pass


class Encoder:
    def encode(self, value):
        return [pickle.dumps(value)]


class Decoder:
    def __init__(self, kind, share_mem):
        pass

    def decode(self, parts):
        return pickle.loads(b"".join(parts))


GIVEN = {
    "multiprocess": vars(multiprocessing),
    "vllm.envs": {"VLLM_USE_SPINLOOP_EXT": False, "VLLM_RINGBUFFER_WARNING_INTERVAL": 60},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.multimodal.inputs": {
        "MultiModalFieldElem": Element,
        "MultiModalKwargsItem": Item,
        "MultiModalSharedField": Field,
    },
    "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cuda_alike=lambda: False)},
    "vllm.utils.cpu_resource_utils": {"check_cgroup_memory_available": lambda *_: None},
    "vllm.utils.network_utils": {
        "get_open_zmq_ipc_path": lambda: f"ipc://{tempfile.gettempdir()}/{uuid.uuid4()}",
        "is_valid_ipv6_address": lambda address: False,
    },
    "vllm.v1.serial_utils": {"MsgpackEncoder": Encoder, "MsgpackDecoder": Decoder},
    "zmq": {"Frame": type("Frame", (), {})},
    "sglang.srt.utils.stale_shm_cleanup": {"make_shm_name": lambda kind: None},
    "sglang.test.test_utils": {"CustomTestCase": unittest.TestCase},
}


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in THEIRS:
            return importlib.import_module(f"{self.__name__}.{name}")
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder:
    """Of all modules below these names."""

    def __init__(self, *roots):
        self.roots = roots

    def find_spec(self, name, path=None, target=None):
        if name in THEIRS:
            return importlib.util.spec_from_file_location(name, file(f"{name.rpartition('.')[2]}.py"))
        if name.partition(".")[0] in self.roots:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        vars(module).update(
            {k: v for k, v in GIVEN.get(module.__name__, {}).items() if not k.startswith("__")}
        )


def file(name):
    return next(FOLDER.rglob(name))


class Segment:
    """Tests of SGLang look for the segment of a pointer by its name, and remove it. A message has no name:
    here it is found until it is opened."""

    pointers: ClassVar[dict] = {}

    def __init__(self, name):
        self.pointer = self.pointers.get(name)
        core = self.pointer and _core.core_of_message(self.pointer.message)
        if not core or not _core.is_message_unopened(core):
            raise FileNotFoundError(name)

    def close(self):
        pass

    def unlink(self):
        self.pointer.close_and_unlink()


def install(adapter):
    """Replaces the classes of their module."""
    ours = importlib.import_module(adapter)
    theirs = importlib.import_module(MODULES[adapter])
    for name, value in vars(ours).items():
        if isinstance(value, type) and value.__module__ == adapter:
            setattr(theirs, name, value)
    if adapter == "sglang_pointer":
        shared_memory.SharedMemory = Segment
        make = ours.ShmPointerMMData.__init__

        def make_and_note(self, *args, **kwargs):
            make(self, *args, **kwargs)
            Segment.pointers[self.shm_name] = self

        ours.ShmPointerMMData.__init__ = make_and_note


sys.meta_path.insert(0, Finder("vllm", "sglang"))
sys.meta_path.append(Finder("msgspec", "multiprocess", "zmq"))  # if they are not installed
if "TENON_PEER_ADAPTER" in os.environ:
    install(os.environ["TENON_PEER_ADAPTER"])
