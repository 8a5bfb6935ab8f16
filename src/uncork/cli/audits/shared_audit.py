"""`uncork audit --engine …`: one audit on the workers of an engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from uncork.auditing import Audit, Interrupted
from uncork.auditing.backend import choose_backend
from uncork.auditing.low_precision import low_precision
from uncork.auditing.run import Options
from uncork.cli.options import Cluster, LimitedRun
from uncork.cli.output import watched
from uncork.core.head import Head


def decide_on_workers(
    head: Head,
    classes: np.ndarray | None,
    cluster: Cluster,
    run: LimitedRun,
    options: Options,
    read: tuple[str, dict[str, Any]],
    work: Path,
    earlier: Audit | None,
) -> Audit:
    """As `uncork.audit`, on the workers that `cluster` asks for.

    `read` is the source and the options that it was read with, `work` the folder for finished
    ranges. A time limit is a time of day for all of them.
    """
    from uncork.workers.engines import open_engine, stop
    from uncork.workers.split import Rows, Settings, split_audit

    assert cluster.engine is not None
    source, how = read
    if os.path.exists(source):  # workers may be started in another folder
        source = os.path.abspath(source)
    until = None if options.time_limit is None else time.time() + options.time_limit
    settings = Settings(options, run.device.value, run.jobs or 1, until)
    with open_engine(cluster.engine.value, cluster.address, cluster.workers) as engine:
        try:
            result = split_audit(
                head, engine, None if cluster.send_rows else Rows(source, how), work=work,
                settings=settings, classes=classes, resume=earlier, progress=watched(run.quiet),
            )  # fmt: skip
        except BaseException:
            stop(engine)
            raise
    if options.low_precision:
        try:
            result.low_precision = low_precision(
                head, result.proofs, choose_backend(**run.on()), head.domain
            )
        except KeyboardInterrupt:
            raise Interrupted(result) from None
    return result
