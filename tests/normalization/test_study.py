"""The study: what it trains, that runs depend on their seed alone, that a killed study goes on with the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from tenfold.errors import InputError
from tenfold.normalization.data import LabelledData, Parts, dataset, split
from tenfold.normalization.models import norm_layer, small_conv
from tenfold.normalization.norm_replacement import replace_norms
from tenfold.normalization.study import norm_study
from tenfold.normalization.study_folder import Run
from tenfold.normalization.training import Settings, error_rate, steps_per_epoch, train_classifier


@pytest.fixture(scope="module")
def few():
    """The first 400 digits."""
    digits = dataset("digits")
    return replace(digits, inputs=digits.inputs[:400], labels=digits.labels[:400])


QUICK = {"epochs": 1, "seeds": 2}


def numbers(table):
    return {(cell.norm, cell.batch_size, cell.seed): (cell.error, cell.errors, cell.losses) for cell in table.cells}


def test_only_batch_normalization_is_trained_at_each_part_of_a_step(few):
    table = norm_study(few, batch_sizes=[4, 16], **QUICK)
    kinds = {(cell.norm, cell.batch_size) for cell in table.cells}
    assert kinds == {("batch", 16), ("batch", 4), ("group", None), ("layer", None), ("instance", None)}
    assert table.batch_sizes == (16, 4)
    assert len(table.cells) == 10
    assert all(len(cell.errors) == len(cell.losses) == 1 for cell in table.cells)
    # at one pixel a set of one channel is one value, and every answer the same
    assert table.without_input == {"instance": ("7",)}
    assert table.interval("instance", 4).center > 0.8
    assert all((cell.reestimated is not None) == (cell.norm == "batch") for cell in table.cells)


def test_with_real_batches_everything_is_trained_at_each_size(few):
    table = norm_study(few, norms=["batch", "group"], batch_sizes=[8, 32, 20], real_batch=True, **QUICK)
    assert {(cell.norm, cell.batch_size) for cell in table.cells} == {
        (norm, size) for norm in ("batch", "group") for size in (8, 20, 32)
    }
    assert table.settings["learning_rate"] == 0.1


def test_runs_depend_on_their_seed_alone(few):
    whole = numbers(norm_study(few, norms=["batch", "group"], batch_sizes=[4, 16], epochs=1, seeds=3))
    torch.manual_seed(12345)
    alone = numbers(norm_study(few, norms=["group"], batch_sizes=[16], epochs=1, seeds=1, seed=2))
    assert alone == {("group", None, 2): whole["group", None, 2]}
    assert whole["group", None, 0] != whole["group", None, 1]


def test_networks_of_one_seed_start_from_the_same_weights(few):
    seen = {}

    def build(num_classes, norm):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), norm(16), nn.ReLU(), nn.Linear(16, num_classes))
        seen.setdefault(type(net[2]).__name__, []).append(
            [net[1].weight.detach().clone(), net[4].weight.detach().clone()]
        )
        return net

    data = replace(few, inputs=few.inputs.flatten(1))
    norm_study(data, build, norms=["batch", "none"], batch_sizes=[16], epochs=1, seeds=1)
    last = [weights[-1] for weights in seen.values()]
    assert len(last) == 2
    for first, second in zip(*last, strict=True):
        assert torch.equal(first, second)


def test_statistics_over_parts_are_those_of_separate_networks(few):
    """One step with statistics over parts of 4 is the sum of the gradients of 4 networks, each with 4 examples."""
    inputs, labels = few.inputs[:16], few.labels[:16]
    torch.manual_seed(0)
    parts = small_conv((1, 8, 8), 10, lambda channels: norm_layer("batch", channels, split=4)).double()
    torch.manual_seed(0)
    whole = small_conv((1, 8, 8), 10, lambda channels: norm_layer("batch", channels)).double()
    nn.functional.cross_entropy(parts(inputs.double()), labels).backward()
    for x, y in zip(inputs.double().split(4), labels.split(4), strict=True):
        (nn.functional.cross_entropy(whole(x), y) / 4).backward()
    for mine, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_one_value_a_channel_is_a_result_and_no_error(few):
    # pytorch#4534: "Expected more than 1 value per channel when training"
    table = norm_study(few, norms=["batch", "group"], batch_sizes=[1, 8], **QUICK)
    cells = table.runs("batch", 1)
    assert [cell.outcome for cell in cells] == ["failed", "failed"]
    assert all(cell.error is None and cell.reason for cell in cells)
    assert table.interval("batch", 1) is None
    assert "cannot be trained" in table.advice()


def test_loss_that_is_no_longer_finite_ends_the_run(few):
    table = norm_study(few, norms=["none"], batch_sizes=[16], learning_rate=1e12, **QUICK)
    assert all(cell.outcome == "diverged" for cell in table.cells)
    assert all("was not finite at step" in cell.reason for cell in table.cells)
    assert str(table.rows()[0][1]).endswith("*")


def test_progress_adds_up_to_the_plan(few):
    plans, taken, last = [], [], {}

    def progress(n, **fields):
        taken.append(n)
        last.update(fields)

    norm_study(few, norms=["batch", "group"], batch_sizes=[1, 8], on_plan=plans.append, on_progress=progress, **QUICK)
    assert plans[0].runs == 6
    assert plans[0].steps == 6 * (320 // 8)
    assert plans[0].seconds > 0
    assert sum(taken) == plans[0].steps  # also where a run could not be trained
    assert last["seed"] == 1


def test_a_study_grows_by_seeds_and_sizes_without_training_anything_twice(few, tmp_path):
    first = norm_study(few, norms=["batch"], batch_sizes=[4, 16], out=tmp_path / "s", **QUICK)
    plans = []
    more = norm_study(
        few, norms=["batch", "group"], batch_sizes=[4, 8, 16], epochs=1, seeds=3, out=tmp_path / "s", resume=True,
        on_plan=plans.append,
    )  # fmt: skip
    assert (plans[0].runs, plans[0].done) == (8, 4)
    assert {key: value for key, value in numbers(more).items() if key in numbers(first)} == numbers(first)
    fresh = norm_study(few, norms=["batch", "group"], batch_sizes=[4, 8, 16], epochs=1, seeds=3)
    assert numbers(fresh) == numbers(more)


def test_folders_of_other_studies_are_refused(few, tmp_path):
    options = {"norms": ["group"], "batch_sizes": [16], "epochs": 1, "seeds": 1, "out": tmp_path / "s"}
    norm_study(few, **options)
    with pytest.raises(InputError, match="holds an earlier study; --resume goes on with it"):
        norm_study(few, **options)
    with pytest.raises(InputError, match=r"made with learning_rate=0.05, now learning_rate=0.2"):
        norm_study(few, **options, learning_rate=0.4, resume=True)
    other = replace(few, inputs=few.inputs + 0.5)
    with pytest.raises(InputError, match="checksum"):
        norm_study(other, **options, resume=True)
    run = tmp_path / "s" / "runs" / Run("group", None, 0).file
    for content in ("{", "[]", '{"norm": "group"}', json.dumps({**json.loads(run.read_text()), "seed": 7})):
        run.write_text(content)
        with pytest.raises(InputError, match=r"group-any-seed-0.json: is damaged; remove it"):
            norm_study(few, **options, resume=True)
    (tmp_path / "s" / "settings.json").write_text("no")
    with pytest.raises(InputError, match=r"settings.json: is damaged"):
        norm_study(few, **options, resume=True)


PROGRAM = """
import sys
from dataclasses import replace
from itertools import pairwise
from tenfold.normalization.data import dataset
from tenfold.normalization.study import norm_study

digits = dataset("digits")
few = replace(digits, inputs=digits.inputs[:400], labels=digits.labels[:400])
norm_study(few, norms=["batch", "group"], batch_sizes=[4, 16], epochs=15, seeds=3, out=sys.argv[1])
"""


KILLED = {"norms": ["batch", "group"], "batch_sizes": [4, 16], "epochs": 15, "seeds": 3}


@pytest.fixture(scope="module")
def never_killed(few):
    return numbers(norm_study(few, **KILLED))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_study_goes_on_with_the_same_numbers(few, never_killed, tmp_path, number):
    folder = tmp_path / "s"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("runs/[!.]*.json"))) < 2:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, number)
        err = process.communicate()[1]
    if number == signal.SIGINT:
        assert "of 9 runs; the same command with --resume goes on" in err
    plans = []
    resumed = norm_study(few, **KILLED, out=folder, resume=True, on_plan=plans.append)
    assert plans[0].done >= 2
    assert numbers(resumed) == never_killed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norms": ["bach"]}, "normalization 'bach' is not one of batch, group, layer, instance, none"),
        ({"norms": []}, "norms is empty"),
        ({"batch_sizes": [3, 32]}, "batch size 3 does not divide 32, the batch of a step"),
        ({"batch_sizes": [0]}, "batch_sizes=.* at least 1"),
        ({"batch_sizes": []}, "batch_sizes=.* at least 1"),
        ({"batch_sizes": [512]}, "320 examples to train on do not fill a batch of 512"),
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"model": "vgg"}, "model 'vgg' is not one of auto, small-conv, resnet, mlp"),
        ({"held_out": 1.0}, "held_out=1.0 must lie between 0 and 1"),
    ],
)
def test_bad_arguments_are_named(few, options, message):
    with pytest.raises(ValueError, match=message):
        norm_study(few, **{"epochs": 1, **options})


def test_tables_are_for_the_perceptron_and_not_for_instance_normalization(few):
    rows = replace(few, inputs=few.inputs.flatten(1))
    table = norm_study(rows, batch_sizes=[4, 16], **QUICK)
    assert table.norms == ("batch", "group", "layer")
    assert table.settings["model"] == "mlp"
    with pytest.raises(ValueError, match="would normalize single numbers"):
        norm_study(rows, norms=["instance"], **QUICK)
    with pytest.raises(ValueError, match=r"model 'small-conv' is for images .* \(64,\)"):
        norm_study(rows, "small-conv", **QUICK)


def test_a_network_of_the_users_own_has_its_normalizations_replaced(few):
    def build(num_classes=10):
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, num_classes)
        )
        nn.init.zeros_(net[1].weight)
        return net

    table = norm_study(few, build, batch_sizes=[4, 16], **QUICK)
    assert table.settings["model"] == "build"
    assert not table.without_input  # maps of 4 x 4: instance normalization has something to normalize
    with pytest.raises(InputError, match=r"the network gives \(2, 7\) for 2 examples; a score for each of 10 classes"):
        norm_study(few, lambda: build(7), **QUICK)
    with pytest.raises(InputError, match=r"does not take inputs of shape \(1, 8, 8\)"):
        norm_study(few, lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(64, 10)), **QUICK)
    with pytest.raises(ValueError, match="holds no batch, group or instance normalization"):
        norm_study(few, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **QUICK)
    with pytest.raises(ValueError, match="needs the argument 'width'; it is offered num_classes"):
        norm_study(few, lambda width: build(width), **QUICK)


def test_replacement_keeps_gamma_and_shared_layers():
    shared = nn.BatchNorm2d(4)
    nn.init.zeros_(shared.weight)
    net = nn.ModuleDict(
        {"a": nn.Sequential(shared, nn.ReLU(), shared), "b": nn.InstanceNorm2d(4), "c": nn.GroupNorm(1, 4)}
    )
    replace_norms(net, lambda channels, axes: nn.GroupNorm(2, channels))
    assert net["a"][0] is net["a"][2]
    assert isinstance(net["a"][0], nn.GroupNorm)
    assert net["a"][0].weight.abs().max() == 0
    assert [net[name].num_groups for name in "bc"] == [2, 2]
    assert isinstance(
        replace_norms(nn.BatchNorm1d(4), lambda channels, axes: nn.GroupNorm(axes + 1, channels)), nn.GroupNorm
    )


def test_learning_rate_falls_along_half_a_cosine():
    """Plain SGD on a linear score with a constant gradient: the steps are the learning rates."""
    inputs = torch.ones(8, 1)
    labels = torch.zeros(8, dtype=torch.long)
    seen = []

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            seen.append(self.shift.item())
            # the softmax of (0, 1000) does not move: the gradient of the loss is -1 for ever
            return torch.cat([self.shift.expand(len(x), 1), torch.full((len(x), 1), 1000.0, dtype=torch.float64)], 1)

    train_classifier(
        Scores(), Parts(inputs, labels, inputs, labels), Settings(2, 2, 0.5, momentum=0.0, weight_decay=0.0), seed=0
    )
    training = [value for number, value in enumerate(seen) if number not in (4, 9)]  # without the two evaluations
    steps = [after - before for before, after in pairwise(training)]
    expected = [0.25 * (1 + torch.cos(torch.tensor(torch.pi * k / 8)).item()) for k in range(7)]
    assert steps == pytest.approx(expected, rel=1e-6)


def test_error_rate_counts_and_batches_are_filled():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [float("inf"), 0.0]])
    assert error_rate(nn.Identity(), scores, torch.tensor([0, 0, 1, 0])) == 0.5
    assert steps_per_epoch(64, 32) == 2
    with pytest.raises(ValueError, match="31 examples to train on do not fill a batch of 32"):
        steps_per_epoch(31, 32)


def test_digits_are_learned_and_the_papers_shape_appears():
    """Batch normalization over two samples at maps of one pixel collapses; groups do not see the split."""
    table = norm_study(dataset("digits"), norms=["batch", "group"], batch_sizes=[2, 32], seeds=2, epochs=2)
    assert table.interval("batch", 32).center < 0.12
    assert table.interval("group", 32).center < 0.15
    assert table.difference("batch", "group", 2).center > 0.2


def test_held_out_examples_differ_by_seed_and_published_ones_do_not():
    digits = dataset("digits")
    assert not torch.equal(split(digits, seed=0).test_inputs, split(digits, seed=1).test_inputs)
    data = LabelledData(digits.inputs[:300], digits.labels[:300], digits.classes, "d", test=digits)
    assert norm_study(data, norms=["group"], batch_sizes=[16], **QUICK).settings["held_out"] is None
