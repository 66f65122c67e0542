"""The report in a real browser: slider, hover, copy, download, keyboard, narrow width, dark mode, print, no request."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from made_runs import build_run

from derive.strict_json import read_json
from nas.page.report import write_report
from nas.pictures.palette import COLORS
from nas.pictures.plots_base import palette_of
from nas.results.run_files import Run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra: browser)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
LAYERS, CANDIDATES, STEPS = 6, 4, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = build_run(
        tmp_path_factory.mktemp("browser") / "run", layers=LAYERS, candidates=CANDIDATES, steps=STEPS, seeds=2
    )
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, folder):
    """The freshly loaded page; afterwards, no error on the console and no request that leaves the page."""
    resize(driver, 1300, 1000)
    for earlier in ("browser", "performance"):
        driver.get_log(earlier)
    driver.get((folder / "report.html").as_uri())
    yield driver
    assert driver.get_log("browser") == []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            assert message["params"]["request"]["url"].split(":")[0] in ("file", "data", "blob")


def resize(driver, width, height):
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def find(driver, selector):
    return driver.find_element("css selector", selector)


def cell(driver, layer, column):
    return driver.find_elements("css selector", "#grid tbody tr")[layer].find_elements("css selector", "td.cell")[
        column
    ]


def shown(driver):
    """The grid's numbers [layers, candidates], to two decimals."""
    rows = driver.execute_script(
        "return [...document.querySelectorAll('#grid tbody tr')]"
        ".map(row => [...row.querySelectorAll('td.cell')].map(cell => cell.style.getPropertyValue('--p')))"
    )
    return np.array(rows, float)


def table(folder, seed, index):
    """The recorded probabilities [layers, candidates] in the page's order."""
    run = Run.load(folder)
    order = [run.candidates.index(label) for label in palette_of(run).labels if label in run.candidates]
    return run.seeds[seed].search.probabilities[index][:, order], [run.candidates[k] for k in order]


def press(driver, *keys):
    webdriver.ActionChains(driver).send_keys(*keys).perform()


def test_the_slider_moves_heat_map_trajectories_and_layout(page, folder):
    last, labels = table(folder, 0, -1)
    assert np.allclose(shown(page), last, atol=6e-4)
    slider = find(page, "#step")
    page.execute_script("arguments[0].focus()", slider)
    press(page, webdriver.Keys.HOME)
    assert np.allclose(shown(page), table(folder, 0, 0)[0], atol=6e-4)
    assert find(page, "#step-name").text.startswith("step 0 of 110, warm-up")
    press(page, *[webdriver.Keys.ARROW_RIGHT] * 7)
    seventh = table(folder, 0, 7)[0]
    assert np.allclose(shown(page), seventh, atol=6e-4)
    assert find(page, "#step-name").text == "step 70 of 110"
    cursor = page.execute_script("return document.querySelector('#grid td.spark svg line').getAttribute('x1')")
    assert float(cursor) == pytest.approx(120 * 7 / 11)
    letters = [mark.text for mark in page.find_elements("css selector", "#now li")]
    tags = [style.tag for style in palette_of(Run.load(folder)) if style.label in labels]
    assert letters == [tags[place] for place in seventh.argmax(axis=1)]
    winners = page.execute_script(
        "return [...document.querySelectorAll('#grid tbody tr')]"
        ".map(row => [...row.querySelectorAll('td.cell')].findIndex(cell => cell.classList.contains('winner')))"
    )
    assert winners == seventh.argmax(axis=1).tolist()


def test_hovering_a_cell_tells_layer_block_probability_and_cost(page, folder):
    values, labels = table(folder, 0, -1)
    target = cell(page, 3, 1)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
    webdriver.ActionChains(page).move_to_element(target).perform()
    tip = find(page, "#tip")
    cost = Run.load(folder).seeds[0].search.cost_table[labels[1]]
    assert tip.is_displayed()
    assert tip.text.split("\n") == [
        f"layer 3: {labels[1]}",
        f"probability {values[3, 1]:.4f} at step 110",
        f"{cost:,} FLOPs a token",
    ]
    press(page, webdriver.Keys.ESCAPE)
    assert not tip.is_displayed()


def test_clicking_a_layer_shows_its_history(page, folder):
    values, labels = table(folder, 0, -1)
    find(page, "#grid tbody tr:nth-child(5) th button").click()
    assert find(page, "#history-name").text == "Layer 4"
    assert find(page, "#grid tbody tr:nth-child(5)").get_attribute("aria-selected") == "true"
    readings = [
        row.find_elements("css selector", "td")[2].text for row in page.find_elements("css selector", "#readings tr")
    ]
    assert readings == [f"{value:.4f}" for value in values[4]]
    strokes = {
        line.get_attribute("data-candidate"): line.get_attribute("stroke")
        for line in page.find_elements("css selector", "#chart path[data-candidate]")
    }
    assert strokes == {str(place): COLORS[label] for place, label in enumerate(labels)}
    chart = find(page, "#chart")
    webdriver.ActionChains(page).move_to_element(chart).perform()
    assert find(page, "#tip").text.startswith("layer 4, step ")
    webdriver.ActionChains(page).move_to_element_with_offset(chart, -chart.size["width"] // 2 + 50, 0).click().perform()
    assert int(find(page, "#step").get_attribute("value")) <= 1


def test_cells_can_be_walked_with_the_keyboard(page):
    page.execute_script("document.querySelector('#grid td.cell').focus()")
    press(page, webdriver.Keys.ARROW_DOWN, webdriver.Keys.ARROW_DOWN, webdriver.Keys.ARROW_RIGHT)
    at = page.execute_script("return document.activeElement.getAttribute('aria-label')")
    assert at.startswith("layer 2: ") and at == find(page, "#tip").text
    press(page, webdriver.Keys.ENTER)
    assert find(page, "#history-name").text == "Layer 2"
    press(page, webdriver.Keys.END)
    assert page.execute_script(
        "return document.activeElement === document.querySelectorAll('#grid tbody "
        "tr')[2].querySelectorAll('td.cell')[3]"
    )
    assert page.execute_script("return document.querySelectorAll('#grid td.cell[tabindex=\"0\"]').length") == 1


def test_tab_reaches_every_control_in_order(page):
    page.execute_script("document.getElementById('play').focus()")
    reached = []
    for _ in range(4):
        press(page, webdriver.Keys.TAB)
        reached.append(page.execute_script("return document.activeElement.id || document.activeElement.tagName"))
    assert reached[:2] == ["step", "search-choice"]


def test_another_seed_can_be_chosen(page, folder):
    find(page, "#search-choice option[value='1']").click()
    assert np.allclose(shown(page), table(folder, 1, -1)[0], atol=6e-4)


def test_play_runs_from_the_first_step_to_the_last(page):
    find(page, "#play").click()
    assert find(page, "#play").text == "Pause"
    end = time.time() + 10
    while find(page, "#play").text == "Pause" and time.time() < end:
        time.sleep(0.1)
    assert find(page, "#step").get_attribute("value") == str(STEPS - 1)


def test_the_pattern_is_copied(page, folder):
    page.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    button = find(page, "button[data-copy]")
    button.click()
    end = time.time() + 5
    while button.text != "Copied" and time.time() < end:
        time.sleep(0.05)
    assert button.text == "Copied"
    text = page.execute_async_script(
        "const done = arguments[0]; navigator.clipboard.readText().then(done, e => done(String(e)))"
    )
    best = read_json(folder / "architectures" / "best.json")
    assert text == best["pattern"]


def test_the_json_is_downloaded(page, folder, tmp_path):
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    link = find(page, "a[download='argmax.json']")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    target, end = tmp_path / "argmax.json", time.time() + 10
    while (
        not (target.exists() and target.stat().st_size) and time.time() < end
    ):  # Chromium makes the file before it fills it
        time.sleep(0.1)
    assert read_json(target) == read_json(folder / "architectures" / "argmax.json")


@pytest.mark.parametrize("width", [360, 800])
def test_a_narrow_page_does_not_scroll_sideways(page, width):
    resize(page, width, 800)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    find(page, "#grid tbody tr:nth-child(2) th button").click()
    assert find(page, "#history-name").text == "Layer 1"


def test_dark_mode_keeps_the_contrast_of_text(page):
    try:
        for mode in ("light", "dark"):
            page.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]}
            )
            assert contrast(page, "body") >= 7 and contrast(page, ".quiet") >= 4.5 and contrast(page, ".badge") >= 4.5
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_printed_page_has_no_controls(page):
    try:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert not any(
            find(page, name).is_displayed() for name in ("#controls", "nav", "button[data-copy]", "a[download]")
        )
        assert find(page, "#verdict").is_displayed() and find(page, "#grid").is_displayed()
        assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_every_picture_can_be_shown(page):
    page.execute_script("document.querySelectorAll('img').forEach(i => { i.loading = 'eager'; })")
    broken = page.execute_async_script(
        "const done = arguments[0]; Promise.allSettled([...document.images].map(i => i.decode()))"
        ".then(all => done(all.filter(one => one.status === 'rejected').length))"
    )
    assert broken == 0


def contrast(driver, selector):
    """WCAG contrast of an element's text against the page."""
    colors = driver.execute_script(
        "return [document.querySelector(arguments[0]), document.body]"
        ".map((one, k) => getComputedStyle(one)[k ? 'backgroundColor' : 'color'])",
        selector,
    )
    lights = []
    for color in colors:
        parts = np.array([float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_the_page_is_a_file_of_its_own(folder, tmp_path, driver):
    moved = Path(shutil.copy(folder / "report.html", tmp_path / "elsewhere.html"))
    driver.get(moved.as_uri())
    assert find(driver, "#grid").is_displayed()
