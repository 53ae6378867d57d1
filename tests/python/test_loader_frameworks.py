# SPDX-License-Identifier: Apache-2.0
"""DataLoader under the libraries that shard or wrap loaders. Oracle: each rank gets the rows that it gets
with PyTorch's loader, and where docs/loader.md says so, in slots. Real processes, gloo over the loopback."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

HEADER = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
import tenon as tn

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 23
    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.rand(1)

def lies_in_slot(tensor):
    for line in open("/proc/self/maps"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return "memfd:tenon-feed" in line

def record(batch):
    rows.append([part.tolist() for part in batch])
    in_slots.append(lies_in_slot(batch[0]))

def make_loader(cls=None, **options):
    cls = cls or (tn.DataLoader if kind == "tenon" else torch.utils.data.DataLoader)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, **options}
    return cls(Rows(), **options)

rows, in_slots = [], []
kind, path = sys.argv[1:3]
torch.manual_seed(3)
"""

FOOTER = """
rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
json.dump({"rows": rows, "in_slots": in_slots}, open(f"{path}.{rank}", "w"))
"""


def skip_without(library):
    """Does not import it here, where it would stay."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def results(tmp_path, script, kind, starts=1, ranks=None):
    """What each rank wrote, of so many processes that are started."""
    file = tmp_path / "script.py"
    file.write_text(HEADER + textwrap.dedent(script) + FOOTER)
    out = tmp_path / kind
    environment = {
        **os.environ,
        "KERAS_BACKEND": "torch",
        "HF_HUB_OFFLINE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    if starts > 1:
        environment |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(starts), "ACCELERATE_USE_CPU": "1"}
    processes = []
    try:
        for rank in range(starts):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if starts > 1 else {}
            command = [sys.executable, str(file), kind, str(out)]
            processes.append(subprocess.Popen(command, env=environment | of_rank, cwd=tmp_path))
        for process in processes:
            assert process.wait(timeout=600) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((tmp_path / f"{kind}.{rank}").read_text()) for rank in range(ranks or starts)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def assert_rows_of_torch(tmp_path, script, starts=1, ranks=None):
    """Returns whether all batches lie in slots."""
    ours = results(tmp_path, script, "tenon", starts, ranks)
    theirs = results(tmp_path, script, "torch", starts, ranks)
    assert [one["rows"] for one in ours] == [one["rows"] for one in theirs]
    assert all(one["rows"] for one in ours)
    if len(ours) > 1:
        assert ours[0]["rows"] != ours[1]["rows"]
        numbers = {int(row[0]) for one in ours for batch in one["rows"] for row in batch[0]}
        assert numbers == set(range(23))
    return all(all(one["in_slots"]) for one in ours)


ACCELERATE = """
    from accelerate import Accelerator
    # Else batches are copied: "cpu:0", which is its device, is not "cpu".
    accelerator = Accelerator(cpu=True, device_placement=False)
    loader = accelerator.prepare(make_loader())
    {line}
    for epoch in range(2):
        for batch in loader:
            record(batch)
    accelerator.end_training()
"""


@pytest.mark.parametrize(("ranks", "is_kept"), [(1, False), (2, True)])
def test_accelerate(tmp_path, ranks, is_kept):
    skip_without("accelerate")
    line = "loader.base_dataloader.__class__ = type(make_loader())" if is_kept else ""
    assert assert_rows_of_torch(tmp_path, ACCELERATE.format(line=line), starts=ranks) == is_kept


LIGHTNING = """
    import lightning
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
        def training_step(self, batch, index):
            record(batch)
            return self.layer(batch[0]).mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices={ranks}, strategy="{strategy}", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), make_loader({options}))
"""


@pytest.mark.parametrize(("ranks", "options"), [(1, ""), (2, "persistent_workers=True")])
def test_lightning(tmp_path, ranks, options):
    skip_without("lightning")
    script = LIGHTNING.format(ranks=ranks, options=options, strategy="ddp" if ranks > 1 else "auto")
    assert assert_rows_of_torch(tmp_path, script, ranks=ranks)


def test_keras(tmp_path):
    skip_without("keras")
    script = """
    import keras
    class Model(keras.Model):
        def call(self, x):
            return x
        def train_step(self, batch):
            record(batch)
            return {"loss": 0.0}
    model = Model()
    model.compile()
    model.fit(make_loader(), epochs=2, verbose=0)
    """
    assert assert_rows_of_torch(tmp_path, script)


def test_transformers(tmp_path):
    skip_without("transformers")
    script = """
    import transformers
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
        def forward(self, x, noise):
            record((x, noise))
            return {"loss": self.layer(x).mean()}
    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            loader = super().get_train_dataloader()
            loader.base_dataloader.__class__ = type(make_loader())
            return loader
    def collate(samples):
        return dict(zip(("x", "noise"), torch.utils.data.default_collate(samples)))
    arguments = transformers.TrainingArguments(
        output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, dataloader_num_workers=2,
        report_to=[], save_strategy="no", use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
    )
    Trainer(Model(), arguments, train_dataset=Rows(), data_collator=collate).train()
    """
    assert assert_rows_of_torch(tmp_path, script)


def test_timm(tmp_path):
    skip_without("timm")
    skip_without("torchvision")
    script = """
    from timm.data.loader import MultiEpochsDataLoader
    class Loader(MultiEpochsDataLoader, tn.DataLoader if kind == "tenon" else torch.utils.data.DataLoader):
        pass
    loader = make_loader(Loader)
    for epoch in range(2):
        for batch in loader:
            record(batch)
    """
    assert assert_rows_of_torch(tmp_path, script)
