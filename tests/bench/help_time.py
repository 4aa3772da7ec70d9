"""The time of `nmt --help`, as a user waits for it: 20 runs, median of whole processes."""

import statistics
import subprocess
import sys
import time

from figures import figure_line


def main() -> None:
    """Time and print."""
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nmt", "--help"], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    print(figure_line("help_median_s", f"{median:.3f}", "< 0.3", median < 0.3))


main()
