// SPDX-License-Identifier: Apache-2.0
// What pages are made of: elements, tables that sort and filter, charts. Text is only ever set as text, so that no name
// in the data can add an element.
"use strict";

const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"]; // Okabe and Ito

function readData(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

function setUp(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (typeof value === "function")
      node.addEventListener(name, value);
    else if (value !== undefined && value !== null)
      node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

function element(tag, attributes, ...children) {
  return setUp(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  return setUp(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A number with `digits` significant ones; "" for null.
function figure(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value))
    return "";
  return String(Number(value.toPrecision(digits)));
}

function percent(value, signed = false) {
  if (value === null || value === undefined || !Number.isFinite(value))
    return "";
  return (signed && value >= 0 ? "+" : "") + (100 * value).toFixed(1) + " %";
}

function gib(bytes) {
  return bytes === null ? "" : figure(bytes / 2 ** 30);
}

// The top of a page: what it is, what made it, and when.
function addHeading(paragraphs) {
  const about = readData("about");
  const main = document.getElementById("page");
  main.replaceChildren(element("h1", {}, about.title),
    element("p", { class: "about" }, element("code", {}, about.command), element("br"),
      `${about.program}, ${about.date}`),
    ...paragraphs.filter(text => text).map(text => element("p", {}, text)));
  return main;
}

// ---- tables ----

// columns: {name, value(row), show(value, row)}; a column of strings is aligned to the left. Sorted by a click on a
// heading, filtered by words; SHOWN rows until "show all". A column without any value is left out.
const SHOWN = 200;

function compare(a, b) {
  const none = value => value === null || value === undefined || value === "";
  if (none(a) || none(b))
    return none(a) - none(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function addTable(main, all, rows, label) {
  const columns = all.filter(column => rows.some(row => ![null, undefined, ""].includes(column.value(row))));
  const isText = columns.map(column => rows.every(row => typeof column.value(row) !== "number"));
  const body = element("tbody"), count = element("span", { class: "note" });
  const state = { column: -1, down: false, words: [], all: false };
  const more = element("button", { class: "more", type: "button", click: () => { state.all = true; draw(); } });
  const show = (column, row) => {
    const value = column.value(row);
    return column.show ? column.show(value, row) : value === null || value === undefined ? "" : String(value);
  };
  const texts = new Map(rows.map(row => [row, columns.map(column => show(column, row))]));
  const heads = columns.map((column, i) => element("th", { class: isText[i] ? "text" : null, scope: "col" },
    element("button", { type: "button", title: column.title, click: () => sort(i) }, column.name)));

  function sort(i) {
    state.down = state.column === i && !state.down;
    state.column = i;
    heads.forEach((head, k) => k === i ? head.setAttribute("aria-sort", state.down ? "descending" : "ascending")
      : head.removeAttribute("aria-sort"));
    draw();
  }

  function draw() {
    let found = rows.filter(row => {
      const line = texts.get(row).join(" ").toLowerCase();
      return state.words.every(word => line.includes(word));
    });
    if (state.column >= 0) {
      const value = columns[state.column].value;
      found = found.slice().sort((a, b) => (state.down ? -1 : 1) * compare(value(a), value(b)));
    }
    const shown = state.all ? found : found.slice(0, SHOWN);
    body.replaceChildren(...shown.map(row => element("tr", {}, ...texts.get(row).map((text, i) =>
      element("td", { class: text.length > 48 ? "long" : isText[i] ? "text" : null }, text)))));
    count.textContent = found.length < rows.length ? `${found.length} of ${rows.length} rows` : `${rows.length} rows`;
    more.textContent = `show all ${found.length}`;
    more.hidden = shown.length === found.length;
  }

  if (rows.length > 8)
    main.append(element("div", { class: "filter" }, element("input", { type: "search", placeholder: "filter: words of a row",
      "aria-label": `filter ${label}`,
      input: event => { state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); draw(); } }), count));
  main.append(element("div", { class: "wide" }, element("table", { "aria-label": label },
    element("thead", {}, element("tr", {}, ...heads)), body)), more);
  draw();
}

// ---- charts ----

function ticksOf(axis) {
  const found = [];
  if (axis.log && axis.high / axis.low >= 10) {
    for (let power = Math.floor(Math.log10(axis.low)); power <= Math.ceil(Math.log10(axis.high)); power++)
      found.push(...[1, 2, 5].map(digit => digit * 10 ** power));
  } else {
    const least = (axis.high - axis.low) / 6, power = 10 ** Math.floor(Math.log10(least));
    const step = power * ([1, 2, 5, 10].find(digit => digit >= least / power) || 10);
    for (let i = Math.ceil(axis.low / step); i * step <= axis.high; i++)
      found.push(i * step);
  }
  return found.filter(value => value >= axis.low && value <= axis.high);
}

function rangeOf(values, log) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (log)
    return { low: low / 1.15, high: high * 1.15, log };
  const margin = Math.max(0.05 * (high - low), 0.01 * Math.abs(high), 1e-12);
  return { low: low >= 0 ? Math.max(low - margin, 0) : low - margin, high: high + margin, log };
}

const MARKS = [
  attributes => shape("circle", { r: 4.5, ...attributes }),
  attributes => shape("rect", { x: -4, y: -4, width: 8, height: 8, ...attributes }),
  attributes => shape("path", { d: "M0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z", ...attributes }),
  attributes => shape("path", { d: "M0-5l5.5 9.5h-11z", ...attributes }),
];

// series: {name, points: [{x, y, title, label}], line: "straight" | "steps" | none, marks: true or false, hue}
// options: xLabel, yLabel, log, equal (both axes have one range: a diagonal), band (a share to each side of it)
function addChart(main, series, options) {
  const points = series.flatMap(one => one.points);
  if (points.length === 0)
    return;
  const named = series.filter(one => one.name).length > 1;
  const width = options.equal ? 560 : 760, height = options.equal ? 560 : 400, left = 76;
  const top = named ? 18 + 18 * series.length : 14;
  const xs = points.map(point => point.x), ys = points.map(point => point.y), both = xs.concat(ys);
  const x = rangeOf(options.equal ? both : xs, options.log), y = rangeOf(options.equal ? both : ys, options.log);
  const at = (axis, value) => axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
    : (value - axis.low) / (axis.high - axis.low);
  const px = value => left + width * at(x, value), py = value => top + height * (1 - at(y, value));
  const svg = shape("svg", { viewBox: `0 0 ${left + width + 24} ${top + height + 54}`, width: left + width + 24,
    role: "img", "aria-label": options.label });
  for (const value of ticksOf(x))
    svg.append(shape("path", { class: "grid", d: `M${px(value)} ${top}v${height}` }),
      shape("text", { x: px(value), y: top + height + 18, "text-anchor": "middle" }, figure(value)));
  for (const value of ticksOf(y))
    svg.append(shape("path", { class: "grid", d: `M${left} ${py(value)}h${width}` }),
      shape("text", { x: left - 8, y: py(value) + 4, "text-anchor": "end" }, figure(value)));
  if (options.band) {
    const shift = height * Math.log(1 + options.band) / Math.log(y.high / y.low);
    svg.append(shape("clipPath", { id: "frame" }, shape("rect", { x: left, y: top, width, height })),
      shape("path", { class: "band", "clip-path": "url(#frame)",
        d: `M${left} ${top + height - shift}L${left + width} ${top - shift}v${2 * shift}L${left} ${top + height + shift}z` }));
  }
  if (options.equal)
    svg.append(shape("path", { class: "diagonal", d: `M${left} ${top + height}L${left + width} ${top}` }));
  svg.append(shape("rect", { class: "frame", x: left, y: top, width, height }),
    shape("text", { class: "quiet", x: left + width / 2, y: top + height + 42, "text-anchor": "middle" }, options.xLabel),
    shape("text", { class: "quiet", transform: `translate(16 ${top + height / 2}) rotate(-90)`, "text-anchor": "middle" },
      options.yLabel));
  const labels = [];
  series.forEach((one, k) => {
    const hue = one.hue || HUES[k % HUES.length], places = one.points.map(point => [px(point.x), py(point.y)]);
    if (one.line && places.length > 1)
      svg.append(shape("path", { class: "series", style: `stroke: ${hue}`, d: "M" + places.map(([a, b], i) =>
        one.line === "steps" && i > 0 ? `V${b}H${a}` : `${i > 0 ? "L" : ""}${a} ${b}`).join("") }));
    one.points.forEach((point, i) => {
      if (one.marks !== false)
        svg.append(shape("g", { transform: `translate(${places[i][0]} ${places[i][1]})` },
          MARKS[k % MARKS.length]({ style: `fill: ${hue}`, "fill-opacity": one.faint ? 0.45 : 0.9 }),
          point.title ? shape("title", {}, point.title) : null));
      if (!point.label)
        return;
      const [a, b] = places[i], long = 6.6 * point.label.length, begin = a + long + 9 < left + width ? a + 9 : a - 9 - long;
      if (labels.some(label => Math.abs(label.b - b) < 15 && begin < label.end && label.begin < begin + long))
        return;
      labels.push({ b, begin, end: begin + long });
      svg.append(shape("text", { x: begin, y: b - 7 }, point.label));
    });
  });
  if (named)
    series.forEach((one, k) => svg.append(shape("g", { transform: `translate(${left + 8} ${12 + 18 * k})` },
      one.marks === false ? shape("path", { class: "series", d: "M-8 0h16", style: `stroke: ${one.hue || HUES[k % HUES.length]}` })
        : MARKS[k % MARKS.length]({ style: `fill: ${one.hue || HUES[k % HUES.length]}` }),
      shape("text", { x: 14, y: 4 }, one.name))));
  main.append(svg);
}
