"""The examples of trainers, by their plan or as the trainer runs them by itself, by DDP: their losses as JSON."""

import json
import sys

import torch
import torch.distributed as dist


def hugging_face(planned):
    """The losses that the Trainer logs, means over the ranks."""
    from transformers import Trainer  # noqa: PLC0415 -- one trainer may be missing

    from examples import hugging_face_trainer as example  # noqa: PLC0415

    trainer = example.trainer(example.PlannedTrainer if planned else Trainer)
    losses = []
    log = trainer.log
    trainer.log = lambda logs, *rest: (losses.append(logs.get("loss")), log(logs, *rest))
    trainer.train()
    return losses[:-1], trainer.args.process_index


def lightning(planned):
    """The losses of the steps, means over the ranks."""
    from lightning import Callback, LightningModule  # noqa: PLC0415 -- one trainer may be missing

    from examples import lightning_module as example  # noqa: PLC0415

    class ByDDP(LightningModule):
        def __init__(self):
            super().__init__()
            self.module, _, self.loss, _, self.optimizer = example.make()

        def configure_optimizers(self):
            schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)
            return [self.optimizer], [{"scheduler": schedule, "interval": "step"}]

        def training_step(self, batch, _):
            loss = self.loss(self.module(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            return loss

    class Losses(Callback):
        def on_train_batch_end(self, trainer, *_):
            losses.append(trainer.callback_metrics["loss"].item())

    losses = []
    torch.manual_seed(1)  # of the sampler
    module, strategy = (example.Planned(), example.PlannedRanks()) if planned else (ByDDP(), "ddp")
    trainer = example.fit(module, strategy, callbacks=[Losses()], enable_model_summary=False)
    return losses, trainer.global_rank


if __name__ == "__main__":
    name, plan, path = sys.argv[1:]
    sys.argv[1] = plan
    losses, rank = {"transformers": hugging_face, "lightning": lightning}[name](plan != "ddp")
    if rank == 0:
        with open(path, "w") as file:
            json.dump(losses, file)
    if dist.is_initialized():
        dist.destroy_process_group()
