"use strict";
// The pages of one sweep and of one trial; live ones, and those that a report holds.
(() => {
  const { told, $, make, compact, elapsed, inlined, trialAddress, openTrial, listen, act, LiveTable, state } = window.tunelight;
  const { card, pairs, table: tableOf, axisOf, parallelAxis, figure, show, fill, repaint, forget, BEST } = window.tunelight;
  const kind = document.body.dataset.page;
  const base = told.sweep === undefined ? "" : "/api/sweep/" + encodeURIComponent(told.sweep);
  const live = new Set(["RUNNING", "STARTING", "PAUSED"]);
  const MOST_LOG = 512 * 1024;
  const CURVES_MS = 1500;
  const MOST_AXES = 14;
  const WIDE = 15; // how often the least value the highest must be for a logarithmic axis
  if (kind === "sweep") sweep();
  if (kind === "trial") trial();

  function steer(trialOf) {
    const wheel = $("#wheel");
    if (told.readOnly) {
      wheel.remove();
      return;
    }
    for (const button of wheel.querySelectorAll("button[data-do]")) {
      button.addEventListener("click", () => {
        if (!button.dataset.sure || window.confirm(button.dataset.sure)) act(button.dataset.do, trialOf());
      });
    }
    for (const form of wheel.querySelectorAll("form")) {
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (form.dataset.form === "enqueue") {
          act("enqueue", null, { config: form.elements.config.value });
          return;
        }
        if (form.dataset.form === "branch") {
          act("branch", trialOf(), { config: form.elements.config.value });
          return;
        }
        const given = {};
        for (const input of form.querySelectorAll("input")) {
          const text = input.value.trim();
          if (text) given[input.name] = /^\d+$/.test(text) ? Number(text) : text === "all" ? null : text;
        }
        act(form.dataset.form, null, given);
      });
    }
  }

  // How long a trial has run; ``ahead``: how much this machine's clock is ahead of the server's.
  function timeOf(row, head, ahead) {
    if (!row.since || told.saved) return row.seconds;
    const until = head.driven === false ? head.updated : Date.now() / 1000 - ahead;
    return row.seconds + Math.max(0, until - row.since);
  }

  // The state of a trial; one that ran when its sweep's driver was killed runs no more.
  function stateOf(row, head) {
    return head.state === "cut off" && ["RUNNING", "STARTING"].includes(row.state) ? "INTERRUPTED" : row.state;
  }

  function trialCards(row, head, ahead) {
    const best = row.value === null ? [] : [card("best " + head.metric, compact(row.value))];
    const facts = [card(head.unit + "s", compact(row.at)), card("time", elapsed(timeOf(row, head, ahead))), card("workers", compact(row.workers))];
    return [card("state", stateOf(row, head), told.colours[stateOf(row, head)]), ...best, ...facts, card("sweep", head.state)];
  }

  function sweep() {
    const trials = new Map();
    const curves = new Map();
    const [canvas, log, under, parallel] = [$("#canvas"), $("#log"), $("#curves-note"), $("#parallel")];
    let head = null;
    let behind = 0;
    const table = new LiveTable($("#list"), "trial", openTrial);
    const time = (row) => timeOf(row, head, behind);
    const link = (index, text) => make("a", { href: trialAddress(index), text });
    const lines = {
      pick: (picked) => table.pick(picked && new Set([...picked].map(String))),
      label: (index) => {
        const row = trials.get(index);
        const values = row ? Object.entries(row.config).map(([key, value]) => key + "=" + compact(value)).join(", ") : "";
        return "trial " + index + ": " + (row ? head.metric + " " + compact(row.value) + "; " + values : "");
      },
    };
    steer(() => null);

    const SHOWN = {
      trial: (row) => link(row.i, row.i),
      state: (row) => state(stateOf(row, head), told.colours[stateOf(row, head)]),
      time: (row) => elapsed(time(row)),
    };

    function columns() {
        return head.columns.map(({ name, path, kind: of }) => {
        const found = (row) => path.reduce((value, key) => value?.[key] ?? null, row);
        return {
          name,
          value: of === "time" ? (row) => Math.round(time(row)) : found,
          show: SHOWN[of],
          parameter: of === "parameter",
          soft: path[0] === "last" || ["at", "seconds", "workers", "why"].includes(path[0]),
        };
      });
    }

    let best = "";
    function whole() {
      const total = head.total ? head.trials + " of " + head.total : String(head.trials);
      const again = head.repetitions ? [card("repetitions", head.repetitions)] : [];
      const states = Object.entries(head.counts).map(([name, count]) => card(name.toLowerCase(), count, told.colours[name]));
      $("#cards").replaceChildren(card("sweep", head.state), card("trials", total), ...again, ...states, card("time", elapsed(head.seconds)));
      const now = JSON.stringify(head.best);
      if (head.best && now !== best) {
        best = now;
        const { trial: index, value, when, among, config, report } = head.best;
        $("#best").replaceChildren(
          make("div", { class: "value" }, make("span", { text: "best " + head.metric }), make("b", { text: compact(value) }), make("span", {}, "by ", link(index, "trial " + index), " at " + when), make("span", { text: "the " + among })),
          pairs("configuration", config), pairs("its report", report));
      }
      const said = head.read < 1 ? "The record is being read: " + Math.round(head.read * 100) + " %." : "";
      $("#standing").textContent = head.state === "cut off" ? "Its driver has died, or was killed: tunelight resume " + head.name : said;
      const wheel = $("#wheel");
      if (wheel) {
        wheel.hidden = !head.driven;
        $("[name=num_samples]", wheel).placeholder = head.total === null ? "" : head.total;
      }
      const events = head.events.map(([at, text]) => make("li", {}, make("time", { text: new Date(at * 1000).toLocaleTimeString() }), text));
      $("#events ul").replaceChildren(...events);
      $("#rungs").hidden = !head.rungs.length;
      const rungs = head.rungs.map((rung) => [rung.at, rung.reached, rung.passed, rung.stopped]);
      $("#rungs div").replaceChildren(tableOf(["report", "trials came there", "went past", "stopped there"], rungs));
    }

    // All curves as one trace for each state, those of trials that run above the others and the best on top.
    function paint() {
      const groups = new Map();
      for (const [index, [xs, ys]] of curves) {
        const row = trials.get(index);
        const isBest = head.best && head.best.trial === index;
        const name = isBest ? "best: trial " + index : row ? row.state : "PENDING";
        const rank = isBest ? 2 : live.has(name) ? 1 : 0;
        if (!groups.has(name)) groups.set(name, { rank, name, count: 0, x: [], y: [], customdata: [] });
        const group = groups.get(name);
        group.count += 1;
        group.x.push(...xs, null);
        group.y.push(...ys, null);
        group.customdata.push(...xs.map(() => index), null);
      }
      const order = [...groups.values()].sort((a, b) => a.rank - b.rank);
      const values = order.flatMap((group) => group.y.filter((value) => value !== null)).sort((a, b) => a - b);
      if (log.dataset.chosen === undefined) log.checked = values[0] > 0 && values[Math.floor(values.length * 0.98)] >= WIDE * values[0];
      const mode = values.length < 3000 ? "lines+markers" : "lines";
      const data = order.map(({ rank, name, count, x, y, customdata }) => {
        const shown = rank === 2 ? name : name.toLowerCase() + ": " + count;
        const colour = rank === 2 ? BEST : told.colours[name];
        const line = { color: colour, width: [1.1, 1.8, 3][rank] };
        const hovertemplate = "trial %{customdata}, " + head.unit + " %{x}: %{y:.5g}<extra>" + (rank === 2 ? "best" : name.toLowerCase()) + "</extra>";
        return { type: "scatter", mode, x, y, customdata, line, marker: { size: rank === 2 ? 5 : 3 }, opacity: rank ? 1 : 0.7, name: shown, hovertemplate };
      });
      const yaxis = { ...axisOf(log.checked, values[0], values.at(-1)), title: { text: head.metric } };
      const legend = { orientation: "h", x: 0, y: -0.16, yanchor: "top" };
      figure(canvas, { data, layout: { height: 420, margin: { l: 60, r: 12, t: 10, b: 60 }, xaxis: { title: { text: head.unit, standoff: 8 } }, yaxis, legend, showlegend: true } });
      const part = total > curves.size ? "The best " + curves.size + " of " + total + " trials, and those that run. " : "";
      under.textContent = curves.size ? part + "A click on a curve opens its trial." : "No trial has reported a number yet.";
      canvas.hidden = !curves.size;
    }

    // Configurations as lines through the hyperparameters that vary, to the metric.
    function paintParallel() {
      const rows = [...trials.values()].filter((row) => typeof row.value === "number");
      const varied = table.columns.filter((column) => column.parameter && new Set(rows.map(column.value)).size > 1);
      parallel.hidden = !varied.length;
      const place = $(".plot", parallel);
      if (!varied.length || place.matches(":active")) return; // a reader selects
      const before = place.data?.[0].dimensions ?? [];
      const axis = (name, value) => parallelAxis(name, rows.map(value), before.find((one) => one.label === name), head.even[name]);
      const metric = axis(head.metric, (row) => row.value);
      const line = { color: metric.values, colorscale: "Viridis", reversescale: head.mode === "min" };
      const dimensions = [...varied.slice(0, MOST_AXES).map(({ name, value }) => axis(name, value)), metric];
      const data = [{ type: "parcoords", customdata: rows.map((row) => row.i), dimensions, line, labelangle: -15 }];
      figure(place, { data, layout: { height: 420, margin: { l: 90, r: 60, t: 70, b: 20 } } }, lines);
    }

    let total = 0;
    let waiting = null;
    let painted = 0;
    function paintSoon() {
      const wait = told.saved ? 0 : Math.max(0, painted + CURVES_MS - Date.now());
      waiting = waiting || setTimeout(() => { waiting = null; painted = Date.now(); paint(); paintParallel(); }, wait);
    }
    log.addEventListener("change", () => { log.dataset.chosen = "yes"; paint(); });

    listen(base + "/events", (message) => {
      if (message.anew) {
        trials.clear();
        curves.clear();
        table.clear();
        return;
      }
      if (message.now) behind = Date.now() / 1000 - message.now;
      if (message.head) {
        if (!head) table.sorted = { name: "best " + message.head.metric, up: message.head.mode === "min" };
        head = message.head;
        table.shape(columns());
      }
      if (!head) return;
      for (const row of message.rows || []) {
        trials.set(row.i, row);
        table.set(String(row.i), row);
      }
      for (const [index, points] of Object.entries(message.curves || {})) curves.set(Number(index), points);
      for (const index of message.gone || []) curves.delete(index);
      for (const index of trials.keys()) {
        if (index >= head.more) continue;
        trials.delete(index);
        table.drop(String(index));
      }
      if (message.of !== undefined) total = message.of;
      if (message.head) {
        whole();
        table.note = head.more ? "; " + head.more + " earlier ones are left out" : "";
        $("#curves-title").textContent = "Learning curves: " + head.metric;
      }
      paintSoon();
    });

    for (const [name, heading] of Object.entries(told.parts)) {
      const place = name === "about" ? $("#about") : make("section", { class: "part", "data-part": name, id: name });
      if (name === "about") place.dataset.part = name;
      else $("#figures").append(place);
      if (!told.saved) {
        if (name !== "about") place.classList.add("awaited");
        fill(place, { title: name === "about" ? "" : heading, blocks: [{ text: "It is drawn when it comes into view." }] });
        continue;
      }
      const section = inlined("part-" + name);
      if (section) fill(place, section);
      else place.remove();
    }
    if (told.saved) {
      route();
      return;
    }
    setInterval(() => {
      for (const row of trials.values()) if (row.since) table.set(String(row.i), row);
    }, 2000);

    // Parts in view are fetched one after another, and again once the sweep has gone on.
    const drawn = new Map();
    const seen = new Set();
    let drawing = false;
    async function fetchParts() {
      if (drawing || document.hidden || !head) return;
      drawing = true;
      for (const place of [...seen]) {
        const last = drawn.get(place);
        const updated = head.updated;
        if (last && (last.updated === updated || Date.now() - last.at < 12000)) continue;
        try {
          const response = await fetch(base + "/part/" + place.dataset.part);
          const section = response.ok ? await response.json() : { title: "", blocks: [{ text: await response.text() }] };
          place.hidden = !section;
          place.classList.remove("awaited");
          if (section) fill(place, section);
          const current = response.ok && response.headers.get("x-current") !== "no";
          drawn.set(place, { at: Date.now(), updated: current ? updated : null });
        } catch { /* the server does not answer: it is asked again */ }
      }
      drawing = false;
    }
    const view = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) seen.add(entry.target);
        else seen.delete(entry.target);
      }
      fetchParts();
    }, { rootMargin: "300px" });
    document.querySelectorAll("[data-part]").forEach((place) => view.observe(place));
    setInterval(fetchParts, 2000);

    // A report's trial is shown in place of the sweep, with the markup of its live page.
    function route() {
      const main = $("main");
      const [own, page] = [[...main.childNodes], $("#trial-page").content];
      let from = null; // where the sweep was scrolled to, while a trial is shown

      function go() {
        const index = Number(/^#trial-(\d+)$/.exec(window.location.hash)?.[1] ?? "-1");
        const row = trials.get(index);
        const old = from === null ? [] : [...main.querySelectorAll(".plot")];
        if (row) {
          if (from === null) from = window.scrollY;
          main.replaceChildren(page.cloneNode(true));
          $("#wheel").remove();
          $("#log").remove();
          $("#cards").replaceChildren(...trialCards(row, head, 0));
          const brief = [{ head: "Trial " + index }, { title: "configuration", pairs: Object.entries(row.config) }, { text: told.which }];
          const back = { link: { text: "Back to all trials", href: "#trials" } };
          show($("#trial"), [back, ...(inlined("trial-" + index) || brief)]);
          window.scrollTo(0, 0);
        } else if (from !== null) {
          main.replaceChildren(...own);
          repaint();
          const { hash } = window.location;
          const target = hash && hash !== "#trials" && document.getElementById(hash.slice(1));
          if (target) target.scrollIntoView();
          else window.scrollTo(0, from);
          from = null;
        }
        forget(old);
      }

      window.addEventListener("hashchange", go);
      go();
    }
  }

  function trial() {
    let row = null;
    let head = {};
    let shown = "";
    let asked = 0;
    let at = null;
    let behind = 0;
    steer(() => told.trial);

    function cards() {
      $("#cards").replaceChildren(...trialCards(row, head, behind));
      const wheel = $("#wheel");
      if (!wheel) return;
      wheel.hidden = !head.driven;
      $("[data-do=stop]", wheel).hidden = !live.has(row.state) && row.state !== "PENDING";
      for (const config of wheel.querySelectorAll("[name=config]")) {
        if (!config.value) config.value = row.variant;
      }
    }

    // Asked for again once it has changed, and not more often than is easy for the server.
    async function body() {
      const now = JSON.stringify([row && row.state, row && row.at, row && row.value, row && row.seconds]);
      if (!row || now === shown || Date.now() < asked || document.hidden) return;
      const began = Date.now();
      asked = Infinity;
      try {
        const response = await fetch(base + "/trial/" + told.trial);
        show($("#trial"), response.ok ? await response.json() : [{ text: await response.text() }]);
        if (response.ok) shown = now;
      } catch { /* the server does not answer: it is asked again */ }
      asked = Date.now() + Math.max(2000, 10 * (Date.now() - began));
    }

    let reading = false;
    async function log() {
      if (reading) return;
      reading = true;
      try {
        await more();
      } catch { /* the server does not answer: it is asked again */ }
      reading = false;
    }

    async function more() {
      const pre = $("#log pre");
      if (document.hidden || (at !== null && row && !live.has(row.state) && pre.dataset.whole)) return;
      const response = await fetch(base + "/trial/" + told.trial + "/log" + (at === null ? "" : "?from=" + at));
      if (!response.ok) return;
      const part = await response.json();
      const bottom = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
      if (at === null && part.from > 0) pre.dataset.cut = part.from;
      if (at !== null && part.from > at) pre.append("... (" + (part.from - at) + " bytes are left out) ...\n");
      if (part.text) pre.append(part.text);
      if (pre.textContent.length > MOST_LOG) {
        pre.textContent = pre.textContent.slice(-MOST_LOG / 2);
        pre.dataset.cut = part.to - MOST_LOG / 2;
      }
      at = part.to;
      const cut = pre.dataset.cut ? "Its beginning is left out; the file has " + part.size + " bytes." : "";
      $("#log .note").textContent = part.note || cut;
      pre.dataset.whole = at >= part.size && row && !live.has(row.state) ? "yes" : "";
      if (bottom) pre.scrollTop = pre.scrollHeight;
    }

    listen(base + "/events?trial=" + told.trial, (message) => {
      if (message.now) behind = Date.now() / 1000 - message.now;
      if (message.head) head = message.head;
      for (const one of message.rows || []) if (one.i === told.trial) row = one;
      if (row && message.head) cards();
      body();
    });
    setInterval(body, 2000);
    setInterval(() => { if (row && row.since) cards(); }, 2000);
    setInterval(log, 1000);
    log();
  }
})();
