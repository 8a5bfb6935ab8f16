"""Process groups of torch.distributed, and how to leave one."""

import time

import torch


def leave_process_group():
    """Gloo's threads need Python's lock to let go of what they have done, and the group's end waits
    for the threads with the lock in hand: without a moment in between, now and then for ever."""
    time.sleep(0.5)
    torch.distributed.destroy_process_group()
