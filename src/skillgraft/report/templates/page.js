"use strict";
// Folds sections, draws a figure when it is first seen, sorts tables. Without it the page shows every section and table.
(() => {
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]], displayModeBar: "hover" };
  const folded = [...document.querySelectorAll("details.section")];
  document.documentElement.classList.add("scripted");
  folded.forEach((section) => { section.open = "stays" in section.dataset; });

  function draw(data) {
    const plot = document.getElementById(data.dataset.draws);
    if (!window.Plotly || plot.dataset.drawn || !plot.checkVisibility()) {
      return null;
    }
    plot.dataset.drawn = "begun";
    const figure = JSON.parse(data.textContent);
    if (plot.clientWidth < 520) {
      figure.layout.font = { ...(figure.layout.font || {}), size: 11 };
    }
    // The numbers fold away where the figure shows them.
    return Plotly.newPlot(plot, figure.data, figure.layout, config).then(() => {
      plot.dataset.drawn = "true";
      const numbers = plot.closest("figure").querySelector("details");
      if (numbers) {
        numbers.open = false;
      }
    });
  }

  const drawSeen = () => Promise.all([...document.querySelectorAll("script[data-draws]")].map(draw));

  // A link into a folded section opens it.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = target && (target.querySelector("details.section") || target.closest("details.section"));
    if (section) {
      section.open = true;
      target.scrollIntoView();
    }
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

  document.querySelectorAll("table").forEach((table) => table.tBodies[0].rows.length > 1 && sortable(table));
  folded.forEach((section) => section.addEventListener("toggle", drawSeen));
  window.addEventListener("hashchange", reveal);
  document.querySelectorAll("a[href^='#']").forEach((link) => link.addEventListener("click", () => setTimeout(reveal)));
  document.addEventListener("DOMContentLoaded", () => {
    reveal();
    drawSeen().then(() => { document.documentElement.dataset.ready = "true"; });
  });

  // Paper is narrower than most windows: figures must fit it, and the window again afterwards.
  const fit = () => document.querySelectorAll(".plot[data-drawn=true]").forEach((plot) => Plotly.Plots.resize(plot));
  window.addEventListener("beforeprint", fit);
  window.addEventListener("afterprint", fit);
})();
