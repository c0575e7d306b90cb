"use strict";
// What all pages share: small pieces of markup, light and dark, figures by plotly, and blocks of data.
window.tunelight = (() => {
  const root = document.documentElement;
  const told = JSON.parse(document.body.dataset.told);
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const $ = (selector, part = document) => part.querySelector(selector);
  const NARROW = 600;
  const [ACCENT, BEST] = ["#3f7fc1", "#d1495b"];
  let printing = false;

  function make(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") made.textContent = value;
      else if (key === "colour") made.style.background = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function compact(value) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number" || Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
  }

  function elapsed(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return whole + "s";
    const two = (number) => String(number).padStart(2, "0");
    if (whole < 3600) return Math.floor(whole / 60) + "m " + two(whole % 60) + "s";
    return Math.floor(whole / 3600) + "h " + two(Math.floor((whole % 3600) / 60)) + "m";
  }

  const inlined = (name) => JSON.parse(document.getElementById("data-" + name)?.textContent ?? "null");
  const sweepAddress = (name) => "/sweep/" + encodeURIComponent(name);
  const trialAddress = (index) => (told.saved ? "#trial-" + index : sweepAddress(told.sweep) + "/trial/" + index);
  const openTrial = (index) => { window.location.href = trialAddress(index); };

  // -- figures

  const figures = new Set();
  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);

  // A layout for this screen, on light or dark paper, where every axis has ticks and grid lines.
  function themed(layout, width) {
    const dark = isDark();
    const ink = dark ? "#dfe5ec" : "#2a3442";
    const line = dark ? "#333c46" : "#e3e8ee";
    const made = { hovermode: "closest", ...layout, uirevision: "kept", autosize: true };
    made.font = { ...layout.font, color: ink, family: "system-ui, sans-serif" };
    made.paper_bgcolor = made.plot_bgcolor = "rgba(0,0,0,0)";
    made.hoverlabel = { bgcolor: dark ? "#222a33" : "#ffffff", font: { color: ink }, bordercolor: line };
    made.modebar = { bgcolor: "rgba(0,0,0,0)", color: dark ? "#7d8894" : "#8d98a5", activecolor: ink };
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, ticks: "outside", tickcolor: line };
    for (const key of new Set([...Object.keys(made), "xaxis", "yaxis"])) {
      if (/^[xy]axis\d*$/.test(key)) made[key] = { ...made[key], ...axis };
    }
    if (width < NARROW && made.legend?.yref === "container") {
      made.legend = { ...made.legend, xref: "container", x: 0.01 };
      if (made.margin?.l <= 60) made.margin = { ...made.margin, l: 40, r: 12 };
    }
    return made;
  }

  // Pixels below which a figure is scrolled sideways rather than drawn narrower.
  function leastWidth({ data, layout }) {
    const axes = data[0]?.type === "parcoords" ? data[0].dimensions.length : 0;
    const across = Object.keys(layout).filter((key) => /^xaxis\d+$/.test(key)).length;
    return axes ? 100 * axes : across > 1 ? 190 * Math.min(4, across) : 0;
  }

  let fetched = null;
  function plotlyReady() {
    if (window.Plotly) return Promise.resolve();
    fetched = fetched || new Promise((resolve, reject) => {
      const script = make("script", { src: told.plotly });
      script.onload = resolve;
      script.onerror = () => { fetched = null; reject(new Error("plotly.js")); };
      document.body.append(script);
    });
    return fetched;
  }

  // Draw in a place, once it comes near, and again whenever there is another figure for it. A click on a point leads to
  // its trial. Of parallel coordinates, ``lines`` has ``pick``, which hears what trials are selected (null: all), and
  // ``label``, which says what a trial's line shows.
  function figure(place, spec, lines) {
    Object.assign(place, { spec, lines, stale: true });
    place.style.height = (spec.layout.height || 320) + "px";
    const least = leastWidth(spec);
    if (least) place.style.minWidth = least + "px";
    if (!figures.has(place)) {
      figures.add(place);
      near.observe(place);
    } else if (place.near) draw(place);
  }

  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      target.near = isIntersecting;
      if (isIntersecting) draw(target);
    }
  }, { rootMargin: "300px" });

  async function draw(place) {
    if (place.drawing || !place.stale) return;
    place.drawing = true;
    try {
      await plotlyReady();
    } catch {
      place.drawing = false; // it is asked for again when the place comes near again
      return;
    }
    try {
      while (place.stale && place.isConnected) {
        place.stale = false;
        const narrow = place.clientWidth < NARROW;
        const config = { responsive: true, displaylogo: false, toImageButtonOptions: { scale: 2 }, displayModeBar: narrow ? false : "hover" };
        await window.Plotly.react(place, place.spec.data, themed(place.spec.layout, place.clientWidth), config);
        if (!place.dataset.drawn) listenTo(place);
        else if (place.lines) place.lines.pick(selected(place));
        place.dataset.drawn = "yes";
      }
    } finally { place.drawing = false; }
  }

  const trialOf = (point) => {
    const found = [point?.customdata].flat()[0];
    return Number.isInteger(found) && point.data.type !== "bar" ? found : null;
  };

  function listenTo(place) {
    if (told.sweep === undefined) return;
    place.on("plotly_hover", ({ points }) => place.classList.toggle("leads", trialOf(points?.[0]) !== null));
    place.on("plotly_unhover", () => place.classList.remove("leads"));
    place.on("plotly_click", ({ points }) => {
      const index = trialOf(points[0]);
      if (index !== null) openTrial(index);
    });
    if (!place.lines) return;
    const under = make("p", { class: "under" });
    let trial = null;
    const meet = (index) => {
      trial = index;
      under.textContent = index === null ? "" : place.lines.label(index);
      place.classList.toggle("leads", index !== null);
    };
    place.after(under);
    place.on("plotly_hover", ({ curveNumber }) => meet(place._fullData[0].customdata?.[curveNumber] ?? null));
    place.on("plotly_unhover", () => meet(null));
    place.on("plotly_restyle", () => place.lines.pick(selected(place)));
    place.addEventListener("click", () => { if (trial !== null) openTrial(trial); });
  }

  // Which trials pass the ranges that are selected on the axes of parallel coordinates; null without a range.
  function selected(place) {
    const { customdata, dimensions } = place._fullData[0];
    const limits = dimensions.flatMap(({ values }, n) => {
      const range = place.data[0].dimensions[n].constraintrange;
      return range?.length ? [[values, Array.isArray(range[0]) ? range : [range]]] : [];
    });
    if (!limits.length || !customdata) return null;
    const passes = (n) => limits.every(([values, ranges]) => ranges.some(([low, high]) => low <= values[n] && values[n] <= high));
    return new Set([...customdata].filter((_, n) => passes(n)));
  }

  function repaint() {
    for (const place of figures) {
      place.stale = true;
      if (!place.isConnected) place.near = false;
      else if (place.near || printing) draw(place);
    }
  }

  function forget(places) {
    for (const place of places) {
      if (place.isConnected) continue;
      figures.delete(place);
      near.unobserve(place);
      if (place.dataset.drawn) window.Plotly.purge(place);
    }
  }

  $("#theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    repaint();
  });
  wantsDark.addEventListener("change", repaint);
  window.addEventListener("beforeprint", () => { printing = true; repaint(); });
  window.addEventListener("afterprint", () => { printing = false; repaint(); });

  // -- blocks: see tunelight/extras/report/page.py

  function inline(value) {
    if (value === null || typeof value !== "object") return compact(value);
    return make("span", {}, make("a", { href: trialAddress(value.trial), text: value.text }));
  }

  const cell = (value) => make("td", typeof value === "number" ? { class: "n" } : {}, inline(value));

  function card(name, value, colour) {
    const made = make("div", { class: "card" }, make("dt", { text: name }), make("dd", { text: value }));
    if (colour) made.style.borderColor = colour;
    return made;
  }

  function pairs(title, rows) {
    const lines = rows.map(([key, value]) => make("tr", {}, make("th", { text: key }), make("td", {}, inline(value))));
    return make("table", { class: "pairs" }, make("caption", { text: title }), make("tbody", {}, ...lines));
  }

  function table(names, rows) {
    const head = make("tr", {}, ...names.map((text) => make("th", { text })));
    const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
    return make("div", { class: "wide" }, make("table", { class: "rows" }, make("thead", {}, head), make("tbody", {}, ...body)));
  }

  // An axis of values between two numbers; a logarithmic one of few decades has ticks at 1, 2 and 5.
  function axisOf(log, low, high) {
    const ticks = high < 1000 * low ? { dtick: "D2", tickformat: "~g" } : { exponentformat: "power" };
    return { automargin: true, ...(log ? { type: "log", ...ticks } : { type: "linear" }) };
  }

  // An axis of parallel coordinates: numbers, on the scale that they were searched on (``even``: true is a linear one),
  // else on a logarithmic one where they are far apart; or names at equal distances. A trial that lacks the key is below.
  function parallelAxis(label, raw, before, even) {
    const found = [...new Set(raw.filter((value) => value !== null))];
    const numeric = found.every((value) => typeof value === "number");
    found.sort(numeric ? (a, b) => a - b : undefined);
    const wide = numeric && found[0] > 0 && (even === undefined ? found.at(-1) >= 100 * found[0] : !even);
    const at = numeric ? (wide ? Math.log10 : Number) : (value) => found.indexOf(value);
    const [low, high] = [at(found[0]), at(found.at(-1))];
    const span = high - low || 1;
    let ticks = found.map((value) => [at(value), compact(value)]);
    if (numeric && found.length > 6) {
      ticks = [0, 1, 2, 3, 4].map((part) => low + (part * span) / 4).map((tick) => [tick, compact(Number((wide ? 10 ** tick : tick).toPrecision(3)))]);
    } else ticks = ticks.filter((_, n) => n % Math.ceil(ticks.length / 24) === 0);
    const below = low - 0.15 * span;
    const lacks = raw.includes(null);
    if (lacks) ticks.unshift([below, "(not set)"]);
    return {
      label: label.length > 24 ? label.slice(0, 21) + "..." : label,
      values: raw.map((value) => (value === null ? below : at(value))),
      tickvals: ticks.map(([tick]) => tick),
      ticktext: ticks.map(([, text]) => (text.length > 16 ? text.slice(0, 13) + "..." : text)),
      range: [(lacks ? below : low) - 0.03 * span, high + 0.03 * span],
      constraintrange: before?.constraintrange,
    };
  }

  // A line with its best point.
  function chart(place, { unit, x, y, mark, log, top }) {
    const few = x.length < 60;
    const line = { type: "scatter", mode: few ? "lines+markers" : "lines", x, y, line: { color: ACCENT, width: 1.8 }, marker: { size: 4 }, hovertemplate: unit + " %{x}: %{y:.5g}<extra></extra>" };
    const best = mark ? [{ type: "scatter", mode: "markers", x: [mark[0]], y: [mark[1]], marker: { color: BEST, size: 9 }, hovertemplate: unit + " %{x}: %{y:.5g}<extra>best</extra>" }] : [];
    const values = y.filter((value) => value !== null);
    const yaxis = { ...axisOf(log, Math.min(...values), Math.max(...values)), ...(mark ? {} : { rangemode: "tozero" }) };
    if (top) yaxis.range = [0, top * 1.05];
    const layout = { height: 200, showlegend: false, margin: { l: 50, r: 10, t: 8, b: 40 }, xaxis: { title: { text: unit, standoff: 6 } }, yaxis };
    figure(place, { data: [line, ...best], layout });
  }

  // Put blocks in a place. Charts that it has stay, with what a reader has zoomed, and so do parts that are open.
  function show(place, blocks) {
    const plots = [...place.querySelectorAll(".plot")];
    const kept = new Map(plots.map((one) => [one.dataset.chart, one]));
    const open = new Set([...place.querySelectorAll("details[open] > summary")].map((one) => one.textContent));

    function block(one) {
      const made = make("div", { class: "block" });
      if (one.head) made.append(make("h2", { text: one.head }));
      if (one.link && !one.inside) made.append(make("p", {}, inline(one.link)));
      if (one.title && !one.pairs && !one.inside && !one.chart) made.append(make("h3", { text: one.title }));
      if (one.text) made.append(make("p", { text: one.text }));
      if (one.pre !== undefined) made.append(make("pre", { text: one.pre }));
      if (one.items) made.append(make("ul", {}, ...one.items.map((item) => make("li", {}, inline(item)))));
      if (one.pairs?.length) made.append(pairs(one.title, one.pairs));
      if (one.names) made.append(table(one.names, one.rows));
      if (one.beside) made.append(make("div", { class: "pair" }, ...one.beside.map(block)));
      if (one.inside) {
        const summary = make("summary", {}, ...(one.link ? [inline(one.link), ", "] : []), one.title);
        const details = make("details", {}, summary, ...one.inside.map(block));
        details.open = open.has(summary.textContent);
        made.append(details);
      }
      if (one.chart) {
        const plot = kept.get(one.title) || make("div", { class: "plot", "data-chart": one.title });
        made.classList.add("chart");
        made.append(make("h3", { text: one.title }), plot);
        chart(plot, one.chart);
      }
      return made;
    }

    place.replaceChildren(...blocks.map(block));
    forget(plots);
  }

  // Fill a section of the page: its title, and its figure or blocks.
  function fill(place, { title, note, figure: spec, blocks }) {
    let head = $(":scope > .head", place);
    let body = $(":scope > .body", place);
    if (!head) place.replaceChildren(head = make("div", { class: "head" }), body = make("div", { class: "body" }));
    head.replaceChildren(...(title ? [make("h2", { text: title })] : []), ...(note ? [make("p", { class: "note", text: note })] : []));
    body.classList.toggle("scroll", Boolean(spec));
    if (!spec) {
      show(body, blocks);
      return;
    }
    let plot = $(":scope > .plot", body);
    if (!plot) body.replaceChildren(plot = make("div", { class: "plot" }));
    figure(plot, spec);
  }

  return { told, $, make, compact, elapsed, inlined, sweepAddress, trialAddress, openTrial, card, pairs, table, axisOf, parallelAxis, figure, show, fill, repaint, forget, BEST };
})();
