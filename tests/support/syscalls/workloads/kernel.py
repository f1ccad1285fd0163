"""A stateful session: an IPython kernel over sockets of files, some cells, an interrupt, its end."""

from jupyter_client import KernelManager

CELLS = (
    "import subprocess, threading, os; subprocess.run(['echo', 'hi']); 1",
    "%matplotlib inline\nimport matplotlib.pyplot as plt; plt.plot([1, 2])",
    "!ls /\n%time sum(range(1000))",
    "import pandas as pd; pd.DataFrame({'a': [1]})",
    "1 / 0",
    "input",
)
manager = KernelManager(transport="ipc", ip="kernel.sock")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=120)
for cell in CELLS:
    client.execute_interactive(cell, timeout=60, output_hook=lambda message: None)
client.complete("os.pa", reply=True, timeout=60)
manager.interrupt_kernel()
client.stop_channels()
manager.shutdown_kernel()
