// SPDX-License-Identifier: Apache-2.0
// The page of `cuboid report`.
"use strict";

// ---- recipes ----

// A resolved recipe -> {"train.train_iters": {value, origin}}.
function readRecipe(text) {
  const keys = {};
  let section = "";
  for (const line of text.split("\n")) {
    const begins = /^(\w+):\s*$/.exec(line), entry = /^(\s*)(\w+): (.*?)(?:\s+# (.*))?$/.exec(line);
    if (begins)
      section = begins[1] + ".";
    else if (entry)
      keys[(entry[1] ? section : "") + entry[2]] = { value: entry[3], origin: entry[4] || "" };
  }
  return keys;
}

function layoutOf(keys) {
  const of = name => keys[name] ? keys[name].value : "?";
  return `dp ${of("parallel.data_parallel_size")} x tp ${of("parallel.tensor_parallel_size")} x pp `
    + `${of("parallel.pipeline_parallel_size")}, ${of("pipeline.schedule")}, ZeRO ${of("parallel.zero_stage")}, `
    + of("precision.params_dtype");
}

function addRecipes(main, runs) {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.keys)))];
  const value = (run, name) => run.keys[name] ? run.keys[name].value : "";
  const differ = names.filter(name => runs.some(run => value(run, name) !== value(runs[0], name)));
  if (runs.length > 1) {
    main.append(element("h2", {}, "Recipe keys that differ"));
    if (differ.length === 0)
      main.append(element("p", { class: "note" }, "None."));
    else
      addTable(main, [{ name: "key", value: row => row },
        ...runs.map(run => ({ name: run.short, value: row => value(run, row) }))], differ, "differences of recipes");
  }
  main.append(element("h2", {}, runs.length > 1 ? `Recipe of ${runs[0].short}` : "Recipe"));
  addTable(main, [
    { name: "key", value: row => row },
    { name: "value", value: row => value(runs[0], row) },
    { name: "from", value: row => runs[0].keys[row].origin },
  ], Object.keys(runs[0].keys), "recipe");
}

// ---- runs ----

function median(values) {
  const known = values.filter(value => value !== null).sort((a, b) => a - b), n = known.length;
  return n === 0 ? null : (known[Math.floor((n - 1) / 2)] + known[Math.floor(n / 2)]) / 2;
}

function last(values) {
  return values.length > 0 ? values[values.length - 1] : null;
}

function addSummary(main, runs) {
  const least = values => { const known = values.filter(value => value !== null); return known.length ? known.reduce((a, b) => Math.min(a, b)) : null; };
  const peak = run => run.metrics.peak_bytes;
  const later = values => values.length > 1 ? values.slice(1) : values; // the first step is slower
  addTable(main, [
    { name: "run", value: run => run.short },
    { name: "layout", value: run => layoutOf(run.keys) },
    { name: "steps", value: run => last(run.metrics.step) },
    { name: "tokens", value: run => last(run.metrics.consumed_tokens), show: value => figure(value) },
    { name: "last loss", value: run => last(run.metrics.loss), show: value => figure(value, 5) },
    { name: "best validation loss", value: run => least(run.metrics.valid_loss), show: value => figure(value, 5) },
    { name: "step, s", value: run => median(later(run.metrics.step_time_s)), show: value => figure(value) },
    { name: "predicted, s", value: run => last(run.metrics.predicted_step_time_s), show: value => figure(value) },
    { name: "tokens/s", value: run => median(later(run.metrics.tokens_per_s)), show: value => figure(value) },
    { name: "MFU", value: run => median(later(run.metrics.mfu)), show: value => percent(value) },
    { name: "bubble", value: run => median(later(run.metrics.bubble_fraction)), show: value => percent(value) },
    { name: "memory, GiB", value: peak, show: gib },
    { name: "last step", value: run => last(run.metrics.time),
      show: value => value === null ? "" : new Date(1000 * value).toISOString().slice(0, 16).replace("T", " ") },
  ], runs, "runs");
}

const AXES = {
  steps: { label: "step", of: metrics => metrics.step },
  tokens: { label: "tokens", of: metrics => metrics.consumed_tokens },
  hours: { label: "hours since the first step, with pauses", of: metrics => metrics.time.map(value =>
    value === null || metrics.time[0] === null ? null : (value - metrics.time[0]) / 3600) },
};

function curve(run, field, axis, k, name) {
  const xs = AXES[axis].of(run.metrics), ys = run.metrics[field];
  return { name, line: "straight", marks: field === "valid_loss", hue: HUES[k % HUES.length],
    points: xs.map((x, i) => ({ x, y: ys[i], title: `${name}: step ${run.metrics.step[i]}, ${figure(ys[i], 6)}` }))
      .filter(point => point.x !== null && point.y !== null) };
}

function addCurves(main, runs, axis) {
  const charts = [["loss", "training loss"], ["valid_loss", "validation loss"], ["grad_norm", "gradient norm"],
    ["lr", "learning rate"], ["tokens_per_s", "tokens/s"], ["mfu", "MFU"], ["bubble_fraction", "bubble"]];
  for (const [field, label] of charts) {
    const series = runs.map((run, k) => curve(run, field, axis, k, run.short)).filter(one => one.points.length > 0);
    if (series.length === 0)
      continue;
    const section = element("section", {}, element("h2", {}, label[0].toUpperCase() + label.slice(1)));
    addChart(section, series, { xLabel: AXES[axis].label, yLabel: label, label: `${label} by ${axis}` });
    main.append(section);
  }
}

function addMemory(main, runs) {
  const parts = [...new Set(runs.flatMap(run => Object.keys(run.metrics.memory_bytes)))];
  main.append(element("h2", {}, "Memory by part"),
    element("p", { class: "note" }, "Peak of each part on the rank that has the most of it, in the last step; GiB."));
  addTable(main, [{ name: "part", value: row => row },
    ...runs.map(run => ({ name: run.short, value: row => run.metrics.memory_bytes[row] ?? null, show: gib }))],
  parts.filter(part => runs.some(run => run.metrics.memory_bytes[part] > 0)), "memory by part");
}

{
  const runs = readData("data").runs;
  const common = runs.length > 1 ? runs[0].name.split("/").slice(0, -1).join("/") + "/" : "";
  for (const run of runs) {
    run.keys = readRecipe(run.recipe);
    run.short = common.length > 1 && runs.every(one => one.name.startsWith(common)) ? run.name.slice(common.length) : run.name;
  }
  const thinned = runs.filter(run => run.metrics.every > 1);
  const main = addHeading([thinned.length > 0 && `Curves have every ${Math.max(...thinned.map(run => run.metrics.every))}th step `
    + "or more, and all evaluations."]);
  addSummary(main, runs);
  const curves = element("div", { class: "charts" });
  const choice = element("select", { "aria-label": "horizontal axis",
    change: event => { curves.replaceChildren(); addCurves(curves, runs, event.target.value); } },
  ...Object.keys(AXES).map(axis => element("option", { value: axis }, axis)));
  main.append(element("div", { class: "filter" }, element("label", {}, "curves by ", choice)), curves);
  addCurves(curves, runs, "steps");
  addMemory(main, runs);
  addRecipes(main, runs);
}
