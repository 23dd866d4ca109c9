"""The page in a real browser: nothing fetched, nothing amiss, and it zooms.

Screenshots are kept in ``work_dirs/report_screenshots``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import open_browser
from fakes.reported import make_full_run
from mmgpu_hooks.show.html.page import render_page
from mmgpu_hooks.show.pictures.timeline import fold_timelines

SCREENSHOTS = Path(__file__).resolve().parents[2] / 'work_dirs' / 'report_screenshots'
DESKTOP = {'width': 1280, 'height': 900}
PHONE = {'width': 390, 'height': 844}


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        if isinstance(browser, str):
            pytest.skip(browser)
        yield browser


@pytest.fixture(scope='module')
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('report')
    for name, runs in (
        ('one', [make_full_run()]),
        ('two', [make_full_run('first'), make_full_run('second', 0.2)]),
    ):
        page = render_page(runs, fold_timelines(runs))
        (folder / f'{name}.html').write_text(page)
    return folder / 'one.html'


class Opened:
    """A page, and all that it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any):
        self.page = browser.new_context(**options).new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on('console', lambda message: self.said.append(message.text))
        self.page.on('pageerror', lambda error: self.said.append(str(error)))
        self.page.on('request', lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.url = path.as_uri()

    def view(self) -> list[float]:
        """The moments between which the first picture over time shows the run."""
        words = self.page.locator('[data-plot]').first.get_attribute('data-view')
        return [float(word) for word in (words or '').split()]

    def shoot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f'{name}.png', full_page=True)


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    opened = Opened(browser, report, viewport=DESKTOP)
    yield opened
    # whatever was done with it
    assert opened.said == []
    assert opened.asked == [opened.url]
    opened.page.context.close()


@pytest.mark.parametrize(
    ('name', 'viewport', 'scheme'),
    [
        ('one', DESKTOP, 'light'),
        ('one', PHONE, 'dark'),
        ('two', DESKTOP, 'dark'),
        ('two', PHONE, 'light'),
    ],
    ids=['one-desktop', 'one-phone', 'two-desktop', 'two-phone'],
)
def test_it_opens_clean_and_accessible(browser, report, name, viewport, scheme):
    from axe_playwright_python.sync_playwright import Axe

    path = report.with_name(f'{name}.html')
    opened = Opened(browser, path, viewport=viewport, color_scheme=scheme)
    page = opened.page
    verdict = page.get_by_role('heading', level=1)
    assert verdict.is_visible()
    box = verdict.bounding_box()
    assert box['y'] + box['height'] < viewport['height']
    # nothing sticks out to the side
    assert page.evaluate('document.documentElement.scrollWidth') == viewport['width']
    width = 'wide' if (name, viewport) == ('one', DESKTOP) else 'medium'
    shown = page.locator('#memory svg:visible')
    assert shown.count() == (2 if name == 'two' else 1)
    expected = 'narrow' if viewport is PHONE else width
    assert expected in shown.first.get_attribute('class')
    page.evaluate('document.querySelectorAll("details").forEach((d) => d.open = true)')
    opened.shoot(f'{name}-{"phone" if viewport is PHONE else "desktop"}-{scheme}')
    found = Axe().run(page).response['violations']
    assert [(one['id'], one['nodes'][0]['html'][:90]) for one in found] == []
    assert opened.said == []
    assert opened.asked == [opened.url]
    page.context.close()


def test_it_is_zoomed_with_the_mouse(opened):
    page = opened.page
    plot = page.locator('[data-plot]').first
    plot.scroll_into_view_if_needed()
    box = plot.locator('svg:visible').bounding_box()
    middle = box['y'] + box['height'] / 2
    whole = page.locator('[data-layer=moving]:visible').first.inner_html()
    page.mouse.move(box['x'] + 0.4 * box['width'], middle)
    page.mouse.down()
    page.mouse.move(box['x'] + 0.6 * box['width'], middle, steps=4)
    page.mouse.up()
    low, high = opened.view()
    assert 0.15 < (high - low) / 60 < 0.3
    assert page.locator('[data-layer=moving]:visible').first.inner_html() != whole
    assert 'iteration' in page.locator('.reading').first.inner_text()
    opened.shoot('zoomed')
    box = plot.locator('svg:visible').bounding_box()
    middle = box['y'] + box['height'] / 2
    page.mouse.dblclick(box['x'] + 0.5 * box['width'], middle)
    assert opened.view()[0] == 0
    assert page.locator('[data-layer=moving]:visible path').count() > 5


def test_it_is_zoomed_with_the_wheel_while_ctrl_is_held(opened):
    page = opened.page
    plot = page.locator('[data-plot]').first
    plot.scroll_into_view_if_needed()
    box = plot.locator('svg:visible').bounding_box()
    page.mouse.move(box['x'] + box['width'] / 2, box['y'] + box['height'] / 2)
    page.keyboard.down('Control')
    page.mouse.wheel(0, -200)
    page.wait_for_function('document.querySelector("[data-plot]").dataset.view')
    low, high = opened.view()
    assert high - low == pytest.approx(24.8, rel=0.05)
    page.keyboard.up('Control')


def test_zoomed_in_the_axis_fits_what_is_shown(browser, report):
    opened = Opened(browser, report.with_name('two.html'), viewport=DESKTOP)
    page = opened.page
    layer = page.locator('[data-layer=moving]:visible').first
    # the other run waits for 200 ms
    assert layer.get_by_text('200', exact=True).count() == 2
    page.get_by_role('button', name='Zoom in').first.click()
    assert layer.get_by_text('200', exact=True).count() == 1
    assert layer.get_by_text('100', exact=True).count() >= 2
    page.context.close()


def test_it_is_zoomed_with_the_keyboard(opened):
    page = opened.page
    page.locator('[data-plot]').first.focus()
    page.keyboard.press('+')
    assert opened.view() == pytest.approx([12.4, 37.2], rel=0.1)
    assert 'Shown: 0:' in page.get_by_role('status').first.inner_text()
    page.keyboard.press('Shift+ArrowRight')
    later = opened.view()
    assert later[0] > 15
    page.keyboard.press('ArrowLeft')
    assert 'Data wait 0.100 s' in page.get_by_role('status').first.inner_text()
    page.keyboard.press('0')
    assert opened.view()[0] == 0


def test_it_is_zoomed_with_buttons_that_the_keyboard_reaches(opened):
    page = opened.page
    zoom_in = page.get_by_role('button', name='Zoom in').first
    zoom_in.focus()
    page.keyboard.press('Enter')
    low, high = opened.view()
    assert high - low < 30
    page.get_by_role('button', name='Whole run').first.click()
    assert opened.view()[0] == 0
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.dataset.plot') == '0'


def test_it_is_zoomed_with_two_fingers(browser, report):
    opened = Opened(browser, report, viewport=PHONE, has_touch=True, is_mobile=True)
    page = opened.page
    plot = page.locator('[data-plot]').first
    plot.scroll_into_view_if_needed()
    box = plot.locator('svg:visible').bounding_box()
    fingers = page.context.new_cdp_session(page)
    y = box['y'] + box['height'] / 2

    def touch(kind: str, *xs: float) -> None:
        points = [{'x': box['x'] + x, 'y': y, 'id': n} for n, x in enumerate(xs)]
        fingers.send('Input.dispatchTouchEvent', {'type': kind, 'touchPoints': points})

    touch('touchStart', 150, 200)
    for more in range(10, 70, 10):
        touch('touchMove', 150 - more, 200 + more)
    touch('touchEnd')
    low, high = opened.view()
    assert 0 < high - low < 35
    assert opened.said == []
    page.context.close()


@pytest.mark.parametrize('name', ['one', 'two'])
def test_the_script_draws_what_python_drew(browser, report, name):
    """Zooming in and out again gives the picture that the page came with."""
    path = report.with_name(f'{name}.html')
    opened = Opened(browser, path, viewport=DESKTOP)
    layer = opened.page.locator('[data-layer=moving]:visible').first
    curves = 'path[stroke-width="1.6"]'
    drawn = layer.locator(curves).evaluate_all('all => all.map(one => one.outerHTML)')
    page = opened.page
    page.get_by_role('button', name='Zoom in').first.click()
    page.get_by_role('button', name='Whole run').first.click()
    again = layer.locator(curves).evaluate_all('all => all.map(one => one.outerHTML)')
    assert len(drawn) == 3
    assert [points_of(one) for one in again] == [points_of(one) for one in drawn]
    opened.page.context.close()


def points_of(path: str) -> list[int]:
    """Coordinates in whole pixels: figures are packed to hundredths of a per cent."""
    data = path.split(' d="')[1].split('"')[0]
    words = data.replace('M', '').replace('L', ',').split(',')
    return [round(float(word) / 2) for word in words]


def test_it_can_be_read_without_a_script(browser, report):
    opened = Opened(browser, report, viewport=DESKTOP, java_script_enabled=False)
    page = opened.page
    assert page.locator('#over-time svg:visible path').count() > 5
    assert not page.get_by_role('button', name='Zoom in').is_visible()
    assert opened.said == []
    page.context.close()


def test_it_is_printed_with_its_tables(opened):
    page = opened.page
    page.evaluate('dispatchEvent(new Event("beforeprint"))')
    assert page.locator('details:not([open])').count() == 0
    page.evaluate('dispatchEvent(new Event("afterprint"))')
    assert page.locator('details[open]').count() == 0
    page.emulate_media(media='print')
    assert not page.locator('nav').is_visible()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.pdf(path=SCREENSHOTS / 'printed.pdf', format='A4')
