"use strict";
(() => {
  const root = document.documentElement;
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const places = new Set();
  const drawn = new Set();
  const NARROW = 600;
  let printing = false;
  root.dataset.script = "yes";

  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);

  // What a figure's layout has to say other than on white paper, or on a wide screen.
  function themed(layout, width) {
    const dark = isDark();
    const ink = dark ? "#dfe5ec" : "#2a3442";
    const line = dark ? "#38424d" : "#e3e8ee";
    const made = { ...layout, font: { ...layout.font, color: ink, family: "system-ui, sans-serif" } };
    made.paper_bgcolor = made.plot_bgcolor = "rgba(0,0,0,0)";
    made.hoverlabel = { bgcolor: dark ? "#222a33" : "#ffffff", font: { color: ink }, bordercolor: line };
    made.modebar = { bgcolor: "rgba(0,0,0,0)", color: dark ? "#7d8894" : "#8d98a5", activecolor: ink };
    for (const key of Object.keys(made).concat("xaxis", "yaxis")) {
      if (/^[xy]axis\d*$/.test(key)) {
        made[key] = { ...made[key], gridcolor: line, linecolor: line, zerolinecolor: line };
      }
    }
    if (width < NARROW && made.legend) {
      made.legend = { ...made.legend, xref: "container", x: 0.01 };
      if (made.margin.l <= 60) made.margin = { ...made.margin, l: 40, r: 12 };
    }
    return made;
  }

  function draw(place) {
    if (drawn.has(place)) return;
    drawn.add(place);
    const figure = JSON.parse(document.getElementById("data-" + place.dataset.figure).textContent);
    place.figure = figure;
    const narrow = place.clientWidth < NARROW;
    const config = { responsive: true, displaylogo: false, toImageButtonOptions: { scale: 2 } };
    if (narrow) config.displayModeBar = false;
    Plotly.newPlot(place, figure.data, themed(figure.layout, place.clientWidth), config).then(() => { place.dataset.drawn = "yes"; });
  }

  function repaint() {
    for (const place of drawn) Plotly.react(place, place.figure.data, themed(place.figure.layout, place.clientWidth));
  }

  // A figure is drawn when it comes near, so that the page opens at once.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "400px" });

  // Figures of a part of the page, which may have come later than the page and in place of others.
  function follow(part) {
    for (const place of places) {
      if (place.isConnected) continue;
      places.delete(place);
      near.unobserve(place);
      if (drawn.delete(place)) Plotly.purge(place);
    }
    for (const place of part.querySelectorAll(".plot")) {
      places.add(place);
      near.observe(place);
    }
  }
  follow(document);
  window.tunelight = { follow, isDark };

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    repaint();
    document.dispatchEvent(new Event("theme"));
  });
  wantsDark.addEventListener("change", repaint);
  window.addEventListener("beforeprint", () => {
    printing = true;
    places.forEach(draw);
    repaint();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    repaint();
  });

  // A trial's section opens for a link to it, wherever that is.
  function reveal() {
    const place = document.getElementById(window.location.hash.slice(1));
    const section = place && place.closest(".trial");
    if (!section) return;
    section.open = true;
    place.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#trial-']");
    if (link && link.hash === window.location.hash) reveal(); // which changes no hash
  });
  if (window.location.hash) reveal();

  const table = document.getElementById("table");
  if (table) tabulate(table);

  // The table: rows sort by a column, numbers before text and what is empty last, and show what is searched for.
  function tabulate(table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];

    function key(row, column) {
      const cell = row.cells[column];
      if (cell.dataset.n !== undefined) return Number(cell.dataset.n);
      return cell.textContent;
    }

    function compare(a, b) {
      if (a === "" || b === "") return a === b ? 0 : null;
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return typeof a === "number" ? a - b : a.localeCompare(b);
    }

    function sort(column, direction) {
      const keyed = rows.map((row, index) => [key(row, column), index, row]);
      keyed.sort(([a, i], [b, j]) => {
        const found = compare(a, b);
        if (found === null) return a === "" ? 1 : -1;
        return direction * found || i - j;
      });
      body.append(...keyed.map(([, , row]) => row));
    }

    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(column, ascending ? 1 : -1);
      });
    });

    const search = document.getElementById("search");
    const count = document.getElementById("count");
    const texts = new Map();
    function filter() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        if (words.length && !texts.has(row)) {
          texts.set(row, [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
        }
        const found = words.every((word) => texts.get(row).includes(word));
        row.hidden = !found;
        shown += found;
      }
      const all = rows.length + (rows.length === 1 ? " trial" : " trials");
      count.textContent = shown === rows.length ? all : shown + " of " + all;
    }
    search.addEventListener("input", filter);
    filter();

    // A click anywhere on a row opens its trial, but for one that ends a selection of text.
    body.addEventListener("click", (event) => {
      const link = event.target.closest("tr").querySelector("a");
      if (!link || event.target.closest("a") || String(window.getSelection())) return;
      if (window.location.hash === link.hash) reveal();
      else window.location.hash = link.hash;
    });

    // Columns that are not ticked are hidden by a style sheet, which costs the same for any number of rows.
    const boxes = [...document.querySelectorAll("#columns input")];
    const sheet = document.head.appendChild(document.createElement("style"));
    function choose() {
      const hidden = boxes.filter((box) => !box.checked).map((box) => Number(box.dataset.column) + 1);
      sheet.textContent = hidden.map((n) => `#table tr > :nth-child(${n}) { display: none; }`).join("\n");
    }
    boxes.forEach((box) => box.addEventListener("change", choose));
    choose(); // a browser may keep what was ticked before the page was opened again
  }
})();
