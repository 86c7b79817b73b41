"""asr-train plan: its output, and its messages for wrong input."""

from argparse import Namespace

import pytest

from asr_train import schema
from asr_train.command import plan
from asr_train.command.plan import CONF, DEFAULTS, requested, sent
from asr_train.cost.cluster import read_cluster
from asr_train.files import read_json, write_jsonl

CLUSTERS = sorted(path.stem for path in (CONF / "cluster").glob("*.yaml"))
SMALL = ("workers=4", "blocks=5", "groups=2,3", "model=1M")


def run(*settings):
    assert plan.run(Namespace(settings=settings)) == 0


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_is_right_and_names_its_sources(name):
    cluster = read_cluster(name)
    assert any(cluster.gpu.name.split()[0] in source for source in cluster.sources) or any(
        "as in" in source for source in cluster.sources
    )


def test_it_writes_a_table_its_numbers_and_a_plot(tmp_path, capsys):
    run("cluster=h200_10g", *SMALL, f"out={tmp_path}")
    written = read_json(tmp_path / "plan.json")
    assert written["simulated"] is True
    text = (tmp_path / "plan.md").read_text()
    assert "simulated" in text.splitlines()[0]
    assert written["advised"] in text
    assert (tmp_path / "plan.png").stat().st_size > 1000
    assert text in capsys.readouterr().out
    assert {row["workers"] for row in written["options"]} == {4}
    assert "Groups of 3 are left out: they do not divide 4 workers" in text
    optima = written["optimal_workers"]
    assert [row["minibatch_frames"] for row in optima] == [1024, 4096, 8192, 16384]
    assert optima[0]["workers"].keys() == {"allreduce", "onebit", "gtc", "bmuf"}
    assert "K-hat" in text
    assert ('"any"' in text) == ("| any" in text)


def test_it_says_that_fewer_workers_would_be_faster(tmp_path, capsys):
    given = "cluster=h200_1g", "model=24M", "minibatch=256", "methods=allreduce"
    run(*given, "workers=16", f"out={tmp_path}")
    text = capsys.readouterr().out
    (speeds,) = read_json(tmp_path / "plan.json")["curves"].values()
    frames = {speed["workers"]: speed["frames_per_second"] for speed in speeds}
    assert max(frames, key=frames.get) == 8
    assert f"**Fewer workers are faster**: 8 (allreduce) reach {frames[8]:,.0f} frames/s." in text
    assert frames[16] < 0.1 * frames[1]
    assert f" frames/s, {frames[16] / frames[1]:.2g} times one worker" in text
    run(*given, "workers=8", f"out={tmp_path}")
    assert "Fewer workers" not in capsys.readouterr().out
    given = "cluster=h200_1g", "model=24M", "minibatch=4", "methods=bmuf_gtc", "blocks=1"
    run(*given, "workers=16", f"out={tmp_path}")
    assert "**Fewer workers are faster**: one reaches 58,625" in capsys.readouterr().out


def test_only_the_methods_asked_for(tmp_path):
    run("cluster=h200_10g", *SMALL, "methods=gtc,bmuf", f"out={tmp_path}")
    methods = {row["method"] for row in read_json(tmp_path / "plan.json")["options"]}
    assert methods == {"gtc", "bmuf, block 5"}


def test_a_network_whose_elements_gtc_cannot_number_is_planned_without_it(tmp_path, capsys):
    given = "cluster=h200_10g", "workers=4", "blocks=5", "groups=2", f"out={tmp_path}"
    run(*given, "model=3000M")
    assert "with GTC are left out: GTC numbers at most 2,147,483,647" in capsys.readouterr().out
    written = read_json(tmp_path / "plan.json")
    rows = written["options"]
    assert {row["method"].split(",")[0] for row in rows} == {"allreduce", "onebit", "bmuf"}
    assert not written["densities"]
    assert "gtc" not in written["optimal_workers"][0]["workers"]
    run(*given, "model=3000M", "methods=allreduce,bmuf")
    assert "GTC" not in capsys.readouterr().out
    run(*given, "model=2147483647")
    assert "gtc_async" in capsys.readouterr().out


def test_more_workers_than_can_be_simulated_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "MOST_WORKERS", 8)
    with pytest.raises(ValueError, match=r"workers is 9; .* too long for more than 8: plan with"):
        run("cluster=h200_10g", "model=1M", "workers=9", f"out={tmp_path}")


def test_blocks_are_planned_once_and_not_endless(tmp_path):
    assert requested({**DEFAULTS, "blocks": "50,25,50"}).block_steps == (25, 50)
    with pytest.raises(ValueError, match=r"blocks has 1000000; .* blocks of more than 10000: plan"):
        run("cluster=h200_10g", "model=1M", "workers=2", "blocks=25,1000000", f"out={tmp_path}")


def test_a_log_of_another_network_is_named_with_its_density(tmp_path):
    row = {"threshold": 4.0, "sent_bits": 3.2e4, "elements_sent": 1e3, "compression_ratio": 1e3}
    write_jsonl(tmp_path / "log.jsonl", [row])
    given = DEFAULTS | {"log": str(tmp_path / "log.jsonl")}
    assert "other sizes" not in sent(requested(given | {"model": "1M"}), given)
    text = sent(requested(given | {"model": "24M"}), given)
    assert "of a network of 1 M parameters" in text
    assert "plan with model=1000000, or with density=0.001" in text


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("cluster=moon",), "cluster 'moon' has no file .*known: ec2_g2, h200_100g"),
        (("cluser=ec2_g2",), "cluser is not a setting; did you mean cluster"),
        (("64",), "'64' is not KEY=VALUE"),
        (("workers=many",), "workers is 'many'; it must be an integer"),
        (("workers=0",), "workers is '0'; it must be an integer, 1 or more"),
        (("workers=4096",), "4096 workers, but the cluster has 64 nodes of 8 GPUs"),
        (
            ("model=resnet",),
            "model 'resnet' is neither a number of parameters nor one of dnn_4x256",
        ),
        (("blocks=50,x",), "blocks is '50,x'; it must be integers: 25,50,100,200"),
        (("groups=0,2",), "groups is '0,2'; it must be integers: 2,4,8"),
        (("tau=4", "density=0.1"), "tau and density all set what GTC sends; give one of them"),
        (("tau=40",), "tau is 40.0; sizes are known from 2.0 to 15.0"),
        (("density=2",), "density is 2.0; it must lie in"),
        (("log=/",), "log is '/', a folder; name the log.jsonl of a run"),
        (("codec=zip",), "codec is 'zip'; allowed"),
        (("methods=gtc,adam",), "methods has 'adam'; allowed: sgd, allreduce"),
        (("minibatch=0",), "minibatch is '0'; it must be a positive number"),
        (("fps=inf",), "fps is 'inf'; it must be a positive number, from 1e-12 to 1e.12"),
        (("fps=1e-320",), "fps is '1e-320'; it must be a positive number"),
        (("model=-5M",), "model is '-5M'; a number of parameters must be at least 1"),
        (("model=1e308",), r"model is '1e308'; .* at least 1, as 24M, and at most 1e\+12"),
        (("model=0.01",), "model is '0.01'; a number of parameters must be at least 1"),
        (("model=3000M", "methods=gtc"), "methods is gtc; GTC numbers at most 2,147,483,647 "),
    ],
)
def test_wrong_input_is_refused_by_name(arguments, said, tmp_path):
    model = () if any(a.startswith("model") for a in arguments) else ("model=1M",)
    with pytest.raises((ValueError, schema.SettingsError), match=said):
        run(*model, *arguments, f"out={tmp_path}")
    assert not list(tmp_path.iterdir())
