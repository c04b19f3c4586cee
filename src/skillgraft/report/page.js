"use strict";
// Draws the figures and lets tables be sorted. Without it the page still shows every table.
(() => {
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]], displayModeBar: "hover" };

  function draw(data) {
    const place = document.getElementById(data.dataset.draws);
    const figure = JSON.parse(data.textContent);
    const narrow = place.clientWidth < 520;
    if (narrow) {
      figure.layout.font = { ...(figure.layout.font || {}), size: 11 };
    }
    // The numbers fold away where the figure shows them.
    return Plotly.newPlot(place, figure.data, figure.layout, config).then(() => {
      place.dataset.drawn = "true";
      const numbers = place.closest("figure").querySelector("details");
      if (numbers) {
        numbers.open = false;
      }
    });
  }

  function value(row, column) {
    const field = row.cells[column];
    const number = field.dataset.sort;
    return number === undefined ? field.textContent.trim() : Number(number);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") {
      return a - b;
    }
    return String(a).localeCompare(String(b), "en", { numeric: true });
  }

  // Fields without a number stay at the end, whichever way the column is sorted.
  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, key: value(row, column) }));
    const numeric = rows.some(({ key }) => typeof key === "number");
    const [known, open] = [[], []];
    for (const each of rows) {
      (numeric && typeof each.key !== "number" ? open : known).push(each);
    }
    known.sort((a, b) => direction * compare(a.key, b.key));
    body.append(...known.concat(open).map(({ row }) => row));
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
        sort(table, column, direction);
      });
    });
  }

  document.documentElement.classList.add("scripted");
  document.querySelectorAll("table").forEach((table) => table.tBodies[0].rows.length > 1 && sortable(table));
  const all = [...document.querySelectorAll("script[data-draws]")];
  Promise.all(all.map(draw)).then(() => { document.documentElement.dataset.ready = "true"; });

  // Paper is narrower than most windows: figures must fit it, and the window again afterwards.
  const fit = () => document.querySelectorAll(".plot").forEach((place) => Plotly.Plots.resize(place));
  window.addEventListener("beforeprint", fit);
  window.addEventListener("afterprint", fit);
})();
