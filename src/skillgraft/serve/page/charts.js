// Pictures of skills as SVG: where one lives, layer by kind, and how several overlap. Every number is also there as text.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  if (text) {
    made.textContent = text;
  }
  return made;
}

const TOP = 74;
const WIDTH = 400;
const SLANT = 46; // how far the last kind's name reaches beyond its column

/** Layers as rows, kinds as columns; the darker a cell, the more of its entries are the skill's. */
export function whereItLives(where, name) {
  const left = Math.max(...where.layers.map((layer) => short(layer).length)) > 3 ? 58 : 26;
  const wide = (WIDTH - left - SLANT) / Math.max(1, where.kinds.length);
  const high = Math.max(9, Math.min(18, 240 / Math.max(1, where.layers.length)));
  const height = TOP + high * where.layers.length + 6;
  const total = where.taken.flat().reduce((sum, each) => sum + each, 0);
  const most = Math.max(...where.taken.flat(), 1);
  const picture = element("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `Where ${name} lives: ${total.toLocaleString("en")} entries, most of them in ${densest(where)}`,
  });
  where.kinds.forEach((kind, column) => {
    const x = left + wide * (column + 0.5);
    picture.append(element("text", { x, y: TOP - 6, transform: `rotate(-38 ${x} ${TOP - 6})` }, kind));
  });
  where.layers.forEach((layer, row) => {
    const y = TOP + high * row;
    if (where.layers.length <= 16 || row % 2 === 0) {
      picture.append(element("text", { x: left - 6, y: y + high / 2 + 4, "text-anchor": "end", class: "soft" }, short(layer)));
    }
    where.kinds.forEach((kind, column) => {
      const [taken, room] = [where.taken[row][column], where.room[row][column]];
      const box = { x: left + wide * column + 1, y: y + 1, width: wide - 2, height: high - 2, rx: 2 };
      picture.append(element("rect", { ...box, class: room ? "room" : "none" }));
      if (taken) {
        const cell = element("rect", { ...box, class: "cell", "fill-opacity": 0.12 + 0.88 * Math.sqrt(taken / most) });
        const share = room ? `, ${((100 * taken) / room).toPrecision(2)} % of the cell` : "";
        cell.append(element("title", {}, `layer ${layer}, ${kind}: ${taken.toLocaleString("en")} entries${share}`));
        picture.append(cell);
      }
    });
  });
  return picture;
}

function short(layer) {
  return layer.length > 8 ? "outside" : layer;
}

function densest(where) {
  let best = [0, 0];
  where.taken.forEach((line, row) => line.forEach((taken, column) => {
    if (taken > where.taken[best[0]][best[1]]) {
      best = [row, column];
    }
  }));
  return `layer ${where.layers[best[0]]}, ${where.kinds[best[1]]}`;
}

/** A table whose cells are shaded: it reads without colour too. */
export function overlapTable(names, overlaps) {
  const found = new Map(overlaps.flatMap((each) => [[`${each.a} ${each.b}`, each], [`${each.b} ${each.a}`, each]]));
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(heading("", "col"), ...names.map((name) => heading(name, "col")));
  const body = table.createTBody();
  names.forEach((one, row) => {
    const line = body.insertRow();
    line.append(heading(one, "row"));
    names.forEach((other, column) => {
      const cell = line.insertCell();
      const both = found.get(`${one} ${other}`);
      if (column < row && both) {
        cell.textContent = `${(100 * both.jaccard).toFixed(1)} %`;
        cell.title = `${both.shared.toLocaleString("en")} entries shared by ${one} and ${other}`;
        cell.style.background = `color-mix(in srgb, var(--map-high) ${Math.round(8 + 70 * both.jaccard)}%, var(--card))`;
      } else if (column === row) {
        cell.textContent = "–";
      }
    });
  });
  return table;
}

function heading(text, scope) {
  const made = document.createElement("th");
  made.scope = scope;
  made.textContent = text;
  return made;
}
