"use strict";
// The pages of one sweep, of one trial, and of a comparison.
(() => {
  const { told, $, make, compact, elapsed, listen, act, LiveTable, state, isDark } = window.tunelight;
  const kind = document.body.dataset.page;
  const base = told.sweep === undefined ? "" : "/api/sweep/" + encodeURIComponent(told.sweep);
  const live = new Set(["RUNNING", "STARTING", "PAUSED"]);
  const MOST_LOG = 512 * 1024;
  // What a worker used at most, and its GPUs on average.
  const USED = [["cpu", "CPUs used"], ["memory", "memory MB"], ["mean_gpu", "GPUs busy"],
    ["gpu_memory", "GPU memory MB"]];
  let plotly = null;
  if (kind === "sweep") sweep();
  if (kind === "trial") trial();
  if (kind === "compare") compare();

  function card(name, value, colour) {
    const made = make("div", { class: "card" }, make("dt", { text: name }), make("dd", { text: value }));
    if (colour) made.style.borderColor = colour;
    return made;
  }

  // plotly is fetched when the first figure is wanted, for the page is of use without it.
  function withPlotly() {
    plotly = plotly || new Promise((resolve, reject) => {
      const script = make("script", { src: told.plotly });
      script.onload = resolve;
      script.onerror = () => { plotly = null; reject(new Error("plotly.js")); };
      document.body.append(script);
    });
    return plotly;
  }

  // Put a part of the page in its place; tell whether it shows all that there is by now.
  async function fill(place, address) {
    const [response] = await Promise.all([fetch(address), withPlotly()]);
    const text = await response.text();
    if (response.ok) place.innerHTML = text;
    else place.replaceChildren(make("p", { text }));
    window.tunelight.follow(place);
    return response.ok && response.headers.get("x-current") !== "no";
  }

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
        const given = {};
        for (const input of form.querySelectorAll("input")) {
          const text = input.value.trim();
          if (text) given[input.name] = /^\d+$/.test(text) ? Number(text) : text === "all" ? null : text;
        }
        act(form.dataset.form, form.dataset.form === "resize" ? trialOf() : null, given);
      });
    }
  }

  function sweep() {
    const trials = new Map();
    const curves = new Map();
    const keys = new Map();
    const used = new Set();
    let head = {};
    let behind = 0;
    const open = (index) => { window.location.href = window.location.pathname + "/trial/" + index; };
    const table = new LiveTable($("#list"), "trial", open);
    table.sorted = { name: "trial", up: true };
    const time = (row) => row.seconds + (row.since ? Math.max(0, Date.now() / 1000 - behind - row.since) : 0);
    steer(() => null);

    function columns() {
      const metric = head.metric || "metric";
      return [
        { name: "trial", value: (row) => row.i, show: (row) => make("a", { href: window.location.pathname + "/trial/" + row.i, text: row.i }) },
        { name: "state", value: (row) => row.state, show: (row) => state(row.state, told.colours[row.state]) },
        { name: metric, value: (row) => row.value },
        { name: "last " + metric, value: (row) => row.last },
        ...(head.further || []).map((name) => ({ name, value: (row) => row.more[name] })),
        { name: head.unit + "s", value: (row) => row.at },
        { name: "time", value: (row) => Math.round(time(row)), show: (row) => elapsed(time(row)) },
        { name: "workers", value: (row) => row.workers },
        ...USED.filter(([key]) => used.has(key)).map(([key, name]) => ({ name, value: (row) => row.peak[key] })),
        ...[...keys.keys()].map((name) => ({ name, value: (row) => row.config[name] })),
        { name: "why", value: (row) => row.why },
      ];
    }

    function cards() {
      const total = head.total ? head.trials + " of " + head.total : String(head.trials);
      const states = Object.entries(head.counts).map(([name, count]) => card(name.toLowerCase(), count, told.colours[name]));
      const gpus = head.gpus_busy === null ? [] : [card("GPUs busy", (100 * head.gpus_busy).toFixed(0) + " %")];
      $("#cards").replaceChildren(card("sweep", head.state), card("trials", total), ...states, card("time", elapsed(head.seconds)), ...gpus);
      const best = $("#best");
      best.replaceChildren();
      if (head.best) {
        const link = make("a", { href: window.location.pathname + "/trial/" + head.best.trial, text: "trial " + head.best.trial });
        best.append("Best " + head.metric + ": ", make("b", { text: compact(head.best.value) }), " by ", link);
      }
      if (head.read < 1) best.append(" The record is being read: " + Math.round(head.read * 100) + " %.");
      if (head.state === "cut off") best.append(" Its driver has died, or was killed: tunelight resume " + head.name);
      const wheel = $("#wheel");
      if (wheel) {
        wheel.hidden = !head.driven;
        $("[data-do=pause]", wheel).hidden = head.paused;
        $("[data-do=resume]", wheel).hidden = !head.paused;
        $("[name=num_samples]", wheel).placeholder = head.total === null ? "" : head.total;
      }
      const events = head.events.map(([at, text]) => make("li", {}, make("time", { text: new Date(at * 1000).toLocaleTimeString() }), text));
      $("#events ul").replaceChildren(...events);
      const rungs = $("#rungs");
      rungs.hidden = !head.rungs.length;
      const lines = head.rungs.map((rung) => make("tr", {}, ...[rung.at, rung.reached, rung.stopped].map((value) => make("td", { class: "n", text: value }))));
      const names = make("tr", {}, ...["report", "trials came there", "stopped there"].map((text) => make("th", { text })));
      const drawn = make("table", { class: "rows" }, make("thead", {}, names), make("tbody", {}, ...lines));
      $("div", rungs).replaceChildren(make("div", { class: "wide" }, drawn));
    }

    const canvas = $("#canvas");
    const pen = canvas.getContext("2d");
    let wanted = false;
    let spots = [];
    let near = null;
    const redraw = () => {
      if (wanted) return;
      wanted = true;
      requestAnimationFrame(() => { wanted = false; paint(); });
    };

    // All curves at once: those of trials that run above the others, and the best on top.
    function paint() {
      const scale = window.devicePixelRatio || 1;
      const [width, height] = [canvas.clientWidth, canvas.clientHeight];
      canvas.width = width * scale;
      canvas.height = height * scale;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      const log = $("#log").checked;
      let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const [xs, ys] of curves.values()) {
        for (const [n, y] of ys.entries()) {
          if (log && y <= 0) continue;
          [left, right] = [Math.min(left, xs[n]), Math.max(right, xs[n])];
          [low, high] = [Math.min(low, y), Math.max(high, y)];
        }
      }
      const ink = isDark() ? "#97a3b0" : "#5c6977";
      pen.font = "12px system-ui, sans-serif";
      pen.fillStyle = ink;
      spots = [];
      if (left > right) {
        pen.fillText(curves.size ? "No value is above 0." : "No trial has reported a number yet.", 8, 24);
        return;
      }
      const by = log ? Math.log : (y) => y;
      const x = (at) => 60 + ((at - left) / (right - left || 1)) * (width - 72);
      const y = (value) => height - 24 - ((by(value) - by(low)) / (by(high) - by(low) || 1)) * (height - 40);
      pen.textAlign = "right";
      pen.fillText(compact(high), 54, 20);
      pen.fillText(compact(low), 54, height - 22);
      pen.fillText(compact(right), width - 12, height - 6);
      pen.textAlign = "left";
      pen.fillText(head.unit + " " + compact(left), 60, height - 6);
      const rank = (index) => {
        const row = trials.get(index);
        if (near === index) return 3;
        return head.best && head.best.trial === index ? 2 : row && live.has(row.state) ? 1 : 0;
      };
      const order = [...curves.keys()].sort((a, b) => rank(a) - rank(b));
      for (const index of order) {
        const [xs, ys] = curves.get(index);
        const row = trials.get(index);
        const above = rank(index);
        pen.globalAlpha = above ? 1 : 0.45;
        pen.lineWidth = above > 1 ? 2.5 : above ? 1.6 : 1;
        pen.strokeStyle = above === 2 ? (isDark() ? "#ea7a88" : "#d1495b") : told.colours[row ? row.state : "PENDING"];
        pen.beginPath();
        xs.forEach((at, n) => {
          if (log && ys[n] <= 0) return;
          pen.lineTo(x(at), y(ys[n]));
          spots.push([x(at), y(ys[n]), index]);
        });
        pen.stroke();
        if (xs.length === 1) pen.fillRect(x(xs[0]) - 2, y(ys[0]) - 2, 4, 4);
      }
      pen.globalAlpha = 1;
    }

    function closest(event) {
      const place = canvas.getBoundingClientRect();
      const [across, down] = [event.clientX - place.left, event.clientY - place.top];
      let [found, least] = [null, 400];
      for (const [a, b, index] of spots) {
        const far = (a - across) ** 2 + (b - down) ** 2;
        if (far < least) [found, least] = [index, far];
      }
      return found;
    }

    canvas.addEventListener("mousemove", (event) => {
      const found = closest(event);
      if (found === near) return;
      near = found;
      const row = trials.get(near);
      $("#under").textContent = row ? "trial " + near + ", " + row.state.toLowerCase() + ", " + compact(row.value) : "";
      redraw();
    });
    canvas.addEventListener("click", (event) => {
      const found = closest(event);
      if (found !== null) open(found);
    });
    $("#log").addEventListener("change", redraw);
    document.addEventListener("theme", redraw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    window.addEventListener("resize", redraw);

    listen(base + "/events", (message) => {
      if (message.anew) {
        trials.clear();
        curves.clear();
        keys.clear();
        table.clear();
        return;
      }
      if (message.now) behind = Date.now() / 1000 - message.now;
      if (message.head) head = message.head;
      for (const row of message.rows || []) {
        trials.set(row.i, row);
        for (const key of Object.keys(row.config)) keys.set(key, true);
        for (const key of Object.keys(row.peak)) used.add(key);
      }
      table.shape(columns());
      for (const row of message.rows || []) table.set(String(row.i), row);
      for (const [index, points] of Object.entries(message.curves || {})) curves.set(Number(index), points);
      for (const index of message.gone || []) curves.delete(index);
      for (const index of trials.keys()) {
        if (index >= head.more) continue;
        trials.delete(index);
        table.drop(String(index));
      }
      if (message.head) {
        cards();
        table.note = head.more ? "; " + head.more + " earlier ones are left out" : "";
        $("#curves-title").textContent = head.metric || "Curves";
        const part = message.of > curves.size ? "The best " + curves.size + " of " + message.of + " trials, and those that run." : "";
        $("#curves-note").textContent = part;
      }
      redraw();
    });
    setInterval(() => {
      for (const row of trials.values()) if (row.since) table.set(String(row.i), row);
    }, 2000);

    $("#figures").replaceChildren(...Object.entries(told.figures).map(([name, heading]) => {
      const note = make("p", { class: "note", text: "It is drawn when it comes into view." });
      return make("section", { class: "figure", "data-figure": name }, make("h2", { text: heading }), note);
    }));
    // Figures in view are fetched one after another, and again once the sweep has gone on.
    const drawn = new Map();
    const seen = new Set();
    let drawing = false;
    async function show() {
      if (drawing || document.hidden) return;
      drawing = true;
      for (const place of [...seen]) {
        const last = drawn.get(place);
        const updated = head.updated;
        if (last && (last.updated === updated || Date.now() - last.at < 12000)) continue;
        try {
          const current = await fill(place, base + "/figure/" + place.dataset.figure);
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
      show();
    }, { rootMargin: "100px" });
    document.querySelectorAll(".figure").forEach((place) => view.observe(place));
    setInterval(show, 2000);
  }

  function trial() {
    let row = null;
    let head = {};
    let shown = "";
    let asked = 0;
    let at = null;
    steer(() => told.trial);

    function cards() {
      const best = row.value === null ? [] : [card("best " + head.metric, compact(row.value))];
      const facts = [card("state", row.state, told.colours[row.state]), ...best, card(head.unit + "s", compact(row.at)), card("workers", compact(row.workers))];
      $("#cards").replaceChildren(...facts, card("sweep", head.state));
      const wheel = $("#wheel");
      if (!wheel) return;
      wheel.hidden = !head.driven;
      $("[data-do=stop]", wheel).hidden = !live.has(row.state) && row.state !== "PENDING";
      $("[data-form=resize]", wheel).hidden = !head.elastic || !live.has(row.state);
      const config = $("[name=config]", wheel);
      if (!config.value) config.value = row.variant;
    }

    // Asked for again once it has changed, and not more often than is easy for the server.
    async function body() {
      const now = JSON.stringify([row && row.state, row && row.at, row && row.value, row && row.seconds]);
      if (!row || now === shown || Date.now() < asked || document.hidden) return;
      const began = Date.now();
      asked = Infinity;
      try {
        const response = await fetch(base + "/trial/" + told.trial);
        const text = await response.text();
        if (response.ok) $("#trial").innerHTML = text;
        else $("#trial").replaceChildren(make("p", { text }));
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
      if (message.head) head = message.head;
      for (const one of message.rows || []) if (one.i === told.trial) row = one;
      if (row && message.head) cards();
      body();
    });
    setInterval(body, 2000);
    setInterval(log, 1000);
    log();
  }

  async function compare() {
    listen("/api/sweeps", () => {}); // so that the server knows that the page is open
    const query = new URLSearchParams(told.sweeps.map((name) => ["sweep", name]));
    try {
      await fill($("#comparison"), "/api/compare?" + query);
    } catch {
      window.tunelight.trouble("The server does not answer. Open this page again.");
    }
  }
})();
