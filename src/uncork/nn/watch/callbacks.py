"""What calls a watch during training: callbacks of transformers, Lightning and Keras.

Each is made when asked for, since its base class is the trainer's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uncork.core.errors import UncorkError
from uncork.nn.watch.trackers import MLflow, TensorBoard, Tracker, WandB

if TYPE_CHECKING:
    from uncork.nn.watch.counting import Watch


def for_transformers(watch: Watch, trainer: Any = None) -> Any:
    """A `TrainerCallback`. Only with its trainer can it log to whatever that reports to."""
    base: Any = _base("transformers", ("transformers",), "TrainerCallback")

    class Counting(base):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            reported = list(args.report_to or ())
            watch.begin(
                _reported_to(reported, trainer, Path(args.output_dir)),
                logged=() if trainer is None else reported,
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            counts = watch.step(state.global_step, last=state.global_step >= state.max_steps)
            if counts is None or not state.is_world_process_zero:
                return
            if trainer is not None:
                due = control.should_log  # its own log of this step, which ours would pass for
                trainer.log(watch.named(counts))
                control.should_log = due
            else:
                entry = {**watch.named(counts), "epoch": state.epoch, "step": state.global_step}
                state.log_history.append(entry)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # What the trainer reports to has been closed; it would open another run.
            watch.logged = ()
            watch.finish()

    return Counting()


def _reported_to(names: list[str], trainer: Any, folder: Path) -> list[Tracker]:
    """The runs that the trainer has begun, in which the lost classes and the report belong too."""
    found: list[Tracker] = []
    if "mlflow" in names and importlib.import_module("mlflow").active_run() is not None:
        found.append(MLflow())
    if "wandb" in names and importlib.import_module("wandb").run is not None:
        found.append(WandB())
    if "tensorboard" in names:
        callbacks = [] if trainer is None else trainer.callback_handler.callbacks
        writers = [getattr(each, "tb_writer", None) for each in callbacks]
        own = next((writer for writer in writers if writer is not None), None)
        found.append(TensorBoard(own or folder / "runs" / "uncork"))
    return found


def for_lightning(watch: Watch) -> Any:
    """A callback of Lightning, whose loggers get the counts and, where they can, the rest."""
    packages = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")
    base: Any = _base("lightning", packages, "Callback")
    made: dict[str, Callable[[Any], Tracker]] = {
        "MLFlowLogger": lambda logger: MLflow(logger.run_id, logger.experiment),
        "WandbLogger": lambda logger: WandB(logger.experiment),
        "TensorBoardLogger": lambda logger: TensorBoard(logger.experiment),
    }

    class Counting(base):
        steps = 0  # of the optimiser: gradients may be gathered over several batches

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.steps = trainer.global_step
            loggers = trainer.loggers if trainer.is_global_zero else []
            kinds = [(type(logger).__name__, logger) for logger in loggers]
            trackers = [made[kind](logger) for kind, logger in kinds if kind in made]
            watch.begin(trackers, logged=[tracker.name for tracker in trackers])

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step == self.steps:
                return
            self.steps = trainer.global_step
            counts = watch.step(self.steps)
            if counts is not None:
                pl_module.log_dict(watch.named(counts), rank_zero_only=True)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            counts = watch.finish()
            if counts is not None:
                for logger in trainer.loggers:
                    logger.log_metrics(watch.named(counts), step=trainer.global_step)

    return Counting()


def for_keras(watch: Watch) -> Any:
    """A callback of Keras: a step is a batch (or, with steps_per_execution, one execution), and the
    last counts stand in the logs of each epoch, for `history` and the callbacks after this one."""
    base: Any = _base("keras", ("keras.callbacks",), "Callback")

    class Counting(base):
        def on_train_begin(self, logs: Any = None) -> None:
            # With JAX the variables are old within an epoch, until someone asks for the model.
            watch.begin(ready=lambda: self.model)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            watch.step()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not watch.history:
                watch.count()
            if logs is not None:
                logs.update(watch.named(watch.latest))

        def on_train_end(self, logs: Any = None) -> None:
            watch.finish()

    return Counting()


def _base(package: str, modules: tuple[str, ...], name: str) -> Any:
    """The class that a trainer's callbacks are made from."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise UncorkError(f"Watch.{package} needs {package}: pip install {package}")
