"use strict";
// What has changed, a table that follows it, and commands; and the page that lists sweeps.
(() => {
  const { told, $, make, compact, elapsed, inlined, sweepAddress } = window.tunelight;
  const ROWS = 300;
  const HOLD_MS = 2000;

  function trouble(text) {
    const place = $("#trouble");
    place.textContent = text;
    place.hidden = !text;
  }

  // Hear what has changed, also after the server was away; a saved page has all there is. A page in the background lets
  // go of its connection, for a browser has six of them for all pages of a server; it is told everything when it comes
  // back.
  function listen(address, take) {
    let source = null;
    let wrong = "";
    let timer = null;
    if (told.saved) {
      take(inlined("state"));
      return;
    }

    function open() {
      clearTimeout(timer);
      if (source || document.hidden) return;
      source = new EventSource(address);
      source.onmessage = (event) => {
        const message = JSON.parse(event.data);
        if (message.error || message.head || message.order) {
          wrong = message.error || "";
          trouble(wrong);
        }
        take(message);
      };
      source.onerror = () => {
        if (!wrong) trouble("The server does not answer. This page tries again.");
        if (source && source.readyState === EventSource.CLOSED) refused();
      };
    }

    function close() {
      if (source) source.close();
      source = null;
    }

    // The server has refused, and says why to whom asks in another way.
    async function refused() {
      close();
      timer = setTimeout(open, 5000);
      const stop = new AbortController();
      try {
        const response = await fetch(address, { signal: stop.signal });
        if (!response.ok) trouble(await response.text());
      } catch { /* it does not answer, as is said already */ }
      stop.abort();
    }

    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
    open();
  }

  async function act(do_, trial, values) {
    const answer = $("#answer");
    answer.dataset.ok = "";
    answer.textContent = "...";
    const body = { sweep: told.sweep, do: do_, trial, arguments: values };
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch("/api/act", { method: "POST", headers, body: JSON.stringify(body) });
      const { ok, said } = response.ok ? await response.json() : { ok: false, said: await response.text() };
      answer.dataset.ok = ok ? "yes" : "no";
      answer.textContent = said.charAt(0).toUpperCase() + said.slice(1);
    } catch (error) {
      answer.dataset.ok = "no";
      answer.textContent = "The server does not answer.";
    }
  }

  // A filter: conditions joined by "and" (lr < 0.01, state = RUNNING), or words that a row must have.
  function condition(text, columns) {
    const tests = [];
    for (const piece of text.split(/\s+and\s+/i).map((part) => part.trim()).filter(Boolean)) {
      const found = /^(.+?)\s*(<=|>=|!=|==|=|<|>)\s*(.*)$/.exec(piece);
      if (!found) {
        const words = piece.toLowerCase().split(/\s+/);
        tests.push((row) => words.every((word) => row.text.includes(word)));
        continue;
      }
      const [, name, sign, wanted] = found;
      const column = columns.find((one) => one.name === name) || columns.find((one) => [".", "/", " "].some((end) => one.name.endsWith(end + name)));
      if (!column) return { error: "There is no column " + name + ". There are: " + columns.map((one) => one.name).join(", ") + "." };
      const number = Number(wanted);
      if (!wanted) return { error: "A value is missing: " + name + " " + sign + " 0.01, say." };
      if (/[<>]/.test(sign) && Number.isNaN(number)) return { error: name + " " + sign + " takes a number, not " + wanted + "." };
      tests.push((row) => {
        const value = column.value(row.data);
        if (value === null || value === undefined || value === "") return sign === "!=";
        const both = typeof value === "number" && !Number.isNaN(number);
        const a = both ? value : String(value).toLowerCase();
        const b = both ? number : wanted.toLowerCase();
        const holds = { "<": both && a < b, ">": both && a > b, "<=": both && a <= b, ">=": both && a >= b, "!=": a !== b };
        return holds[sign] ?? a === b;
      });
    }
    return { test: (row) => tests.every((one) => one(row)) };
  }

  // Give `parent` exactly these children in this order, without touching those that are in their place already.
  function place(parent, children) {
    const wanted = new Set(children);
    for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
    let next = parent.firstElementChild;
    for (const child of children) {
      if (child === next) next = next.nextElementSibling;
      else parent.insertBefore(child, next);
    }
  }

  // A table of rows that come and change. Rows are made of text only, and no more are shown than a browser can carry.
  class LiveTable {
    constructor(table, what, open) {
      Object.assign(this, { table, what, open, rows: new Map(), columns: [], hidden: new Set(), limit: ROWS });
      Object.assign(this, { sorted: null, shown: [], asked: false, note: "", picked: null, held: 0 });
      this.filter = $("#filter");
      this.count = $("#count");
      this.chooser = $("#columns p");
      this.more = $("#more");
      this.filter.addEventListener("input", () => this.ask());
      if (this.more) this.more.addEventListener("click", () => { this.limit *= 4; this.ask(); });
      table.tBodies[0].addEventListener("click", (event) => {
        const line = event.target.closest("tr");
        if (!line || event.target.closest("a, input, label") || String(window.getSelection())) return;
        this.open(line.dataset.key);
      });
      // No row moves away under a pointer that is about to click it: the order waits until the pointer rests or leaves.
      const hold = () => { this.held = performance.now() + HOLD_MS; };
      for (const event of ["pointermove", "pointerdown"]) table.tBodies[0].addEventListener(event, hold);
      table.tBodies[0].addEventListener("pointerleave", () => { this.held = 0; this.ask(); });
    }

    shape(columns) {
      const names = columns.map((column) => column.name).join("\n");
      if (names === this.names) return;
      this.names = names;
      this.columns = columns;
      const heads = columns.map((column) => {
        const head = make("th", column.soft ? { class: "soft" } : {}, make("button", { type: "button", text: column.name }));
        head.firstChild.addEventListener("click", () => {
          const up = this.sorted && this.sorted.name === column.name ? !this.sorted.up : true;
          this.sorted = { name: column.name, up };
          this.held = 0;
          this.ask();
        });
        return head;
      });
      this.table.tHead.replaceChildren(make("tr", {}, ...heads));
      this.choose();
      for (const row of this.rows.values()) this.draw(row);
      this.ask();
    }

    // Which columns are shown; the choice stays in this browser.
    choose() {
      if (!this.chooser) return;
      const key = "tunelight columns " + this.what;
      const stored = (() => { try { return JSON.parse(localStorage.getItem(key)) || []; } catch { return []; } })();
      this.hidden = new Set(stored);
      this.chooser.replaceChildren(...this.columns.slice(1).map((column) => {
        const box = make("input", { type: "checkbox" });
        box.checked = !this.hidden.has(column.name);
        box.addEventListener("change", () => {
          if (box.checked) this.hidden.delete(column.name);
          else this.hidden.add(column.name);
          try { localStorage.setItem(key, JSON.stringify([...this.hidden])); } catch { /* it holds for this page */ }
          this.hide();
        });
        return make("label", {}, box, " " + column.name);
      }));
      this.sheet = this.sheet || document.head.appendChild(document.createElement("style"));
      this.hide();
    }

    hide() {
      const numbers = this.columns.flatMap((column, n) => (this.hidden.has(column.name) ? [n + 1] : []));
      this.sheet.textContent = numbers.map((n) => `#list tr > :nth-child(${n}) { display: none; }`).join("\n");
    }

    set(key, data) {
      const row = this.rows.get(key) || { key, line: make("tr", { "data-key": key }) };
      row.data = data;
      this.rows.set(key, row);
      this.draw(row);
      this.ask();
    }

    drop(key) {
      this.rows.delete(key);
      this.ask();
    }

    clear() {
      this.rows.clear();
      this.ask();
    }

    // Show only the rows of these keys; null shows all. The table keeps its height, so that what is below, where a
    // reader selects, stays in its place.
    pick(keys) {
      const box = this.table.parentNode;
      box.style.minHeight = keys ? box.style.minHeight || box.offsetHeight + "px" : "";
      this.picked = keys;
      this.ask();
    }

    // A cell that says the same stays as it is: a link may be pressed or have the focus, a text may be selected.
    draw(row) {
      const cells = this.columns.map((column, n) => {
        const value = column.value(row.data);
        const shown = column.show ? column.show(row.data) : compact(value);
        const cell = make("td", typeof value === "number" ? { class: "n" } : {}, shown);
        const old = row.line.cells[n];
        return old && old.isEqualNode(cell) ? old : cell;
      });
      place(row.line, cells);
      row.text = cells.map((cell) => cell.textContent).join(" ").toLowerCase();
    }

    ask() {
      if (this.asked) return;
      this.asked = true;
      requestAnimationFrame(() => { this.asked = false; this.arrange(); });
    }

    arrange() {
      const { test, error } = condition(this.filter.value, this.columns);
      this.filter.classList.toggle("bad", Boolean(error));
      let found = [...this.rows.values()];
      if (this.picked) found = found.filter((row) => this.picked.has(row.key));
      if (test) found = found.filter(test);
      const column = this.sorted && this.columns.find((one) => one.name === this.sorted.name);
      if (column) {
        const keyed = found.map((row, n) => [column.value(row.data), n, row]);
        const none = (value) => value === null || value === undefined || value === "";
        keyed.sort(([a, i], [b, j]) => {
          if (none(a) || none(b)) return none(a) - none(b) || i - j;
          if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
          const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b));
          return (this.sorted.up ? order : -order) || i - j;
        });
        found = keyed.map(([, , row]) => row);
      }
      const wait = this.held - performance.now();
      if (wait > 0) {
        const places = new Map(this.shown.map((line, n) => [line, n]));
        const at = (row) => places.get(row.line) ?? places.size;
        found.sort((a, b) => at(a) - at(b));
        setTimeout(() => this.ask(), wait + 1);
      }
      [...this.table.tHead.rows[0]?.cells || []].forEach((head, n) => {
        const own = column && this.columns[n] === column;
        if (own) head.setAttribute("aria-sort", this.sorted.up ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      });
      const lines = found.slice(0, this.limit).map((row) => row.line);
      if (lines.length !== this.shown.length || lines.some((line, n) => line !== this.shown[n])) {
        this.shown = lines;
        place(this.table.tBodies[0], lines);
      }
      if (this.more) this.more.hidden = found.length <= lines.length;
      const all = this.rows.size + " " + this.what + (this.rows.size === 1 ? "" : "s");
      const cut = lines.length < found.length ? ", the first " + lines.length + " are shown" : "";
      const part = found.length === this.rows.size ? all : found.length + " of " + all;
      const picked = this.picked ? ", selected in the parallel coordinates" : "";
      this.count.textContent = (error || part + picked + cut) + this.note;
    }
  }

  function state(name, colour) {
    return make("span", {}, make("span", { class: "state", colour }), name);
  }

  Object.assign(window.tunelight, { listen, act, LiveTable, state, trouble });
  if (document.body.dataset.page === "sweeps") sweeps();

  function sweeps() {
    $("#place").textContent = told.place;
    const colours = { running: told.colours.RUNNING, paused: told.colours.PAUSED, finished: told.colours.FINISHED };
    const table = new LiveTable($("#list"), "sweep", (name) => { window.location.href = sweepAddress(name); });
    let order = new Map();

    const ended = (row) => {
      const counts = row.counts || {};
      return row.trials - (counts.PENDING || 0) - (counts.RUNNING || 0) - (counts.PAUSED || 0);
    };
    table.shape([
      { name: "sweep", value: (row) => row.name, show: (row) => make("a", { href: sweepAddress(row.name), text: row.name }) },
      { name: "state", value: (row) => row.state, show: (row) => state(row.state, colours[row.state] || told.colours.INTERRUPTED) },
      {
        name: "trials",
        value: (row) => row.trials,
        show: (row) => (row.trials === undefined ? "" : ended(row) + (row.total ? " of " + row.total : "")),
      },
      { name: "metric", value: (row) => row.metric },
      { name: "best", value: (row) => (row.best ? row.best.value : null) },
      { name: "time", value: (row) => row.seconds, show: (row) => (row.seconds === undefined ? "" : elapsed(row.seconds)) },
      {
        name: "written",
        value: (row) => row.updated,
        show: (row) => (row.updated ? new Date(row.updated * 1000).toLocaleString() : ""),
      },
      { name: "error", value: (row) => row.error || "" },
    ]);
    listen("/api/sweeps", (message) => {
      if (!message.rows) return;
      for (const row of message.rows) table.set(row.name, row);
      for (const name of message.gone) table.drop(name);
      order = new Map(message.order.map((name, n) => [name, n]));
      for (const name of [...table.rows.keys()]) if (!order.has(name)) table.drop(name);
      table.rows = new Map([...table.rows].sort(([a], [b]) => order.get(a) - order.get(b)));
      table.note = message.left ? "; " + message.left + " are being read" : "";
      if (message.error) trouble(message.error);
      table.ask();
    });
  }
})();
