"""The Trainer of Hugging Face with planned steps.

plan examples/hugging_face_trainer.py:make --workers 2 -o plan.json
torchrun --nproc-per-node 2 examples/hugging_face_trainer.py plan.json
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from executor.torch import distribute

BATCH, LENGTH = 16, 12


class Sentences(Dataset):
    """Random tokens, of which the first says the class."""

    def __len__(self):
        return 4 * BATCH

    def __getitem__(self, number):
        tokens = torch.randint(64, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


def make():
    """Return the model, called by name with a batch, and the kind of optimizer that the Trainer makes."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    model = BertForSequenceClassification(config)
    batch = torch.utils.data.default_collate([Sentences()[number] for number in range(BATCH)])
    return model, batch, None, (), torch.optim.AdamW(model.parameters())


class PlannedTrainer(Trainer):
    """A Trainer whose steps are a plan's."""

    def create_optimizer(self, model=None):
        """Begin the planned training as soon as there is an optimizer."""
        optimizer = super().create_optimizer(model)
        self.accelerator.prepare_model = lambda model, **_: model  # not to be wrapped in DDP
        self.training = distribute(self.model, sys.argv[1], optimizer)
        return optimizer

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Train on the ranks' rows."""
        return self.training.step(inputs)


def main():
    """Train two epochs; put the weights into the model."""
    model, *_ = make()
    settings = {"learning_rate": 1e-2, "lr_scheduler_type": "cosine", "num_train_epochs": 2, "logging_steps": 1}
    arguments = TrainingArguments(
        "trainer",
        per_device_train_batch_size=BATCH // 2,
        use_cpu=True,
        max_grad_norm=0,
        save_strategy="no",
        report_to=[],
        **settings,
    )
    trainer = PlannedTrainer(model, arguments, train_dataset=Sentences())
    trainer.train()
    weights = trainer.training.state_dict()
    if trainer.training.rank == 0:
        model.load_state_dict(weights)


if __name__ == "__main__":
    main()
