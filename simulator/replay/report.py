"""Results of a replay as JSON-able objects and as a table."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from simulator.replay.departures import Loss
from simulator.replay.inflation import Curve

_SIZES = ("cpu-only", "shared")


def inflation_object(policy: str, curves: Mapping[int, Curve], last: float) -> dict[str, Any]:
    """Return one policy's curves: allocation in percent of the cards by percent of the cards asked for."""
    seeds = {str(seed): curve.points(last) for seed, curve in curves.items()}
    failures = [curve.first_failure for curve in curves.values() if curve.first_failure is not None]
    return {
        "policy": policy,
        "seeds": seeds,
        "mean": _means(seeds.values()),
        "first_failure": round(fmean(failures), 2) if failures else None,
        "refused_by_size": _counts(curve.refused for curve in curves.values()),
        "arrived_by_size": _counts(curve.seen for curve in curves.values()),
    }


def loss_object(policy: str, losses: Mapping[int, Loss], load: float) -> dict[str, Any]:
    """Return one policy's losses at a load, in percent."""
    seeds = {
        str(seed): {
            "refused": round(loss.refused_percent, 3),
            "refused_settled": round(loss.settled_percent, 3),
            "allocation": round(loss.allocation, 2),
        }
        for seed, loss in losses.items()
    }
    return {
        "policy": policy,
        "load": load,
        "seeds": seeds,
        "mean": _means(seeds.values()),
        "refused_by_size": _counts(loss.refused for loss in losses.values()),
        "arrived_by_size": _counts(loss.seen for loss in losses.values()),
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the means of several policies side by side, one line each."""
    columns = list(dict.fromkeys(point for result in results for point in result["mean"]))
    shown = [column for column in columns if not column.isdigit() or int(column) >= 90 or int(column) == 50]
    width = max(len("policy"), *(len(result["policy"]) for result in results))
    lines = [f"{'policy':{width}}  " + "  ".join(f"{column:>15}" for column in shown) + f"  {'refused pods':>14}"]
    for result in results:
        values = "  ".join(f"{result['mean'].get(column, float('nan')):>15.2f}" for column in shown)
        refused = sum(result["refused_by_size"].values())
        arrived = sum(result["arrived_by_size"].values())
        lines.append(f"{result['policy']:{width}}  {values}  {refused:>6} of {arrived}")
    return "\n".join(lines)


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    kept = list(rows)
    return {
        point: round(fmean(row[point] for row in kept), 3) for point in kept[0] if all(point in row for row in kept)
    }


def _counts(counters: Iterable[Counter[str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items(), key=lambda item: (item[0] not in _SIZES, len(item[0]), item[0])))
