"""Plots a result file of `ronde bench --json`: time and bus bandwidth of each operation.

    python3 benchmarks/plot.py out.json out.svg

The second argument may end in .svg, .png or .pdf. Each operation and number of ranks has a row of two panels, with a line
for each transport, memory and algorithm and for each competitor. An operation that was measured at one size with several
numbers of ranks has the ranks as its x axis. Needs matplotlib (`python3 -m pip install matplotlib`).
"""
import argparse
import itertools
import json
import sys

# Colours that people with any colour vision can distinguish (Okabe and Ito), black last.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#000000"]
DASHES = ["-", "--", ":", "-."]
COMPETITORS = {"gloo": "Gloo", "mpi": "Open MPI", "loop": "plain loop, the lower bound"}


def label(row):
    """Returns the name of a row's implementation: `shared memory, group buffers`, `tcp, ring`, `Gloo`."""
    if row["by"] == "other":
        return COMPETITORS.get(row["name"], row["name"])
    chosen = "" if row["preference"] == "auto" else f", {row['algorithm']}"
    over = f"shared memory, {row['memory']} buffers" if row["over"] == "shared_memory" else row["over"]
    return f"{'auto: ' if row['transport'] == 'auto' else ''}{over}{chosen}"


def size(count):
    """Returns a number of bytes for people: `8 B`, `4 KiB`, `1.5 MiB`."""
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:g} B"


def panels(rows):
    """Returns for each title the key of the x axis and the rows of each line."""
    found = {}
    for row in rows:
        same = [other for other in rows if other["operation"] == row["operation"]]
        one_size = len({other["bytes"] for other in same}) == 1
        by_ranks = row["bytes"] == 0 or (one_size and len({other["ranks"] for other in same}) > 1)
        if not by_ranks:
            title = f"{row['operation']}, {row['ranks']} ranks"
        elif row["operation"] == "barrier":
            title = "barrier"
        else:
            title = f"{row['operation']}, {size(row['bytes'])}"
        _, lines = found.setdefault(title, ("ranks" if by_ranks else "bytes", {}))
        lines.setdefault(label(row), []).append(row)
    return found


def draw(report, pyplot):
    """Draws all panels and returns the figure."""
    found = panels(report["rows"])
    styles = {}
    figure, axes = pyplot.subplots(max(len(found), 1), 2, figsize=(14, 4.2 * max(len(found), 1)), squeeze=False)
    numbered = itertools.product(DASHES, COLOURS)
    for (title, (across, lines)), pair in zip(found.items(), axes):
        for axis, (key, unit) in zip(pair, [("median_us", "time, microseconds"), ("busbw_gb_s", "bus bandwidth, GB/s")]):
            for name, rows in lines.items():
                if name not in styles:
                    styles[name] = next(numbered, (DASHES[0], COLOURS[-1]))
                points = sorted((row[across], row[key]) for row in rows if row[across] > 0 and (row[key] or 0) > 0)
                dash, colour = styles[name]
                if points:
                    axis.plot(*zip(*points), dash, color=colour, marker="o", markersize=3.5, label=name)
            axis.set_visible(axis.has_data())
            if not axis.has_data():
                continue
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            ticks = sorted({row[across] for rows in lines.values() for row in rows if row[across] > 0})
            axis.set_xticks(ticks, [size(tick) if across == "bytes" else str(tick) for tick in ticks], rotation=45, fontsize=7)
            axis.set_xticks([], minor=True)
            axis.set_title(f"{title}: {unit}", fontsize=10)
            axis.grid(color="#e2e2e2")
    named = {name: line for axis in axes.flat for line, name in zip(*axis.get_legend_handles_labels())}
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=3, fontsize=8)
    machine, settings = report["machine"], report["settings"]
    figure.suptitle(
        f"ronde {report['ronde']} bench, {settings['dtype']} {settings['op']}, {machine['cores']} cores of {machine['cpu']}", fontsize=9
    )
    figure.tight_layout(rect=(0, 0.02 + 0.02 * (len(named) // 3 + 1), 1, 0.98))
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="result file of `ronde bench --json`")
    parser.add_argument("picture", help="file to write: .svg, .png or .pdf")
    arguments = parser.parse_args()
    with open(arguments.results, encoding="utf-8") as file:
        report = json.load(file)
    if report.get("format") != "ronde.bench":
        sys.exit(f"error: {arguments.results} is not a result file of `ronde bench`")
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: Python lacks the module matplotlib\n  help: python3 -m pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    draw(report, pyplot).savefig(arguments.picture)


if __name__ == "__main__":
    main()
