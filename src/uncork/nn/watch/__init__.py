"""Watching a head while it trains: how many classes can no longer be the argmax, and which?

In a loop of one's own, and in what trains for one::

    watch = uncork.nn.Watch(model.lm_head, every=100, share=0.01)
    for batch in batches:                        # a loop of one's own
        ...
        counts = watch.step()                    # None, or {"unargmaxable": 3, …} every 100 steps

    watch.attach(trainer)                        # transformers: logged to whatever it logs to
    Trainer(callbacks=[watch.lightning()])       # Lightning
    model.fit(callbacks=[watch.keras()])         # Keras
"""

from uncork.nn.watch.counting import Watch
from uncork.nn.watch.trackers import MLflow, Table, TensorBoard, Tracker, WandB

__all__ = ["MLflow", "Table", "TensorBoard", "Tracker", "WandB", "Watch"]
