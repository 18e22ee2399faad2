"""The report in a real browser, and the same numbers as Markdown."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_results import all_results, bench_result, parity_result

from vllm_dspark.bench.report import render_html
from vllm_dspark.bench.table import fill, render_markdown
from vllm_dspark.errors import SettingsError

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; `make test` installs it where it may."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def show(browser: Any, path: Path, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(path.as_uri())


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_a_browser_draws_all_plots_without_errors_or_overflow(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(all_results()))
    show(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure > svg')].map(one => {"
        "const box = one.getBoundingClientRect(), ink = one.getBBox();"
        "return [box.width, box.height, ink.x, ink.x + ink.width]})"
    )
    assert len(sizes) >= 12
    for box_width, box_height, left, right in sizes:
        assert box_width > 200 and box_height > 20
        assert left >= 0 and right <= 360, "something is drawn outside its chart"


def test_the_page_needs_nothing_else() -> None:
    page = render_html(all_results())
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page


def test_losing_cells_and_refusals_are_shown_as_such() -> None:
    page, text = render_html([bench_result()]), render_markdown([bench_result()])
    assert '<td class="bad">slower</td>' in page
    assert "refused: DSpark async: 2 outputs differ" in page
    assert "| **slower** |" in text
    assert "refused: DSpark async: 2 outputs differ" in text


def test_absolute_rates_and_the_strongest_outside_engine_stand_beside_a_ratio() -> None:
    (row,) = [line for line in render_markdown([bench_result()]).splitlines() if "1.60x" in line]
    assert "48.0 / 30.0" in row
    assert "llama.cpp 75.0" in row


def test_figures_of_a_disturbed_machine_carry_a_warning() -> None:
    disturbed = {**bench_result(), "other_cores": 1.4}
    assert "do not quote" in render_html([disturbed])
    assert "do not quote" in render_markdown([disturbed])


def test_a_failed_parity_is_on_top_of_the_page() -> None:
    page = render_html([parity_result(passed=False)])
    assert page.index("Parity failed") < page.index("<section>")
    assert "3 KV blocks were not given back" in page


def test_other_json_is_refused_with_a_sentence() -> None:
    with pytest.raises(SettingsError, match="unknown: give files"):
        render_html([{"kind": "soup"}])


def test_tables_land_between_the_marks_of_a_document_and_nowhere_else() -> None:
    document = (
        "Before\n<!-- results: serve -->\nold\n<!-- end of results -->\nBetween\n"
        "<!-- results: parity -->\nkept\n<!-- end of results -->\nAfter\n"
    )
    filled = fill(document, [bench_result("serve")])
    assert "old" not in filled and "| **slower** |" in filled
    assert filled.startswith("Before\n<!-- results: serve -->\n")
    assert filled.endswith("<!-- results: parity -->\nkept\n<!-- end of results -->\nAfter\n")
    assert fill(filled, [bench_result("serve")]) == filled
