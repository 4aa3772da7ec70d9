"""The sandbox sees what it must: errors, crashes, hangs, memory (the negative controls of its users)."""

import os
import signal
import time

from hostile.sandbox import outcomes
from nmt.errors import BundleError


def work(item: str) -> str:
    if item == "refused":
        raise BundleError("no")
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "hang":
        time.sleep(5)
    if item == "memory":
        bytearray(800 << 20)
    if item == "some memory":
        bytearray(100 << 20)
    return "loaded"


def test_the_sandbox_tells_what_happened() -> None:
    items = ["loaded", "refused", "crash", "hang", "loaded", "memory", "some memory"]
    found = outcomes(work, items, seconds=1.0)
    kinds = ["loaded", "BundleError", "killed by SIGSEGV", "killed by SIGALRM", "loaded", "MemoryError", "loaded"]
    assert [outcome.kind for outcome in found] == kinds
    assert found[4].megabytes < 50 < 90 < found[6].megabytes and found[1].message == "no"
