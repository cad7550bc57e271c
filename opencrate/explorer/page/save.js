// Save the view as a picture, its numbers as a table, and the Python code that computes them.

import { css } from "./draw.js";

const $ = (id) => document.getElementById(id);

function download(content, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const fileName = (state, suffix) => `opencrate-layer-${state.layer}.${suffix}`;

async function drawn(svg) {
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" }));
  const image = Object.assign(new Image(), { src: address });
  await image.decode();
  URL.revokeObjectURL(address);
  return image;
}

export async function png(state, series) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1400, height: 760 }), context = canvas.getContext("2d");
  const text = (words, x, y, size = 18, colour = css("--ink")) => {
    context.fillStyle = colour;
    context.font = `${size}px system-ui, "DejaVu Sans", sans-serif`;
    context.fillText(words, x, y);
  };
  context.fillStyle = css("--ground");
  context.fillRect(0, 0, canvas.width, canvas.height);
  text(`${state.about.name}, layer ${state.layer} of ${state.about.layers}: ${["Z^l", "Z^(l+1/2)", "Z^(l+1)"][state.site]}`, 30, 42, 24);
  context.imageSmoothingEnabled = false;
  context.drawImage($("picture"), 30, 70, 340, 340);
  state.picture.look.prediction.forEach(({ name, probability }, i) => {
    const number = state.picture.look.prediction[i].number;
    const others = [state.now, state.other].filter(Boolean).map((look) => look.probabilities[number]).filter((one) => one !== undefined);
    text(`${name}  ${[probability, ...others].map((one) => `${(100 * one).toFixed(1)} %`).join(" · ")}`, 30, 445 + 40 * i, 16);
    context.fillStyle = css("--accent");
    context.fillRect(30, 452 + 40 * i, 340 * probability, 7);
  });
  const heats = state.other ? [$("heat"), $("other-heat")] : [$("heat")];
  heats.forEach((heat, i) => {
    const width = (560 - 10 * (heats.length - 1)) / heats.length;
    context.drawImage(heat, 400 + i * (width + 10), 70, width, 560);
    text(i ? state.compare : $("heat-name").textContent, 400 + i * (width + 10), 655, 14, css("--soft"));
  });
  context.imageSmoothingEnabled = true;
  for (const [i, name] of ["rate-chart", "nonzero-chart"].entries()) {
    context.drawImage(await drawn($(name).querySelector("svg")), 990, 70 + 190 * i, 390, 172);
  }
  series("nonzero").forEach(({ name, colour, dash }, i) => {
    context.strokeStyle = colour;
    context.lineWidth = 3;
    context.setLineDash(dash === "none" ? [] : dash.split(" ").map(Number));
    context.beginPath();
    context.moveTo(1000, 475 + 26 * i);
    context.lineTo(1040, 475 + 26 * i);
    context.stroke();
    text(name, 1052, 480 + 26 * i, 14, css("--soft"));
  });
  const off = [...state.off.heads.map(([l, h]) => `layer ${l} head ${h}`), ...state.off.atoms.map(([l, c]) => `layer ${l} coordinate ${c}`)];
  for (let i = 0; i < off.length && i < 12; i += 4) {
    text(`${i ? "" : "off: "}${off.slice(i, i + 4).join(", ")}${i === 8 && off.length > 12 ? " …" : ""}`, 400, 698 + 4.5 * i, 13, css("--second"));
  }
  text(`colours from ${$("legend-low").textContent.replace(" is empty", "")} to ${$("legend-high").textContent}`, 400, 676, 13, css("--soft"));
  text("made with opencrate explore", 30, 735, 13, css("--soft"));
  const content = await new Promise((done) => canvas.toBlob(done, "image/png"));
  download(content, fileName(state, "png"));
}

const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);

export function csv(state) {
  const rows = [["network", "measure", "layer", "value"]];
  const looks = [["this network", state.picture.look], ["with parts off", state.now], [state.compare, state.other], [`mean of ${state.reference?.samples} reference pictures`, state.reference]];
  for (const [name, look] of looks) {
    if (!look?.curves) continue;
    for (const [measure, values] of Object.entries(look.curves)) {
      values.forEach((value, i) => rows.push([name, measure === "nonzero" ? measure : `Rc ${measure}`, i + 1, value]));
    }
    for (const { name: label, probability } of look.prediction ?? []) rows.push([name, `probability of ${label}`, "", probability]);
  }
  download(new Blob([rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n"], { type: "text/csv" }), fileName(state, "csv"));
}

const pairs = (list) => `[${list.map(([layer, number]) => `(${layer}, ${number})`).join(", ")}]`;

export function python(state) {
  const site = ["Z", "Z_half", "Z_next"][state.site], literal = JSON.stringify;
  const picture = state.picture.file ? `subject.prepare(Image.open(${literal(state.picture.file.name || "picture.png")}))` : `subject.sample(${state.picture.sample})`;
  const lines = [
    "import opencrate",
    "from opencrate.inspection.ablation import ablated",
    "from opencrate.inspection.recording import record",
    "from opencrate.inspection.views import attention_rows, coherent_patches, top_patches",
    "from opencrate.explorer import Exploring, open_subject",
    "from PIL import Image",
    "",
    `subject = open_subject(${literal(state.about.source)}, ${state.about.settings})`,
    `picture = ${picture}`,
    `model = ablated(subject.model, heads=${pairs(state.off.heads)}, atoms=${pairs(state.off.atoms)})`,
    "",
    "recording = record(model, picture.images)",
    `step = recording.steps[${state.layer - 1}]  # layer ${state.layer}`,
    `tokens = step.${site}[0]`,
    "probabilities = model(picture.images).softmax(-1)[0]",
    `print(opencrate.layerwise(model, picture.images, ${literal(state.definition)}))`,
    `attention = attention_rows(step, token=${state.token})[0, :, 1:].unflatten(-1, recording.grid)`,
  ];
  if (state.head) lines.push(`grouped = coherent_patches(step, head=${state.head})`);
  if (state.coordinate) lines.push(`strongest = top_patches(record(model, subject.reference.searched.images).steps[${state.layer - 1}], coordinate=${state.coordinate})`);
  if (state.compare) lines.push(`print(opencrate.layerwise(subject.network(${literal(state.compare)}), picture.images, ${literal(state.definition)}))`);
  return lines.join("\n") + "\n";
}
