"""The report's own script without a browser: what sorts and filters its table, run by node on a stand-in page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SHELL = r"""
const cell = (text, n) => ({ textContent: text, dataset: n === undefined ? {} : { n: String(n) } });
const rows = [["0", "b", "0.5"], ["1", "a", ""], ["2", "a", "-Infinity"], ["10", "c", "nan"]].map((texts) => ({
  cells: texts.map((text, at) => cell(text, at === 0 || (at === 2 && text && text !== "nan") ? text : undefined)),
  hidden: false,
}));
const heard = {};
const head = (at) => ({
  attributes: {},
  getAttribute(name) { return this.attributes[name] ?? null; },
  setAttribute(name, value) { this.attributes[name] = value; },
  removeAttribute(name) { delete this.attributes[name]; },
  firstElementChild: { addEventListener: (_, run) => { heard[at] = run; } },
});
let order = rows;
const heads = [head(0), head(1), head(2)];
const search = { value: "", addEventListener: (_, run) => { heard.search = run; } };
const count = {};
const table = {
  tBodies: [{ rows, append: (...found) => { order = found; }, addEventListener() {} }],
  tHead: { rows: [{ cells: heads }] },
};
const box = { checked: true, dataset: { column: "1" }, addEventListener: (_, run) => { heard.box = run; } };
const sheet = {};
globalThis.window = {
  matchMedia: () => ({ matches: false, addEventListener() {} }), addEventListener() {}, location: { hash: "" },
};
globalThis.IntersectionObserver = class { observe() {} };
globalThis.document = {
  documentElement: { dataset: {} },
  querySelectorAll: (asked) => (asked === "#columns input" ? [box] : []),
  addEventListener() {},
  createElement: () => sheet,
  head: { appendChild: (made) => made },
  getElementById: (id) => ({ table, search, count, theme: { addEventListener() {} } })[id],
};
require(process.argv[1]);
const shown = () => order.filter((row) => !row.hidden).map((row) => row.cells[0].textContent).join(" ");
const said = [count.textContent];
for (const column of [0, 0, 1, 2, 2]) {
  heard[column]();
  said.push(shown() + " " + heads[column].getAttribute("aria-sort"));
}
search.value = "A 2"; heard.search(); said.push(shown(), count.textContent);
said.push(sheet.textContent);
box.checked = false; heard.box(); said.push(sheet.textContent);
console.log(JSON.stringify(said));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_table_sorts_and_finds_and_hides_columns() -> None:
    script = Path(__file__).parents[2] / "tunelight" / "reporting" / "assets" / "page.js"
    run = subprocess.run(["node", "-e", SHELL, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    said: list[Any] = json.loads(run.stdout)
    assert said == [
        "4 trials",
        "0 1 2 10 ascending",
        "10 2 1 0 descending",
        "1 2 0 10 ascending",
        "2 0 10 1 ascending",
        "10 0 2 1 descending",
        "2",
        "1 of 4 trials",
        "",
        "#table tr > :nth-child(2) { display: none; }",
    ]
