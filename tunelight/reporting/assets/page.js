"use strict";
(() => {
  const root = document.documentElement;
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const places = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  let printing = false;

  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);

  // What a figure's layout has to say other than on white paper.
  function themed(layout) {
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
    return made;
  }

  function draw(place) {
    if (drawn.has(place)) return;
    drawn.add(place);
    const figure = JSON.parse(document.getElementById("data-" + place.dataset.figure).textContent);
    place.figure = figure;
    const config = { responsive: true, displaylogo: false, toImageButtonOptions: { scale: 2 } };
    Plotly.newPlot(place, figure.data, themed(figure.layout), config).then(() => { place.dataset.drawn = "yes"; });
  }

  function repaint() {
    for (const place of drawn) Plotly.react(place, place.figure.data, themed(place.figure.layout));
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
  places.forEach((place) => near.observe(place));

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    repaint();
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

  // The table: rows sort by a column, numbers before text and what is empty last, and show what is searched for.
  const table = document.getElementById("table");
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
    count.textContent = shown === rows.length ? rows.length + " trials" : shown + " of " + rows.length + " trials";
  }
  search.addEventListener("input", filter);
  filter();
})();
