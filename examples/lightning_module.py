"""A module of Lightning with planned steps.

plan examples/lightning_module.py:make --workers 2 -o plan.json
torchrun --nproc-per-node 2 examples/lightning_module.py plan.json
"""

import sys

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from executor.torch import distribute

BATCH = 32


def make():
    """Return the module with a batch, its loss and its optimizer."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    batch, labels = torch.randn(BATCH, 64), torch.randint(16, (BATCH,))
    return module, (batch,), nn.functional.cross_entropy, (labels,), torch.optim.AdamW(module.parameters(), lr=1e-2)


class Planned(LightningModule):
    """A module whose steps are a plan's."""

    def __init__(self):
        super().__init__()
        self.module, _, self.loss, _, self.optimizer = make()
        self.automatic_optimization = False

    def configure_optimizers(self):
        """Begin the planned training; return its optimizer and a scheduler."""
        self.planned = distribute(self.module, sys.argv[1], self.optimizer)
        return [self.optimizer], [torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)]

    def training_step(self, batch, _):
        """Train on the ranks' rows."""
        loss = self.planned.step(*batch)
        self.lr_schedulers().step()
        self.log("loss", loss)

    def on_train_end(self):
        """Put the weights into the module of rank 0."""
        weights = self.planned.state_dict()
        if self.planned.rank == 0:
            self.module.load_state_dict(weights)


class PlannedRanks(DDPStrategy):
    """Ranks that torchrun starts, whose module is not wrapped in DDP."""

    def configure_ddp(self):
        """Leave the module as it is."""


def fit(module, strategy, **options):
    """Train two epochs; return the Trainer."""
    images = torch.randn(8 * BATCH, 64, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images, images[:, :16].argmax(1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet, **options)
    trainer.fit(module, DataLoader(data, batch_size=BATCH // 2, shuffle=True, drop_last=True))
    return trainer


if __name__ == "__main__":
    print(f"loss {fit(Planned(), PlannedRanks()).callback_metrics['loss']:.3f}", flush=True)
