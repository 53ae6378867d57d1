# SPDX-License-Identifier: Apache-2.0
"""Feeds under libraries that take any iterable as a loader. Oracle: the numbers of a batch follow from epoch
and index, so what the library passes on tells which batches it took."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

HEADER = """
import warnings
warnings.simplefilter("ignore")
import torch
import tenon as tn

SCHEMA = tn.schema(x=("f4", (4, 3)), y=("i8", (4,)))

def fill(batch):
    batch.x = batch.index
    batch.y = batch.epoch * 100 + batch.index

def numbers(epochs, batches):
    return [epoch * 100 + index for epoch in range(epochs) for index in range(batches)]

def address(feed):
    stats = feed.stats()
    return range(stats.memory, stats.memory + stats.slots * stats.slot_nbytes)
"""


def run(tmp_path, library, script):
    """Does not import the library here, where it would stay."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    file = tmp_path / "script.py"
    file.write_text(HEADER + textwrap.dedent(script))
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, file], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr


LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen, self.checked, self.outside = [], [], 0
    def note(self, batch, seen, slots):
        x, y = batch if {is_tuple} else (batch["x"].torch(), batch["y"].torch())
        seen.append(int(y[0]))
        assert (y == y[0]).all() and (x == int(y[0]) % 100).all()
        self.outside += x.data_ptr() not in slots
        return self.layer(x).mean()
    def training_step(self, batch, i):
        return self.note(batch, self.seen, of_training)
    def validation_step(self, batch, i):
        self.note(batch, self.checked, of_validation)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
    def transfer_batch_to_device(self, batch, device, index):
        return batch

with tn.Feed(fill, SCHEMA, batches=6) as training, tn.Feed(fill, SCHEMA, batches=3) as validation:
    of_training, of_validation = address(training), address(validation)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )
    model = Model()
    trainer.fit(model, training{form}, validation{form})
    # Lightning may take an iterator before its first epoch from which it takes no batch.
    assert model.seen in (numbers(3, 6), numbers(4, 6)[6:]), model.seen
    assert model.checked in (numbers(3, 3), numbers(4, 3)[3:]), model.checked
    assert model.outside == 0
    assert trainer.num_training_batches == 6 and trainer.num_val_batches == [3]
"""


@pytest.mark.parametrize("form", ["", ".torch()"])
def test_lightning_takes_a_feed_for_training_and_validation(tmp_path, form):
    script = LIGHTNING.replace("{form}", form).replace("{is_tuple}", str(form != ""))
    run(tmp_path, "lightning", script)


def test_keras_takes_a_generator_over_a_feed(tmp_path):
    script = """
    import keras

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen = []
        def call(self, x):
            return x
        def train_step(self, batch):
            x, y = batch
            self.seen.append(int(y[0]))
            assert (y == y[0]).all() and (x == int(y[0]) % 100).all()
            return {"loss": 0.0}

    def endless(feed):
        while True:
            yield from feed.torch()

    with tn.Feed(fill, SCHEMA, batches=6) as feed:
        model = Model()
        model.compile()
        batches = endless(feed)
        model.fit(batches, steps_per_epoch=len(feed), epochs=3, verbose=0)
        seen = model.seen[:18]
        # Keras looks at the first batch of a generator before it begins.
        assert seen in (numbers(3, 6), numbers(4, 6)[1:19]), seen
        batches.close()
    """
    run(tmp_path, "keras", script)
