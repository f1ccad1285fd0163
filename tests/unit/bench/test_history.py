"""What is kept of runs of the benchmark, and what is said of them."""

import json
from typing import Any

import density
import page
import pytest
from cluster_tools import ROOT
from history import by_date, comparisons, entry, ratios, regressions, rows_over_time, said, wins_and_losses
from plot import history_svg
from tables import table

OURS, PEER = "codeexec: later call", "Docker"


def a_run(ours: float, peer: float, *, at: str = "2026-01-01", **facts: Any) -> dict[str, Any]:
    calls = table("calls", "one call", {OURS: [ours] * 3, PEER: [peer] * 3}, {"session / this": OURS})
    return {"at": at, "date": at[:10], "commit": "0123456789", "machine": "m", "tables": [calls.dump()], **facts}


def test_an_entry_has_the_figures_and_not_the_single_calls() -> None:
    kept = entry({**a_run(1, 2), "not_counted": 2, "versions": {"codeexec": "0.2.0"}})
    assert kept["versions"] == {"codeexec": "0.2.0"}
    assert "not_counted" not in kept
    [row, _] = kept["tables"][0]["results"]
    assert (row["p50_s"], "all_s" in row) == (1, False)


def test_only_ratios_with_peers_are_compared() -> None:
    assert ratios(a_run(1, 2)) == {"one call: session / Docker": 0.5}


@pytest.mark.parametrize(("now", "worse"), [(1.0, False), (1.1, False), (1.11, True), (0.5, False)])
def test_a_ratio_that_is_more_than_a_tenth_higher_is_a_regression(now: float, worse: bool) -> None:
    assert bool(regressions(a_run(1, 1), a_run(now, 1))) == worse


def test_a_slower_machine_alone_is_no_regression() -> None:
    assert regressions(a_run(1, 2), a_run(5, 10)) == []


def test_the_last_run_is_held_against_the_one_before_it_by_date() -> None:
    runs = [a_run(3, 1, at="2026-03-01"), a_run(1, 1, at="2026-01-01"), a_run(2, 1, at="2026-02-01")]
    assert said(runs) == [
        "Worse by more than 10 % than on 2026-02-01:",
        "- one call: session / Docker: 3.00, before 2.00 (50 % worse)",
    ]
    assert said(runs[:1]) == ["There is no earlier run to compare with."]
    better = [a_run(2, 1), a_run(1, 1, at="2026-02-01", machine="another")]
    assert said(better) == [
        "The machine differs from that of 2026-01-01: m.",
        "No ratio got worse by more than 10 % since 2026-01-01.",
    ]


def test_ratios_over_time_are_a_table_with_what_is_missing() -> None:
    new = a_run(3, 1, at="2026-02-01")
    new["tables"].append(table("output", "output", {OURS: [4] * 2, PEER: [2] * 2}, {"ours / this": OURS}).dump())
    assert list(rows_over_time([a_run(2, 1), new])) == [
        ["ratio", "2026-01-01 (0123456)", "2026-02-01 (0123456)", "change"],
        ["one call: session / Docker", "2.00", "3.00", "+50 %"],
        ["output: ours / Docker", "-", "2.00", "-"],
    ]


def test_a_small_ratio_has_enough_digits_to_show_a_change() -> None:
    runs = [a_run(1, 100), a_run(1.2, 100, at="2026-02-01")]
    assert said(runs)[1] == "- one call: session / Docker: 0.0120, before 0.0100 (20 % worse)"


def test_losses_stand_beside_wins() -> None:
    times = {OURS: [2.0] * 2, PEER: [1.0] * 2, "Local": [4.0] * 2}
    wins, losses = wins_and_losses([table("calls", "one call", times, {"session / this": OURS})])
    assert [(one.peer, one.ratio) for one in wins] == [("Local", 0.5)]
    assert [(one.peer, one.ratio) for one in losses] == [("Docker", 2.0)]


def seeds() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob("*.json"))]


def test_what_is_kept_in_the_repository_can_be_read_and_drawn() -> None:
    runs = by_date(seeds())
    assert runs
    assert all(comparisons(one["tables"]) for one in runs)
    assert history_svg(runs) == history_svg(runs)
    assert "<svg" in history_svg(runs)


def _all_tables() -> list[dict[str, Any]]:
    phases = {name: [1.0, 2.0] for name in page.PHASES}
    sections = [("calls", "session / this"), ("burst", "first / this"), ("sustained", "ours / this")]
    sections += [("resets", "resets / this"), ("output", "ours / this"), ("lines", "ours / this")]
    sections += [("first", "default / this"), ("tti", "default / this"), ("burst100", "first / this")]
    sections += [("density", "beside idle ones / this")]
    times = {OURS: [1.0, 2.0], PEER: [2.0, 3.0]}
    made = [table(kind, f"title of {kind}", times, {heading: OURS}) for kind, heading in sections]
    return [one.dump() for one in (*made, table("phases", "phases, in a session", phases))]


def test_a_run_becomes_a_page_with_each_part_and_its_history(tmp_path, monkeypatch, capsys) -> None:
    facts = a_run(1, 2, at="2026-03-01T10:00+00:00", runs=2, first_runs=2, tti_runs=2, burst_rounds=1, output_runs=1)
    idle = {"idle": 40, "measured": 40, "plain_mib": 27.0, "stateful_mib": 65.0, "idle_cores": 0.1, "killed": []}
    facts |= {"not_counted": 2, "density": idle, "tables": _all_tables()}
    burst = {
        "nodes": 10,
        "rounds": 3,
        "worked": {"codeexec: 100 at once": "300 of 300"},
        "table": facts["tables"].pop(8),
    }
    (tmp_path / ".codeexec").mkdir()
    (tmp_path / ".codeexec" / "bench.json").write_text(json.dumps(facts))
    (tmp_path / ".codeexec" / "burst.json").write_text(json.dumps(burst))
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "2026-01-01.json").write_text(json.dumps(entry(a_run(1, 2))))
    target = tmp_path / "performance.md"
    target.write_text("<!-- bench -->\n<!-- /bench -->\nby hand\n<!-- history -->\n<!-- /history -->\n")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    page.main(target)
    text = target.read_text()
    for kind in ("calls", "burst", "sustained", "resets", "output", "lines", "first", "tti", "burst100", "density"):
        assert f"| title of {kind} |" in text
    assert "by hand" in text
    assert "An idle stateful session has 65 MiB of memory (median)." in text
    assert "100 at once: 300 of 300" in text
    assert "codeexec is slower in 0 comparisons, and faster in 10." in text
    assert (tmp_path / "bench" / "2026-03-01T1000.json").exists()
    assert "<svg" in (tmp_path / "performance-history.svg").read_text()
    assert "No ratio got worse" in capsys.readouterr().out


# --- idle sessions ---


def test_figures_of_the_kubelet_are_those_of_our_pods() -> None:
    def pod(name: str, **figures: Any) -> dict[str, Any]:
        return {"podRef": {"name": name}, **figures}

    cpu, memory = {"usageCoreNanoSeconds": 2_000_000_000}, {"workingSetBytes": 3 * 2**20}
    pods = [pod("a", cpu=cpu, memory=memory), pod("b", cpu=cpu), pod("other", cpu=cpu, memory=memory)]
    assert density.figures_of({"pods": pods}, ["a", "b"]) == {"a": (3 * 2**20, 2.0)}


def test_idle_sessions_are_summed_up() -> None:
    before = {"a": (0.0, 1.0), "b": (0.0, 1.0), "k": (0.0, 2.0)}
    after = {"a": (27.0 * 2**20, 1.5), "b": (29.0 * 2**20, 1.5), "k": (65.0 * 2**20, 4.0)}
    found = density.summed_up(before, after, 60, ["k"])
    assert found == {"plain_mib": 28.0, "stateful_mib": 65.0, "idle_cores": pytest.approx(0.05)}
    facts = {"idle": 3, "measured": 3, **found, "killed": ["a"]}
    assert density.text(facts)[-2:] == [
        "All idle sessions together used 0.050 of a core.",
        "Killed for want of memory: a.",
    ]


@pytest.mark.parametrize(
    ("status", "gone"),
    [
        ({}, False),
        ({"containerStatuses": [{"state": {"running": {}}}]}, False),
        ({"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]}, True),
        ({"containerStatuses": [{"state": {}, "lastState": {"terminated": {"reason": "OOMKilled"}}}]}, True),
        ({"reason": "Evicted"}, True),
    ],
)
def test_a_pod_that_was_killed_for_want_of_memory_is_named(status: dict[str, Any], gone: bool) -> None:
    assert density.killed([{"metadata": {"name": "p"}, "status": status}]) == (["p"] if gone else [])
