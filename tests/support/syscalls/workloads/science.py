"""NumPy with its threads, pandas with files and SQLite, Matplotlib with pictures."""

import sqlite3

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

matrix = np.random.default_rng(1).random((400, 400))
np.linalg.svd(matrix @ matrix)
np.fft.fft2(matrix)
np.save("matrix.npy", matrix)
np.load("matrix.npy", mmap_mode="r+")[0, 0] = 1
np.savez_compressed("matrix.npz", matrix)
np.savetxt("matrix.txt", matrix[:5])
np.loadtxt("matrix.txt")

when = pd.date_range("2026-01-01", periods=10000, freq="h", tz="Europe/Berlin")
frame = pd.DataFrame({"group": ["a", "b"] * 5000, "value": range(10000), "when": when})
frame.groupby("group")["value"].describe()
frame.to_csv("frame.csv.gz")
pd.read_csv("frame.csv.gz", parse_dates=["when"])
frame.to_json("frame.json")
pd.read_json("frame.json")
frame.to_pickle("frame.pkl")
pd.read_pickle("frame.pkl")
frame.to_html("frame.html")
with sqlite3.connect("frame.db") as connection:
    frame.drop(columns="when").to_sql("frame", connection)
    pd.read_sql("SELECT * FROM frame", connection)
frame.resample("D", on="when")["value"].mean().plot()
for kind in ("png", "svg", "pdf"):
    plt.savefig(f"plot.{kind}")
plt.imread("plot.png")
