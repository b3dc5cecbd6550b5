"""Test of the tests: each of a list of small faults, made one at a time in a copy of the package, must be found.

    python tests/faults.py [--only TEXT] [--jobs 1]

A fault is one edit of a file that breaks a promise of the documentation. The tests near it run first; if they pass, all
tests of `make test` run. One line per fault names the test that found it, or says MISSED; the exit code is 1 if any is
missed. --only: faults whose file or promise contains this text. --jobs: number of copies that are tested at once.

All tests must pass without a fault. A text that is to be replaced must occur once in its file, so a change of the code
may ask for a change of this list.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from versions import Version, working_tree


@dataclass(frozen=True)
class Fault:
    """An edit of a file that breaks a promise. near: tests that run first."""

    promise: str
    file: str
    before: str
    after: str
    near: str


FAULTS = [
    # ---- mathematics ------------------------------------------------------------------------------------------------
    Fault(
        "FedDyn's h is a mean over all clients, not over those of a round",
        "algorithms/federated/feddyn.py",
        "-alpha * result.clients / cohort.population",
        "-alpha",
        "tests/algorithms/federated/test_feddyn.py",
    ),
    Fault(
        "SCAFFOLD's control variates are weighted means of gradients with momentum, too",
        "algorithms/federated/scaffold.py",
        'steps = plain_steps(hp, data.steps("train"))',
        'steps = data.steps("train")',
        "tests/algorithms/federated/test_feddyn.py",
    ),
    Fault(
        "Ditto trains a client's personal model further",
        "algorithms/personalized/ditto.py",
        'minimize(self.task.loss, state["v"], data',
        'minimize(self.task.loss, down["w"], data',
        "tests/algorithms/personalized/test_ditto.py",
    ),
    Fault(
        "FedIHGP estimates the sum of N terms, not their mean",
        "algorithms/bilevel/fednest.py",
        "scale(u, hyper.u_lr * hyper.u_steps)",
        "scale(u, hyper.u_lr)",
        "tests/algorithms/bilevel/test_fedbio_baselines.py",
    ),
    Fault(
        "B-MOML keeps a new task with probability `keep`",
        "algorithms/online/b_moml.py",
        'cohort.uniform("buffer") >= self.hyper.keep',
        'cohort.uniform("buffer") < self.hyper.keep',
        "tests/algorithms/online/test_online.py",
    ),
    Fault(
        "FISTA extrapolates by (t_k - 1) / t_(k+1)",
        "algorithms/compressed/fedsep_lasso.py",
        "z = theta + (last - 1) / momentum",
        "z = theta + (momentum - 1) / momentum",
        "tests/algorithms/compressed/test_fedsep_lasso.py",
    ),
    Fault(
        "the schedule of the learning rate restarts after the warm start, not in its last round",
        "algorithms/distillation/student.py",
        "if round > self.warm_start else round",
        "if round >= self.warm_start else round",
        "tests/algorithms/distillation",
    ),
    Fault(
        "FedDST averages a weight over the clients that trained it and kept it",
        "algorithms/heterogeneous/feddst.py",
        'tree_map(torch.mul, down["masks"], masks)',
        "masks",
        "tests/algorithms/heterogeneous/test_sparse_training.py",
    ),
    Fault(
        "FOCUS scores the server's model on a client's samples before the client trains",
        "algorithms/noisy_labels/focus.py",
        """error = self.mean_loss(down["w"], data)
        w, loss = minimize(self.task.loss, down["w"], data, hp)""",
        """w, loss = minimize(self.task.loss, down["w"], data, hp)
        error = self.mean_loss(w, data)""",
        "tests/algorithms/noisy_labels/test_comm_fedbio.py",
    ),
    Fault(
        "the trimmed mean weights an update by its client's weight",
        "algorithms/aggregators/trimmed_mean.py",
        "weights[order[drop : n - drop]]",
        "weights[drop : n - drop, None]",
        "tests/algorithms/aggregators/test_rules.py",
    ),
    Fault(
        "z_max of ALIE counts a majority of n // 2 + 1",
        "algorithms/attacks/alie.py",
        "max(clients // 2 + 1 - attackers, 1)",
        "max(clients // 2 - attackers, 1)",
        "tests/algorithms/attacks/test_attacks.py",
    ),
    Fault(
        "error feedback keeps what earlier rounds have omitted",
        "algorithms/transforms/sparsify.py",
        '{"residual": total - approximation}',
        '{"residual": flat(update) - approximation}',
        "tests/algorithms/core/test_slots.py",
    ),
    Fault(
        "a client's multiplier moves by the mean of the auxiliary loss over its samples, not over its mini-batches",
        "algorithms/objectives/auxiliary.py",
        "n = len(batch.y) if batch.mask is None else batch.mask.sum()",
        "n = 1.0",
        "tests/algorithms/objectives/test_objectives.py",
    ),
    Fault(
        "STORM's step sizes count all steps from round 1 on",
        "algorithms/optim/storm_momentum.py",
        "self.alpha_growth * self.steps * (round - 1)",
        "self.alpha_growth * self.steps * round",
        "tests/algorithms/bilevel/test_fedbioacc_theory.py",
    ),
    Fault(
        "the draws of FedEx are weighted by the distribution that they were drawn from",
        "algorithms/slots/fedex.py",
        "for one, drawn in zip(_each(before), draws, strict=True)",
        "for one, drawn in zip(_each(state), draws, strict=True)",
        "tests/algorithms/slots/test_fedex.py",
    ),
    Fault(
        "a message has a whole number of bytes, rounded up",
        "algorithms/core/parts.py",
        "return -(-self.bits // 8)",
        "return self.bits // 8",
        "tests/algorithms/transforms",
    ),
    Fault(
        "the samples that pad a mini-batch do not count as tokens",
        "algorithms/measures/language.py",
        "torch.where(targets != IGNORED, mask[:, None], torch.zeros_like(mask)[:, None])",
        "torch.where(targets != IGNORED, 1.0, torch.zeros_like(mask)[:, None])",
        "tests/algorithms/core/test_measures.py",
    ),
    Fault(
        "equal weights count half in the AUC of data cleaning",
        "algorithms/problems/cleaning.py",
        "(counts.cumsum(0) - (counts - 1) / 2)[inverse]",
        "counts.cumsum(0)[inverse]",
        "tests/algorithms/optim/test_hypergradient.py",
    ),
    # ---- machine ----------------------------------------------------------------------------------------------------
    Fault(
        "the clients that contributed are known by their places in the exchange, whatever part they were dealt to",
        "platform/runtime/executor.py",
        "return Aggregate(up, mask[back], metrics,",
        "return Aggregate(up, mask, metrics,",
        "tests/runtime/test_engine.py",
    ),
    Fault(
        "the server waits for no client that cannot answer any more",
        "platform/runtime/participation.py",
        "enough = len(first) == min(wanted, len(order))",
        "enough = len(first) == wanted",
        "tests/runtime/test_participation.py",
    ),
    Fault(
        "each client has its own row of a block of states, also if other clients kept none",
        "platform/actors/object_states.py",
        "places = first * ROWS + position if",
        "places = first * ROWS + np.arange(len(position)) if",
        "tests/runtime/test_state_store.py",
    ),
    Fault(
        "a checkpoint with damaged client states is not used",
        "platform/storage/checkpoint.py",
        "    _verify_files(folder, content, but=SERVER)\n",
        "",
        "tests/storage/test_checkpoint.py",
    ),
    Fault(
        "bytes behind the saved records are cut off before new ones are written",
        "platform/storage/history.py",
        "                stream.truncate(start)\n",
        "",
        "tests/storage/test_checkpoint.py",
    ),
    Fault(
        "a section of another kind replaces that of the base file as a whole",
        "platform/config/composition.py",
        'for key in ("name", "kind")',
        'for key in ("name",)',
        "tests/config/test_composition.py",
    ),
    Fault(
        "the mean over seeds is unknown if the value of a seed is",
        "platform/common/numbers.py",
        "return cls.of(finite) if len(finite) == len(values) else None",
        "return cls.of(finite) if finite else None",
        "tests/reports/test_comparison.py",
    ),
    Fault(
        "a client keeps a sample for training when others are held back",
        "platform/data/validation_samples.py",
        "np.maximum(sizes - 1, 0)",
        "sizes",
        "tests/runtime/test_validation_samples.py",
    ),
    Fault(
        "a run records every change of its settings",
        "platform/runs/same_settings.py",
        'changes=[*record.get("changes", []), note]',
        "changes=[note]",
        "tests/runs/test_same_settings.py",
    ),
    Fault(
        "of equal values, the first is that of the best round",
        "platform/tracking/decisions.py",
        "if not value > self._best + self.min_delta:",
        "if not value >= self._best + self.min_delta:",
        "tests/runs/test_early_end.py",
    ),
    Fault(
        "loggers receive copies",
        "platform/loggers/logger.py",
        "(*deepcopy(arguments))",
        "(*arguments)",
        "tests/loggers/test_run_loggers.py",
    ),
    Fault(
        "a pattern that freezes no parameter is refused",
        "platform/models/initial_weights.py",
        "        if not chosen:\n",
        "        if not names:\n",
        "tests/models/test_initial_weights.py",
    ),
    Fault(
        "one run without noise ends the privacy of all",
        "platform/privacy/accounting.py",
        "if any(multiplier == 0 for",
        "if all(multiplier == 0 for",
        "tests/runtime/test_privacy.py",
    ),
    Fault(
        "FedAsync mixes a late model with the current one",
        "platform/schedules/stale_round.py",
        "exchange.broadcast if mixes else one.broadcast",
        "one.broadcast",
        "tests/schedules/test_asynchronous.py",
    ),
    Fault(
        "bands of curves are sample standard deviations",
        "platform/ui/series.py",
        "both[:, 1].std(ddof=1)",
        "both[:, 1].std()",
        "tests/reports/test_charts.py",
    ),
    Fault(
        "a sleeping expert keeps its probability",
        "searchspaces/hedge/weights.py",
        "self._move(np.where(mask, observed, mix), hedge_loss, mix)",
        "self._move(np.where(mask, observed, hedge_loss), hedge_loss, mix)",
        "tests/searchspaces/hedge/test_weights.py",
    ),
    Fault(
        "the budget of a search counts the rounds that a kill has kept from its notes",
        "searchspaces/tune/search_budget.py",
        "max(self._before, sum(map(_client_rounds, read_trials(folder))))",
        "self._before",
        "tests/searchspaces/tune/test_search_budget.py",
    ),
    Fault(
        "smoothing over 0.07 of 100 values takes 7 of them",
        "searchspaces/spaces/smoothing.py",
        "math.ceil(smooth * len(values) - 1e-9)",
        "math.ceil(smooth * len(values))",
        "tests/searchspaces/hedge/test_promotion.py",
    ),
    Fault(
        "a trial that has diverged does not win",
        "searchspaces/results/trials.py",
        "return next((trial for trial in order if trial.can_win(metric)), None)",
        "return next(iter(order), None)",
        "tests/searchspaces/results/test_finished_search.py",
    ),
    Fault(
        "a table compares methods at the traffic that all of them have reached",
        "searchspaces/extra/table_result.py",
        'traffic = min(ends[heading]["transmissions"] for',
        'traffic = max(ends[heading]["transmissions"] for',
        "tests/searchspaces/extra/test_standing.py",
    ),
    Fault(
        "the worst 10 % of 25 clients are 3 clients",
        "reports/sections/fairness.py",
        "[: -(-len(accuracies) // 10)]",
        "[: max(1, len(accuracies) // 10)]",
        "tests/reports/test_reports.py",
    ),
    Fault(
        "a job of Slurm that starts again continues its table",
        "cluster/files/slurm.sh",
        "run | search | table) set --",
        "run | search) set --",
        "tests/cluster/test_cluster_files.py",
    ),
]
ALL = "tests"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - |$)", re.MULTILINE)


def copied(home: Path, tree: str) -> Version:
    """Copy of the package, which its own tests import."""
    version = Version.install(home, tree, Path(sys.executable))
    # Some tests ask git for the files of the repository.
    for words in ("git init --quiet", "git add --all"):
        subprocess.run(words.split(), cwd=home / "hedgerow", check=True)
    # A Hedgerow that is installed in the environment would be tested instead.
    place = python(version, "-c", "import hedgerow; print(hedgerow.__file__)").stdout
    assert Path(place).is_relative_to(home), place
    return version


def python(version: Version, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of a copy. -P: modules there must not hide others of the same names."""
    own = {"PYTHONPATH": str(version.home), "PYTHONDONTWRITEBYTECODE": ""}
    everything = [str(version.python), "-P", *words]
    root = version.home / "hedgerow"
    return subprocess.run(everything, cwd=root, env=os.environ | own, capture_output=True, text=True, check=False)


def failed_test(version: Version, tests: str) -> str | None:
    """First test that fails in the copy; None if all pass. Raises RuntimeError if they do not even run."""
    done = python(version, "-m", "pytest", "-x", "-q", "-m", "not exhaustive", *tests.split())
    if done.returncode == 0:
        return None
    if failed := FAILED.search(done.stdout):
        return failed[1]
    raise RuntimeError(f"pytest {tests}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def find(fault: Fault, copies: Queue[Version]) -> str | None:
    """Test that finds a fault in a free copy; None if no test does."""
    version = copies.get()
    file = version.home / "hedgerow" / fault.file
    text = file.read_text()
    try:
        assert text.count(fault.before) == 1, f"{fault.file} has {text.count(fault.before)} times: {fault.before}"
        file.write_text(text.replace(fault.before, fault.after))
        return failed_test(version, fault.near) or failed_test(version, ALL)
    finally:
        file.write_text(text)
        copies.put(version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in f"{fault.file}: {fault.promise}"]
    copies, caught = Queue[Version](), 0
    with tempfile.TemporaryDirectory(prefix="faults-") as top, ThreadPoolExecutor(arguments.jobs) as pool:
        tree = working_tree(Path(top) / "index")
        for number in range(arguments.jobs):
            copies.put(copied(Path(top) / str(number), tree))
        for fault, test in zip(faults, pool.map(lambda fault: find(fault, copies), faults), strict=True):
            caught += test is not None
            print(f"{fault.file}: {fault.promise}: {f'caught by {test}' if test else 'MISSED'}", flush=True)
    print(f"{caught} of {len(faults)} caught")
    sys.exit(caught < len(faults))


if __name__ == "__main__":
    main()
