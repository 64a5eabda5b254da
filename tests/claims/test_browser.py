"""The report in a real browser: headless Chromium, from a file, at the width of a phone, in the dark, and printed."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sample_claims as sample
from playwright.sync_api import sync_playwright

from tenfold.claims import SeedRun, write_report
from tenfold.claims.result import judge_claim

pytestmark = pytest.mark.browser
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

# Smallest ratio of text colour to the colour behind it, by the formula of WCAG 2.2, and the text that has it.
CONTRAST = """() => {
  const channels = (css) => (css.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = channels(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("p, td, th, dd, dt, li, a, h1, h2, h3, h4, code, .verdict, text")) {
    if (!e.textContent.trim() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(channels(e.tagName === "text" ? style.fill : style.color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.tagName + " " + e.textContent.trim().slice(0, 40)];
  }
  return worst;
}"""


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("TENFOLD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail(
            "Chromium is not installed: install Debian's package chromium, name the program in TENFOLD_CHROMIUM, "
            "or leave these tests out with pytest -m 'not browser'"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    def runs(measure, seeds=3):
        machine = {"cpu": "An abacus with quite a long name, as they tend to have @ 3.00GHz", "cpus": 2}
        return [SeedRun(seed, measure(seed, "smoke"), seconds=1.5, machine=machine) for seed in range(seeds)]

    results = [
        judge_claim(sample.HOLDS, "quick", runs(sample.coin_fairness)),
        judge_claim(sample.DOES_NOT_HOLD, "quick", runs(sample.coin_fairness)),
        judge_claim(widely_printed(sample.INCONCLUSIVE), "quick", runs(sample.noise)),
        judge_claim(sample.RAISES, "quick", [SeedRun(0, error="ValueError: " + "no" * 200, traceback="no\n" * 30)]),
    ]
    return write_report(results, tmp_path_factory.mktemp("report"))


def widely_printed(claim):
    """The claim with numbers of a long unit, expected to fail: as wide as a row of the summary becomes."""
    criteria = tuple(replace(criterion, unit="per cent of the list") for criterion in claim.criteria)
    return replace(claim, criteria=criteria, expected="does not hold")


@pytest.fixture
def open_page(browser, report):
    """Opens the report; the test fails if the page asks for anything else or complains."""
    pages, asked, complaints = [], [], []

    def open_page(width=1280, **options):
        page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        pages.append(page)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(Path(report).as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert set(asked) <= {Path(report).as_uri()}
    assert complaints == []


def test_every_plot_is_visible(open_page):
    page = open_page()
    plots = page.locator("svg.plot")
    assert plots.count() == 6
    strips = page.locator("svg.strip")
    assert strips.count() == 4
    for svg in (*plots.all(), *strips.all()):
        box = svg.bounding_box()
        assert svg.is_visible()
        assert box["width"] > 200
        assert box["height"] > 40
    drawn = page.evaluate("""() => [...document.querySelectorAll('svg.plot')].map((svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('path, use, text')].filter((e) => {
            const b = e.getBoundingClientRect();
            return b.width + b.height > 0 && b.left >= box.left - 1 && b.right <= box.right + 1;
        }).length;
    })""")
    assert min(drawn) > 15


def test_links_lead_to_places_on_the_page(open_page, report):
    page = open_page()
    targets = page.evaluate("() => [...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))")
    assert len(targets) > 10
    for target in sorted(set(targets)):
        if target.startswith("#"):
            assert page.evaluate("(id) => document.getElementById(id) !== null", target[1:]), target
        else:
            assert (report.parent / target).is_file(), target
    page.get_by_role("link", name="Exact half").click()
    page.wait_for_function(
        "() => Math.abs(document.getElementById('sample.exact-half').getBoundingClientRect().top) < 100"
    )
    assert page.evaluate("() => location.hash") == "#sample.exact-half"


@pytest.mark.parametrize("width", [320, 360, 700, 780, 1000, 1280])
def test_nothing_is_wider_than_the_page(open_page, width):
    page = open_page(width)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    beyond = page.evaluate("""(width) => [...document.querySelectorAll('body *')].filter((e) =>
        !e.closest('.scroll, .skip, thead, svg, pre') && e.getBoundingClientRect().right > width + 1)
        .map((e) => e.tagName + ' ' + e.className)""", width)  # fmt: skip
    assert beyond == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page, scheme):
    page = open_page(color_scheme=scheme)
    back = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 3 * 128) is (scheme == "dark")
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where  # WCAG 2.2, level AA


def test_text_in_plots_is_legible_on_a_phone(open_page):
    page = open_page(360)
    heights = page.evaluate("""() => [...document.querySelectorAll('svg.plot text')]
        .map((text) => text.getBoundingClientRect()).map((box) => Math.min(box.width, box.height))""")
    assert sorted(heights)[len(heights) // 10] > 7


def test_it_prints_on_paper(open_page):
    page = open_page()
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.locator("svg.plot").first.is_visible()
