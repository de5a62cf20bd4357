"""Tables to read while it runs, and the raw figures of all repetitions as JSON."""

import json
import os
import statistics
import time


class Report:
    """What an experiment found."""

    def __init__(self, experiment, arguments, path):
        self.path = path
        settings = {name: value for name, value in vars(arguments).items() if name not in ("run", "json")}
        self.raw = {
            "experiment": experiment, "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0], "settings": settings, "figures": [],
        }

    def note(self, **figure):
        """Keeps raw figures. The file is written anew each time: what was measured outlasts an interruption."""
        self.raw["figures"].append(figure)
        if self.path:
            with open(self.path, "w", encoding="utf-8") as file:
                json.dump(self.raw, file, indent=1)
                file.write("\n")

    def say(self, text):
        print(text, flush=True)

    def head(self, *cells):
        self.row(*cells)
        self.row("---", *["---:"] * (len(cells) - 1))

    def row(self, *cells):
        self.say("| " + " | ".join(str(cell) for cell in cells) + " |")


def median(figures, name):
    """Of what repetitions gave under a name."""
    return statistics.median(figure[name] for figure in figures)


def percent(part):
    return f"{100 * part:.0f} %"


def megabytes(rate):
    """Bytes a second."""
    return "—" if rate is None else f"{rate / 1e6:.1f} MB/s"


def ratio(what, of):
    return "—" if of is None else f"{what / of:.2f}"


def percentile(values, part):
    """The value that a part of all does not exceed."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * part), len(ranked) - 1)]
