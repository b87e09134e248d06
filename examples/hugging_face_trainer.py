"""The Trainer of Hugging Face with planned steps.

plan examples/hugging_face_trainer.py:make --workers 2 -o plan.json
torchrun --nproc-per-node 2 examples/hugging_face_trainer.py plan.json
"""

import sys

import torch
from torch.utils.data import Dataset, default_collate
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from executor.torch import distribute

BATCH, LENGTH, CLIP_NORM = 16, 12, 1.0


class Sentences(Dataset):
    """Random tokens, of which the first says the class."""

    def __len__(self):
        return 4 * BATCH

    def __getitem__(self, number):
        tokens = torch.randint(64, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


def make():
    """Return the model, called by name with a batch, and an optimizer as the Trainer makes it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, **sizes, **dropout))
    optimizer = torch.optim.AdamW([{"params": [*model.parameters()], "clip_norm": CLIP_NORM}])
    return model, default_collate([Sentences()[number] for number in range(BATCH)]), None, (), optimizer


class PlannedTrainer(Trainer):
    """A Trainer whose steps are a plan's."""

    def create_optimizer(self, model=None):
        """Begin the planned training as soon as there is an optimizer."""
        if self.args.gradient_accumulation_steps > 1:
            raise ValueError("gradient_accumulation_steps: accumulation is planned: give the plan micro-batches")
        optimizer = super().create_optimizer(model)
        for group in optimizer.param_groups:
            group["clip_norm"] = self.args.max_grad_norm
        self.accelerator.prepare_model = lambda model, **_: model  # not to be wrapped in DDP
        self.planned = distribute(self.model, sys.argv[1], optimizer)
        return optimizer

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Train on the ranks' rows."""
        return self.planned.step(inputs)


def trainer(kind=PlannedTrainer):
    """Return a Trainer of two epochs."""
    settings = {"learning_rate": 1e-2, "lr_scheduler_type": "cosine", "num_train_epochs": 2, "logging_steps": 1}
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "average_tokens_across_devices": False}
    arguments = TrainingArguments(
        "trainer",
        per_device_train_batch_size=BATCH // 2,
        max_grad_norm=CLIP_NORM,
        use_cpu=True,
        **settings,
        **quiet,
    )
    return kind(make()[0], arguments, train_dataset=Sentences())


def main():
    """Train; put the weights into the model of rank 0."""
    training = trainer()
    training.train()
    weights = training.planned.state_dict()
    if training.planned.rank == 0:
        training.model.load_state_dict(weights)


if __name__ == "__main__":
    main()
