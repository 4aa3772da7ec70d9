"""The sandbox sees what it must: errors, crashes, hangs, memory (the negative controls of its users)."""

import os
import signal
import time

from hostile.sandbox import Limits, outcomes
from nmt.errors import BundleError


def work(item: str) -> str:
    if item == "refused":
        raise BundleError("no")
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "hang":
        time.sleep(5)
    while item == "loop":
        pass
    if item == "memory":
        bytearray(800 << 20)
    if item == "some memory":
        bytearray(100 << 20)
    return "loaded"


def test_the_sandbox_tells_what_happened() -> None:
    items = ["loaded", "refused", "crash", "hang", "loop", "loaded", "memory", "some memory"]
    found = outcomes(work, items, Limits(cpu_s=0.4, clock_s=1.0))
    kinds = ["loaded", "BundleError", "killed by SIGSEGV", "killed by SIGALRM", "killed by SIGPROF"]
    kinds += ["loaded", "MemoryError", "loaded"]
    assert [outcome.kind for outcome in found] == kinds
    assert found[5].megabytes < 50 < 90 < found[7].megabytes and found[1].message == "no"
