// Charts as SVG, with all colours in attributes so that a saved picture has them too.

import { css } from "./draw.js";

const WIDTH = 340, HEIGHT = 150, LEFT = 46, RIGHT = 8, TOP = 20, BOTTOM = 30;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const rounded = (value) => (value === 0 ? "0" : value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2));

/** series: [{name, values, colour, dash}]; `current` is the layer with a line through it. */
export function lineChart(place, title, series, current, choose) {
  const shown = series.filter((one) => one.values);
  const most = Math.max(1e-9, ...shown.flatMap((one) => one.values)) * 1.05, layers = shown[0].values.length;
  const x = (layer) => LEFT + ((layer - 1) / Math.max(1, layers - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const summary = shown.map((one) => `${one.name} ${rounded(one.values[0])} to ${rounded(one.values.at(-1))}`).join(", ");
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `${title}: ${summary}` });
  const small = { "font-size": 11, "font-family": "system-ui, DejaVu Sans, sans-serif", fill: css("--soft") };
  svg.append(element("text", { ...small, x: LEFT, y: 12 }, title));
  for (const share of [0, 0.5, 1]) {
    const value = (share * most) / 1.05;
    svg.append(element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), stroke: css("--line") }));
    svg.append(element("text", { ...small, x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, rounded(value)));
  }
  const every = Math.ceil(layers / 12);
  for (let layer = 1; layer <= layers; layer += every) {
    svg.append(element("text", { ...small, x: x(layer), y: HEIGHT - 14, "text-anchor": "middle" }, layer));
  }
  svg.append(element("text", { ...small, x: (LEFT + WIDTH) / 2, y: HEIGHT - 2, "text-anchor": "middle" }, "layer"));
  svg.append(element("line", { x1: x(current), x2: x(current), y1: TOP, y2: HEIGHT - BOTTOM, stroke: css("--soft"), "stroke-dasharray": "2 3" }));
  for (const { values, colour, dash } of shown) {
    const points = values.slice(0, layers).map((value, i) => `${x(i + 1)},${y(value)}`).join(" ");
    svg.append(element("polyline", { points, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash }));
    if (values[current - 1] !== undefined) svg.append(element("circle", { cx: x(current), cy: y(values[current - 1]), r: 4, fill: colour }));
  }
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
    choose(Math.round(1 + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (layers - 1)));
  });
  place.replaceChildren(svg);
}

/** Bars from a middle line: the entries of a vector. */
export function barChart(values, title, colour, marked = -1) {
  const most = Math.max(1e-9, ...values.map(Math.abs)), signed = values.some((value) => value < 0);
  const width = 340, height = 80, top = 16, base = signed ? (top + height) / 2 : height - 2;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  svg.append(element("text", { x: 0, y: 11, "font-size": 11, "font-family": "system-ui, DejaVu Sans, sans-serif", fill: css("--soft") }, title));
  values.forEach((value, i) => {
    const long = (Math.abs(value) / most) * (signed ? (height - top) / 2 - 2 : height - top - 2);
    const bar = { x: (i * width) / values.length, width: Math.max(0.6, width / values.length - (values.length > 60 ? 0 : 2)), height: Math.max(long, 0.5), y: value < 0 ? base : base - long };
    svg.append(element("rect", { ...bar, fill: i === marked ? css("--second") : colour }));
  });
  const figure = document.createElement("div");
  figure.className = "chart";
  figure.append(svg);
  return figure;
}

/** What a curve's line looks like, for the legend. */
export function dashOf(colour, dash) {
  const svg = element("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
  svg.append(element("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }));
  return svg;
}
