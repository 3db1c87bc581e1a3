// SPDX-License-Identifier: Apache-2.0
// The page of `cuboid sweep --html`.
"use strict";

// The Viridis palette, from yellow (0, fast) to dark blue (1): safe for colour-blind readers.
function viridis(share) {
  const stops = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];
  const at = 4 * Math.min(Math.max(share, 0), 1), low = Math.min(Math.floor(at), 3);
  const rgb = stops[low].map((value, i) => Math.round(value + (at - low) * (stops[low + 1][i] - value)));
  return `background: rgb(${rgb}); color: ${share < 0.55 ? "#000" : "#fff"}`;
}

function layoutText(data, values) {
  return data.axes.map((axis, i) => `${axis.label}=${axis.values[values[i]]}`).join(" ");
}

function mapCell(data, cell) {
  if (cell.step_s !== null) // darkest at twice the fastest step
    return element("td", { style: viridis(Math.log2(cell.step_s / data.layouts[0].step_s)),
      title: layoutText(data, cell.values) }, figure(cell.step_s));
  return element("td", { class: "none", title: cell.reason >= 0 ? data.reasons[cell.reason].what : "" },
    cell.bound_s !== null ? `≥ ${figure(cell.bound_s)}` : "-");
}

function addMaps(main, data) {
  const maps = data.maps.map(map => {
    const rows = data.axes[map.rows], columns = data.axes[map.columns];
    const head = element("tr", {}, element("th", { class: "text" }, `${rows.label} \\ ${columns.label}`),
      ...columns.values.map(value => element("th", { scope: "col" }, value)));
    return element("table", { class: "map" }, element("thead", {}, head), element("tbody", {},
      ...map.cells.map((cells, i) => element("tr", {}, element("th", { class: "text", scope: "row" }, rows.values[i]),
        ...cells.map(cell => mapCell(data, cell))))));
  });
  main.append(element("h2", {}, "Shortest step by pairs of keys"),
    element("p", { class: "note" }, "Seconds. Yellow: the fastest layout; dark blue: twice its step or more. Grey: no layout "
      + "was planned; ≥: only a lower bound is known."),
    element("div", { class: "wide maps" }, ...maps));
}

function addFront(main, data) {
  const named = layout => ({ x: layout.bytes / 2 ** 30, y: layout.step_s,
    title: `${layoutText(data, layout.values)}: ${figure(layout.step_s)} s, ${gib(layout.bytes)} GiB` });
  const front = [], others = [];
  for (const layout of data.layouts) // fastest first: on the front if it needs less than all faster ones
    if (front.every(faster => layout.bytes < faster.bytes))
      front.push(layout);
    else
      others.push(layout);
  main.append(element("h2", {}, "Time against memory"),
    element("p", { class: "note" }, "Labelled: no other planned layout is as fast with as little memory."));
  addChart(main, [
    { name: "planned", points: others.map(named), hue: "var(--accent)", faint: true },
    { name: "on the Pareto front", line: "steps", hue: "var(--front)",
      points: front.map(layout => ({ ...named(layout), label: layoutText(data, layout.values) })) },
  ], { xLabel: "peak memory of a device, GiB", yLabel: "step, s", label: "step time against memory" });
}

function addMeasured(main, data) {
  const runs = data.layouts.filter(layout => layout.measured_s);
  if (runs.length < 2)
    return;
  const errors = runs.map(run => Math.abs(run.step_s / run.measured_s - 1)).sort((a, b) => a - b), n = errors.length;
  const median = (errors[Math.floor((n - 1) / 2)] + errors[Math.floor(n / 2)]) / 2, p90 = errors[Math.ceil(0.9 * n) - 1];
  main.append(element("h2", {}, "Measured against predicted"),
    element("p", {}, `${n} runs: median error ${percent(median)}, 90th percentile ${percent(p90)}.`));
  addChart(main, [{ points: runs.map(run => ({ x: run.step_s, y: run.measured_s,
    title: `${layoutText(data, run.values)}: ${figure(run.measured_s)} s, predicted ${figure(run.step_s)} s` })) }],
  { equal: true, xLabel: "predicted step, s", yLabel: "measured step, s", label: "measured against predicted step time" });
}

function addPlanned(main, data) {
  const columns = [
    { name: "rank", value: row => row.place },
    { name: "step, s", value: row => row.step_s, show: value => figure(value) },
    { name: "TFLOP/s/GPU", value: row => row.tflops, show: value => figure(value) },
    { name: "MFU", value: row => row.mfu, show: value => percent(value) },
    { name: "bubble", value: row => row.bubble, show: value => percent(value) },
    { name: "memory, GiB", value: row => row.bytes, show: gib },
  ];
  if (data.layouts.some(layout => layout.run))
    columns.push({ name: "run", value: row => row.run },
      { name: "measured, s", value: row => row.measured_s, show: value => figure(value) },
      { name: "error", value: row => row.measured_s ? row.step_s / row.measured_s - 1 : null,
        show: value => percent(value, true) });
  if (!data.axes.some(axis => axis.label === "dp"))
    columns.push({ name: "dp", value: row => row.dp });
  data.axes.forEach((axis, i) => columns.push({ name: axis.label, value: row => axis.values[row.values[i]] }));
  main.append(element("h2", {}, "Planned layouts, fastest first"));
  addTable(main, columns, data.layouts.map((layout, i) => ({ ...layout, place: i + 1 })), "planned layouts");
}

function addOthers(main, data) {
  main.append(element("h2", {}, "Layouts without a plan"));
  addTable(main, [
    { name: "", value: row => row.place },
    { name: "layouts", value: row => row.count },
    { name: "reason", value: row => row.what },
    { name: "example", value: row => row.example },
  ], data.reasons.map((reason, i) => ({ ...reason, place: i + 1 })), "reasons");
  if (data.others.length === 0)
    return;
  addTable(main, [
    { name: "reason", value: row => row.reason >= 0 ? row.reason + 1 : "slower" },
    { name: "at least, s", value: row => row.bound_s, show: value => figure(value) },
    ...data.axes.map((axis, i) => ({ name: axis.label, value: row => axis.values[row.values[i]] })),
  ], data.others, "layouts without a plan");
  if (data.unlisted > 0)
    main.append(element("p", { class: "note" }, `${data.unlisted} more are not listed.`));
}

{
  const data = readData("data"), counts = data.counts;
  const main = addHeading([
    data.cluster && `Cluster profile ${data.cluster.profile}, ${data.cluster.ranks} ranks`
      + (data.cluster.nodes > 0 ? ` on ${data.cluster.nodes} nodes` : "") + " in the fastest layout.",
    data.basis,
    `${data.total} layouts of ${data.base}: ${counts.planned} planned, ${counts.slower} slower by a lower bound of the step `
      + `time, ${counts.too_large} do not fit, ${counts.tight} fit but leave less than cluster.memory_headroom free, `
      + `${counts.invalid} rejected by rules, ${counts.failed} that cannot be planned.`,
  ]);
  if (data.layouts.length > 0) {
    addMaps(main, data);
    addFront(main, data);
    addMeasured(main, data);
    addPlanned(main, data);
  }
  addOthers(main, data);
}
