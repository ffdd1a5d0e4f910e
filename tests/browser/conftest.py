"""Debian's Chromium, driven by Playwright; it reaches this machine only."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, async_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@pytest.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", headless=True, args=ARGUMENTS
        )
        yield browser
        await browser.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncGenerator[Page]:
    """In a profile of its own. A test fails when the page has complained."""
    complaints: list[str] = []
    async with _page(browser, complaints) as page:
        yield page
    assert complaints == []


@asynccontextmanager
async def _page(browser: Browser, complaints: list[str]) -> AsyncGenerator[Page]:
    context = await browser.new_context()
    page = await context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    await context.close()
