"""Processes of one torch.distributed group, from their start to an end that always comes."""

import datetime
import faulthandler
import os
import sys
import time
import traceback

import pytest
import torch

needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo"
)
SECONDS = 240  # for all of it, on a busy machine
_EXCHANGE = datetime.timedelta(seconds=60)  # of one exchange: the other has failed or is not coming


def in_processes(work, folder, *given, count=2):
    """`work(rank, *given)` in each of `count` processes; fails with what went wrong in any of them.

    `folder` is an empty one, where they meet and leave word.
    """
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_process, args=(rank, count, str(folder), work, given))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0, end - time.monotonic()))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in late:
        processes[rank].kill()
        processes[rank].join()
    said = "\n".join(path.read_text() for path in sorted(folder.glob("said-*")))
    assert not late, f"processes {late} of {count} did not end within {SECONDS} s\n{said}"
    assert [process.exitcode for process in processes] == [0] * count, said


def _process(rank, count, folder, work, given):
    torch.set_num_threads(1)
    with open(f"{folder}/said-{rank}", "w") as said:
        faulthandler.dump_traceback_later(SECONDS - 10, file=said)
        try:
            torch.distributed.init_process_group(
                "gloo", f"file://{folder}/group", rank=rank, world_size=count, timeout=_EXCHANGE
            )
            work(rank, *given)
            torch.distributed.barrier()  # who ends takes its connections along
            status = 0
        except BaseException:
            said.write(f"process {rank}: {traceback.format_exc()}")
            status = 1
        faulthandler.cancel_dump_traceback_later()
    # The group is not taken apart: that waits, with Python's lock in hand, for threads of gloo's
    # that need the lock to let go of what they have done, and so now and then for ever.
    os._exit(status)
