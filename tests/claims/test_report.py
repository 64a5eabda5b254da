import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_claims as sample

from tenfold.claims import Curve, Measurement, Plot, SeedRun, write_report
from tenfold.claims.outcome import exit_code, show_results
from tenfold.claims.plots import draw, interval_strip
from tenfold.claims.report import report_content
from tenfold.claims.result import judge_claim
from tenfold.claims.wording import number_text

HOSTILE = "<script>alert(1)</script> & \"quotes\" 'and' $x_1^2$ 漢字"


def runs(measure, seeds=3, **more):
    return [
        SeedRun(
            seed, measure(seed, "smoke"), seconds=1.5, versions={"torch": "2.13.0"}, machine={"cpu": "abacus"}, **more
        )
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def results():
    failed = SeedRun(0, error="ValueError: no", traceback=f"Traceback\n{HOSTILE}", machine={"cpu": "abacus"})
    strange = replace(
        sample.HOLDS,
        id="sample.strange",
        title=HOSTILE,
        statement=HOSTILE,
        paper=HOSTILE,
        published=HOSTILE,
        limits=HOSTILE,
        needs=("digits",),
    )
    return [
        judge_claim(sample.HOLDS, "smoke", runs(sample.coin_fairness)),
        judge_claim(sample.DOES_NOT_HOLD, "smoke", runs(sample.coin_fairness)),
        judge_claim(sample.KNOWN_TO_FAIL, "smoke", runs(sample.nothing_random)),
        judge_claim(sample.INCONCLUSIVE, "smoke", runs(sample.noise, seeds=1)),
        judge_claim(sample.NOT_FINITE, "smoke", runs(sample.not_finite)),
        judge_claim(sample.RAISES, "smoke", [failed]),
        judge_claim(strange, "smoke", runs(hostile_plots)),
    ]


def hostile_plots(seed, scale):
    numbers = sample.coin_fairness(seed, scale).numbers
    curve = Curve([1.0, 10.0, 1000.0], [0.1 + seed, float("nan"), 1e-4])
    plots = {
        HOSTILE: Plot(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: curve}, x_log=True, y_log=True, caption=HOSTILE),
        "apart": Plot("Apart", "x", "y", {"by seed": Curve([0.0, float(seed + 1)], [1.0, 2.0]), "other": curve}),
        "names": Plot("Names", "", "y", {"a": Curve([0.0], [1.0])}, kind="bar", ticks=[HOSTILE]),
    }
    return Measurement({**numbers, HOSTILE: 1.0}, plots)


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "notes.txt").write_text("mine")
    page = write_report(results, folder, notes=["The area x was not run."])
    assert page == folder / "index.html"
    return folder


class Page(HTMLParser):
    """Collects ids, links and elements, and insists that elements are closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.tags, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "xlink:href", "src") if name in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_with_unique_ids_and_links_that_lead_somewhere(folder):
    text = (folder / "index.html").read_text()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link in {"data:,", "report.json"} or (link.startswith("#") and link[1:] in page.ids), link
    assert "script" not in page.tags
    assert not re.search(r"(url\(|@import)\s*['\"]?(https?:|//)", text)
    assert (folder / "notes.txt").read_text() == "mine"


def test_every_claim_has_its_card_with_all_that_was_said(folder, results):
    text = (folder / "index.html").read_text()
    for result in results:
        assert f'id="{result.claim.id}"' in text
        assert f"tenfold reproduce --claim {result.claim.id} --scale smoke" in text
    assert (
        "2 of 7 claims hold, 2 do not hold (1 of them as expected), 1 is inconclusive, 2 ended with an error." in text
    )
    for said in (
        sample.HOLDS.statement,
        sample.HOLDS.limits,
        "25550 throws",
        "We know that it does not hold in our setting",
        "ValueError: no",
        "loss is nan in seed 1",
        "One seed gives no interval",
        "Every seed gave the same value",
        "The area x was not run.",
        "abacus",
    ):
        assert said in text, said


def test_numbers_are_described_in_words_with_their_names_beside(folder):
    text = (folder / "index.html").read_text()
    assert 'heads among all throws <code class="code-name">heads</code>' in text
    assert '<span class="name">distance from 1/2</span>' in text  # nobody has described it


def test_the_summary_says_what_was_expected_where_a_claim_does_not_hold(folder):
    rows = re.findall(
        r"<tr>\s*<th scope=\"row\"><a href=\"#([^\"]+)\".*?</tr>", (folder / "index.html").read_text(), re.DOTALL
    )
    text = (folder / "index.html").read_text().split("</table>")[0]
    said = {name: re.search(rf'href="#{name}".*?</tr>', text, re.DOTALL)[0] for name in rows}
    assert "as expected" in said["sample.known-to-fail"]
    assert "expected: holds" in said["sample.exact-half"]
    assert not any("expected" in said[name] for name in ("sample.fair-coin", "sample.noise", "sample.raises"))


def test_advice_is_one_for_the_page_and_the_terminal_and_fits_the_scale(capsys):
    undecided = judge_claim(sample.INCONCLUSIVE, "quick", runs(sample.noise, seeds=2))
    decided = judge_claim(sample.EXACT, "quick", runs(sample.nothing_random, seeds=2))
    smoke = judge_claim(sample.INCONCLUSIVE, "smoke", runs(sample.noise, seeds=2))
    for results, said in (
        ([undecided, decided], "more seeds may decide: --seeds 4"),
        ([decided], ""),
        ([smoke], "For an answer: --scale quick"),
    ):
        advice = report_content(results)["advice"]
        assert advice.endswith(said)
        show_results(results, Path("report/index.html"), json=False)
        assert advice in capsys.readouterr().out
    assert report_content([decided])["advice"] == ""


def test_text_from_claims_cannot_become_markup(folder):
    text = (folder / "index.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_the_json_has_the_same_content_and_is_strict(folder, results):
    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads((folder / "report.json").read_text(), parse_constant=refuse)
    assert (content["schema"], content["schema_version"]) == ("tenfold-report", 1)
    assert content["counts"] == {"holds": 2, "inconclusive": 1, "does not hold": 2, "error": 2}
    claims = {claim["id"]: claim for claim in content["claims"]}
    assert list(claims) == [result.claim.id for result in results]
    fair = claims["sample.fair-coin"]
    assert [criterion["verdict"] for criterion in fair["criteria"]] == ["holds", "holds"]
    assert fair["criteria"][1]["threshold"] == 500.0
    assert len(fair["criteria"][0]["values"]) == 3
    heads = fair["numbers"]["heads"]
    assert (heads["unit"], heads["description"], heads["statistic"]) == ("throws", "heads among all throws", "median")
    assert fair["numbers"]["distance from 1/2"]["low"] == 0.0  # what the t interval has below is cut off
    assert fair["seconds"] == 4.5
    assert [curve["seed"] for curve in fair["plots"]["share"]["curves"]["fair coin"]] == [0, 1, 2]
    assert claims["sample.strange"]["plots"][HOSTILE]["curves"][HOSTILE][0]["y"] == [0.1, None, 1e-4]
    assert claims["sample.noise"]["criteria"][0]["low"] is None
    assert claims["sample.raises"]["seeds"][0]["error"] == "ValueError: no"
    assert not claims["sample.exact-half"]["as_expected"]
    assert content["machines"] == [{"cpu": "abacus"}]


def test_inconclusive_and_known_failures_are_no_failure_of_the_run(results):
    fates = {result.claim.id: exit_code([result]) for result in results}
    assert [name for name, code in fates.items() if code] == ["sample.exact-half", "sample.diverges", "sample.raises"]
    assert exit_code(results) == 1
    assert exit_code([]) == 0


def test_the_command_repeats_the_number_of_seeds_where_it_is_not_the_usual():
    usual = judge_claim(sample.EXACT, "smoke", runs(sample.nothing_random, seeds=2))
    more = judge_claim(sample.EXACT, "smoke", runs(sample.nothing_random, seeds=7))
    assert "--seeds" not in usual.command
    assert more.command.endswith("--seeds 7")


def test_figures_take_the_colours_of_the_page():
    figure = draw([sample.coin_fairness(0, "smoke").plots["share"]], "f")
    assert {"var(--ink)", "var(--rule)", "var(--s1)", "var(--s2)"} <= set(re.findall(r"var\([^)]*\)", figure.svg))
    assert "#fe00" not in figure.svg
    assert "DejaVu" not in figure.svg
    assert [name for name, _ in figure.legend] == ["fair coin", "expected"]
    assert figure.note == ""
    ElementTree.fromstring(figure.svg)


def test_seeds_become_a_mean_with_its_range_or_a_curve_each():
    def plot(*curves):
        return [Plot("t", "x", "y", {"c": curve}) for curve in curves]

    one, other = Curve([0.0, 1.0], [0.0, 2.0]), Curve([0.0, 1.0], [2.0, 2.0])
    assert draw(plot(one, other), "f").note == "Means over 2 seeds, with their range."
    assert draw(plot(one, one), "f").note == "Equal for all 2 seeds."
    assert draw(plot(one, Curve([0.0, 2.0], [0.0, 2.0])), "f").note == "One curve for each of 2 seeds."


def test_a_strip_puts_the_right_side_where_the_claim_holds():
    judged = judge_claim(sample.HOLDS, "smoke", runs(sample.coin_fairness)).judgements
    most, least = (interval_strip(judgement) for judgement in judged)
    assert '<rect class="right-side" x="0.00%"' in most  # at most 0.2
    found = re.search(r'right-side" x="([\d.]+)%" width="([\d.]+)%"', least)
    assert float(found[1]) + float(found[2]) == pytest.approx(100.0)  # at least 500: up to the right edge
    assert most.count("<circle") == 3


def test_a_report_of_nothing_says_so(tmp_path):
    assert report_content([])["summary"] == "0 of 0 claims hold."
    Page(write_report([], tmp_path).read_text())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.5, "−0.5"),
        (123456.0, "1.23×10⁵"),
        (9999.6, "10000"),
        (0.00012345, "0.000123"),
        (0.000012345, "1.23×10⁻⁵"),
        (1e-300, "10⁻³⁰⁰"),
        (float("inf"), "∞"),
        (float("nan"), "NaN"),
        (0.9999, "1"),
    ],
)
def test_numbers_are_short_and_typographic(value, text):
    assert number_text(value) == text
