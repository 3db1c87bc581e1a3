// SPDX-License-Identifier: Apache-2.0
// The page of `cuboid table --html`; its data is the output of --json.
"use strict";

function addPoints(main, data) {
  const series = data.groups.map(group => ({ name: group.paper, points: data.rows
    .filter(row => row.paper === group.paper && row.reason === null && row.printed_s > 0 && row.predicted_s > 0)
    .map(row => ({ x: row.printed_s, y: row.predicted_s, title: `${row.model}, ${row.layout}: published `
      + `${figure(row.printed_s)} s, predicted ${figure(row.predicted_s)} s (${percent(row.error, true)})` })) }));
  addChart(main, series, { log: true, equal: true, band: 0.1, xLabel: "published step, s", yLabel: "predicted step, s",
    label: "predicted against published step time" });
  main.append(element("p", { class: "note" }, "Shaded: within 10 % of the published value."));
}

function addErrors(main, data) {
  const kinds = [["step_time", "step time"], ["step_time_scaled", "step time, scaled by one factor"],
    ["constant_utilization", "constant utilization"], ["flops_plus_bytes", "FLOPs plus bytes, no schedule"],
    ["memory", "memory"]];
  const rows = data.groups.flatMap(group => kinds.filter(([key]) => group[key].rows > 0)
    .map(([key, what]) => ({ paper: group.paper, what, ...group[key] })));
  main.append(element("h2", {}, "Errors"));
  addTable(main, [
    { name: "experiment", value: row => row.paper },
    { name: "error of", value: row => row.what },
    { name: "rows", value: row => row.rows },
    { name: "median", value: row => row.median, show: value => percent(value) },
    { name: "90th percentile", value: row => row.p90, show: value => percent(value) },
    { name: "bias", value: row => row.bias, show: value => percent(value, true) },
    { name: "worst", value: row => row.worst, show: value => percent(value, true) },
  ], rows, "errors");
}

function addRows(main, data) {
  const seconds = value => figure(value), gb = value => value === null ? "" : figure(1e-9 * value);
  const fits = { ok: "fits", oom: "OOM" };
  main.append(element("h2", {}, "Rows"));
  addTable(main, [
    { name: "experiment", value: row => row.paper },
    { name: "model", value: row => row.model },
    { name: "GPUs", value: row => row.gpus },
    { name: "layout", value: row => row.reason !== null ? row.reason : row.layout },
    { name: "dp", value: row => row.dp },
    { name: "published, s", value: row => row.printed_s, show: seconds },
    { name: "predicted, s", value: row => row.predicted_s, show: seconds },
    { name: "error", value: row => row.error, show: value => percent(value, true) },
    { name: "MFU published", value: row => row.printed_mfu, show: value => percent(value) },
    { name: "MFU predicted", value: row => row.predicted_mfu, show: value => percent(value) },
    { name: "published, GB", value: row => row.printed_bytes, show: gb },
    { name: "predicted, GB", value: row => row.predicted_bytes, show: gb },
    { name: "ran", value: row => fits[row.printed_fit] || "" },
    { name: "plan", value: row => fits[row.fit] || "" },
    { name: "notes", value: row => [row.notes, row.warning].filter(Boolean).join("; ") },
  ], data.rows, "rows");
}

{
  const data = readData("data");
  const main = addHeading([data.description, ...data.profiles.map(one => `Profile ${one.name}: ${one.basis}.`)]);
  addPoints(main, data);
  addErrors(main, data);
  addRows(main, data);
}
