"""A sparse output layer in a Lightning module.

    pip install lightning
    python examples/nn_lightning.py

The loss is one attribute; τ of α-ReLU is a buffer of it, set from the first batch and saved with
the checkpoint.
"""

import lightning
import torch

import uncork.nn as unn


class Classifier(lightning.LightningModule):
    def __init__(self, features: int = 20, classes: int = 30) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(features, 32), torch.nn.LayerNorm(32))
        self.head = torch.nn.Linear(32, classes)
        self.loss = unn.AlphaReLULoss(alpha=1.5)
        self.history: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def on_train_start(self) -> None:
        batch, _ = next(iter(self.trainer.train_dataloader))
        unn.calibrate_tau(self, batch.to(self.device), criterion=self.loss)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        loss = self.loss(self(x), y)
        self.history.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def main() -> Classifier:
    lightning.seed_everything(0, verbose=False)
    labels = torch.randint(30, (600,))
    inputs = torch.randn(30, 20)[labels] + 0.3 * torch.randn(600, 20)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, labels), batch_size=60, shuffle=True
    )
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    first, last = sum(model.history[:10]) / 10, sum(model.history[-10:]) / 10
    print(f"tau {float(model.loss.tau):.3f}   loss {first:.3f} -> {last:.3f}")
    return model


if __name__ == "__main__":
    main()
