// The page: the visitor's choices, the questions to the server, and how its answers are shown.

import { barChart, dashOf, lineChart } from "./charts.js";
import { between, css, decoded, drawHeat, drawLegend, drawMap, drawPicture } from "./draw.js";
import { csv, png, python } from "./save.js";
import { endTour, startTour } from "./tour.js";

const $ = (id) => document.getElementById(id);
const THIS = "this network";
const SITES = ["Z", "Z_half", "Z_next"];
const SITE_TEXTS = [
  "The tokens that enter the layer: one row per patch, the class token first.",
  "After compression: to each token attention has added what it read of similar tokens, head by head.",
  "After sparsification: a sparse code. Empty places are exactly zero.",
];
const DEFINITION_TEXTS = {
  paper: "Tokens after compression, unscaled, as defined in the paper: longer tokens have a higher rate.",
  official: "Tokens that enter the compression, their projections at unit length, as in the authors' script.",
  unit: "Tokens after compression, their projections at unit length: shorter tokens alone do not lower the rate.",
};

/** Everything that is chosen. `pictures` are what was opened: {key, image, look, file or sample}. */
export const state = {
  about: null, reference: null, pictures: [], picture: null, layer: 1, site: 0, token: 0,
  attention: null, head: null, coordinate: null, detail: null, off: { heads: [], atoms: [] }, now: null,
  definition: "unit", compare: "", other: null, playing: 0, asked: 0, opening: 0,
};

// Asking

async function ask(name, question, raw) {
  const answer = await fetch(`/api/${name}`, question === undefined ? {} : {
    method: "POST", headers: { "x-opencrate": "1" }, body: raw ?? JSON.stringify(question),
  }).catch(() => { throw new Error("The server does not answer: is it still running?"); });
  const content = await answer.json().catch(() => ({ error: `The server failed (${answer.status}).` }));
  if (!answer.ok) throw Object.assign(new Error(content.error ?? `The server failed (${answer.status}).`), { status: answer.status });
  return content;
}

/** Ask about the open picture; a picture that the server no longer keeps is sent again. */
async function askOf(name, question) {
  const picture = state.picture;
  const complete = () => ({ key: picture.key, network: THIS, off: state.off, ...question });
  try {
    return await ask(name, complete());
  } catch (error) {
    if (error.status !== 410) throw error;
    picture.key = (await send(picture)).key;
    return ask(name, complete());
  }
}

const send = (picture) => picture.file ? ask("picture", null, picture.file) : ask("sample", { number: picture.sample });

async function doing(work) {
  document.body.classList.add("busy");
  $("error").hidden = true;
  try {
    await work();
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
    document.querySelectorAll(".asking").forEach((one) => { one.textContent = "No answer."; });
  } finally {
    document.body.classList.remove("busy");
  }
}

function unpacked(look) {
  for (const site of look.sites) {
    site.values = decoded(site.values, Int8Array);
    site.signed = site.values.some((value) => value < 0);
  }
  return look;
}

// Opening

const open = (source) => doing(async () => {
  const mine = ++state.opening, answer = await send(source), image = new Image();
  image.src = answer.shown;
  await image.decode();
  const picture = { ...source, key: answer.key, image, look: unpacked(answer), notes: answer.notes };
  const known = state.pictures.findIndex((one) => source.sample !== undefined ? one.sample === source.sample : one.file === source.file);
  if (known < 0) state.pictures.push(picture); else state.pictures[known] = picture;
  if (mine === state.opening) await choosePicture(picture);
  else showSamples();
});

async function choosePicture(picture) {
  stop();
  endTour(); // its texts are about the previous picture
  Object.assign(state, { picture, attention: null, detail: null, now: null, other: null });
  $("notes").textContent = picture.notes.join(" ");
  $("notes").hidden = picture.notes.length === 0;
  show();
  document.body.dataset.ready = "1";
  await refresh();
}

/** Load what depends on the picture, on what is switched off and on the other network. */
async function refresh() {
  const mine = ++state.asked, isOff = state.off.heads.length + state.off.atoms.length > 0;
  const current = () => mine === state.asked;
  if (!isOff) state.now = null;
  else {
    const now = unpacked(await askOf("look", {}));
    if (!current()) return;
    state.now = now;
    show();
  }
  if (!state.compare) state.other = null;
  else {
    const other = unpacked(await askOf("look", { network: state.compare, off: { heads: [], atoms: [] } }));
    if (!current()) return;
    state.other = other;
    show();
  }
  await loadAttention();
  if (!current()) return;
  await loadDetail();
}

async function loadAttention() {
  const { picture, token, off } = state;
  const attention = await askOf("attention", { token });
  if (state.picture !== picture || state.token !== token || state.off !== off) return;
  state.attention = { ...attention, maps: decoded(attention.maps, Uint8Array) };
  show();
}

/** Load the details of the chosen head or coordinate; an answer that arrives after another choice is dropped. */
async function loadDetail() {
  const { picture, layer, head, coordinate, off } = state;
  if (!head && !coordinate) return;
  const itself = { ...off, atoms: off.atoms.filter((pair) => !(pair[0] === layer && pair[1] === coordinate)) };
  const question = head ? { layer, head } : { layer, coordinate, off: itself }; // a coordinate that is off would be 0
  const detail = await askOf(head ? "head" : "coordinate", question);
  const now = state;
  if (now.picture !== picture || now.layer !== layer || now.head !== head || now.coordinate !== coordinate || now.off !== off) return;
  state.detail = { kind: head ? "head" : "coordinate", ...detail };
  show();
}

// Choosing

export function setLayer(layer, site = state.site) {
  stop();
  state.layer = Math.min(Math.max(layer, 1), state.about.layers);
  state.site = site;
  clearTimeout(setLayer.later);
  if ((state.head || state.coordinate) && state.detail?.layer !== state.layer) {
    state.detail = null;
    setLayer.later = setTimeout(() => doing(loadDetail), 200); // a person may be on the way to another layer
  }
  show();
}

const setToken = (token) => doing(async () => {
  stop();
  Object.assign(state, { token, attention: null });
  show();
  await loadAttention();
});
const setHead = (layer, head) => doing(async () => {
  Object.assign(state, { head, coordinate: null, detail: null });
  setLayer(layer);
  clearTimeout(setLayer.later);
  if (matchMedia("(max-width: 700px)").matches) $("detail").scrollIntoView({ block: "nearest" });
  await loadDetail();
});
const setCoordinate = (coordinate) => doing(async () => {
  stop();
  Object.assign(state, { coordinate: Math.min(Math.max(coordinate, 1), state.about.dim), head: null, detail: null, site: 2 });
  $("coordinate").value = state.coordinate;
  show();
  await loadDetail();
});
const setOff = (off) => doing(async () => {
  const before = state.off;
  state.off = off;
  show();
  if ($("switch")) $("switch").disabled = true; // a second press would undo the first
  try {
    await refresh();
  } catch (error) {
    if (state.off === off) state.off = before;
    throw error;
  } finally {
    show();
  }
});
const switchOff = (kind, pair) => {
  const key = JSON.stringify(pair), list = state.off[kind].filter((one) => JSON.stringify(one) !== key);
  return setOff({ ...state.off, [kind]: list.length < state.off[kind].length ? list : [...list, pair] });
};
const reset = () => setOff({ heads: [], atoms: [] });
const isOff = (kind, pair) => state.off[kind].some((one) => JSON.stringify(one) === JSON.stringify(pair));

// Playing the step from Z^l to Z^{l+1/2} to Z^{l+1}

function stop() {
  cancelAnimationFrame(state.playing);
  state.playing = 0;
  $("play").textContent = "Play the step";
}

function play() {
  if (state.playing) return stop(), show();
  if (state.layer === state.about.layers && state.site === 2) setLayer(1, 0);
  $("play").textContent = "Stop";
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches, seconds = 0.9, start = performance.now();
  const first = 2 * (state.layer - 1) + state.site, last = 2 * state.layer + (state.site === 2 ? 2 : 0);
  const frame = (time) => {
    const at = Math.min(first + Math.max(time - start, 0) / 1000 / seconds, last), site = Math.floor(at);
    const share = calm ? 0 : Math.max(0, (at - site - 0.25) / 0.75), sites = currentLook().sites;
    place(site);
    show(between(sites[site], sites[Math.min(site + 1, sites.length - 1)], share));
    if (at < last) state.playing = requestAnimationFrame(frame);
    else { place(last); setLayer(state.layer, state.site); }
  };
  state.playing = requestAnimationFrame(frame);
}

/** Site number i of 2L + 1: the last of a layer rather than the first of the next. */
function place(i) {
  state.layer = Math.max(1, Math.ceil(i / 2));
  state.site = i === 0 ? 0 : 2 - (i % 2);
}

// Showing

export const currentLook = () => state.now ?? state.picture.look;
const siteOf = (look) => look.sites[2 * (state.layer - 1) + state.site];
const tokenName = () => {
  const columns = state.about.grid[1], i = state.token - 1;
  return state.token === 0 ? "the class token" : `the patch in row ${Math.floor(i / columns) + 1}, column ${(i % columns) + 1}`;
};

export function series(measure) {
  const curves = [{ name: "this picture", values: state.picture.look.curves[measure], colour: css("--accent") }];
  if (state.now) curves.push({ name: "with parts off", values: state.now.curves[measure], colour: css("--second"), dash: "7 3" });
  if (state.other) curves.push({ name: state.compare, values: state.other.curves[measure], colour: css("--third"), dash: "2 3" });
  if (state.reference?.samples) curves.push({ name: `mean of ${state.reference.samples} pictures (${state.reference.name})`, values: state.reference.curves[measure], colour: css("--soft"), dash: "10 4 2 4" });
  return curves.map((one) => ({ dash: "none", ...one }));
}

function show(tokens = siteOf(currentLook())) {
  $("layer").value = state.layer;
  $("layer").setAttribute("aria-valuetext", `layer ${state.layer} of ${state.about.layers}, ${SITES[state.site]}`);
  $("layer-number").textContent = `${state.layer} of ${state.about.layers}`;
  for (const button of $("sites").children) {
    const chosen = Number(button.dataset.site) === state.site;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  const nonzero = siteOf(currentLook()).values.reduce((sum, value) => sum + (value !== 0), 0) / siteOf(currentLook()).values.length;
  $("site-text").textContent = `${SITE_TEXTS[state.site]} ${(100 * nonzero).toFixed(0)} % of the entries are not zero.`;
  const beside = state.other && siteOf(state.other), most = Math.max(tokens.scale, beside?.scale ?? 0), signed = tokens.signed || Boolean(beside?.signed);
  drawHeat($("heat"), tokens, state.token, state.coordinate, most, signed);
  $("heat-name").textContent = state.now ? "this network, with parts off" : THIS;
  $("other-figure").hidden = !beside; // it may have fewer layers
  if (beside) {
    drawHeat($("other-heat"), beside, state.token, state.coordinate, most, signed);
    $("other-name").textContent = state.compare;
  }
  drawLegend($("legend"), signed);
  $("legend-low").textContent = signed ? `−${most.toFixed(1)}` : "0 is empty";
  $("legend-high").textContent = most.toFixed(1);
  if (state.playing) return;
  showPicture();
  showPrediction();
  showHeads();
  showCurves();
  showDetail();
  showOff();
  for (const button of $("samples").children) button.setAttribute("aria-selected", button.picture === state.picture);
}

function attentionMap(layer, head) {
  const [, heads, h, w] = state.attention.shape, size = h * w, at = ((layer - 1) * heads + head - 1) * size;
  return state.attention.maps.subarray(at, at + size);
}

function showPicture() {
  let map = null, grouped = [];
  if (state.head && state.attention) map = attentionMap(state.layer, state.head);
  if (state.detail?.kind === "head") grouped = state.detail.grouped;
  if (state.detail?.kind === "coordinate") {
    const active = state.detail.activity.slice(1), most = Math.max(...active, 1e-9);
    map = active.map((value) => (255 * value) / most);
  }
  drawPicture($("picture"), state.picture.image, state.about.grid, { map, token: state.token, grouped });
  if (!state.pictures.every((one) => [...$("samples").children].some((button) => button.picture === one))) showSamples();
}

function showPrediction() {
  const items = state.picture.look.prediction.map(({ name, number, probability }) => {
    const item = document.createElement("li"), label = document.createElement("span"), value = document.createElement("span");
    label.textContent = name;
    item.append(label, value);
    const shares = [];
    for (const [kind, look] of [["", state.picture.look], ["now", state.now], ["other", state.other]]) {
      if (!look) continue;
      const share = kind ? look.probabilities[number] : probability;
      shares.push(share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
      const bar = document.createElement("div"), inner = document.createElement("i");
      bar.className = `bar ${kind}`;
      inner.style.width = `${100 * (share ?? 0)}%`;
      bar.title = { "": THIS, now: "with parts off", other: state.compare }[kind];
      bar.append(inner);
      item.append(bar);
    }
    value.textContent = shares.join(" · ");
    return item;
  });
  for (const [look, name] of [[state.now, "with parts off"], [state.other, state.compare]]) {
    if (!look?.prediction.length) continue;
    const item = document.createElement("li"), [best] = look.prediction;
    item.textContent = `${name}: ${best.name}, ${(100 * best.probability).toFixed(1)} %`;
    items.push(item);
  }
  if (!items.length) items.push(Object.assign(document.createElement("li"), { textContent: "This network has no classifier." }));
  $("prediction").replaceChildren(...items);
}

function showHeads() {
  $("token-name").textContent = tokenName();
  const all = $("all-layers").checked, place = $("heads");
  place.classList.toggle("all", all);
  if (!state.attention) return place.replaceChildren(Object.assign(document.createElement("p"), { className: "hint asking", textContent: "Loading …" }));
  const [layers, heads, h, w] = state.attention.shape, made = [];
  for (let layer = all ? 1 : state.layer; layer <= (all ? layers : state.layer); layer++) {
    if (all) made.push(Object.assign(document.createElement("p"), { className: "row", textContent: `layer ${layer}` }));
    for (let head = 1; head <= heads; head++) {
      const button = document.createElement("button"), canvas = document.createElement("canvas");
      drawMap(canvas, attentionMap(layer, head), h, w);
      const share = Math.round(100 * state.attention.to_patches[layer - 1][head - 1]);
      const off = isOff("heads", [layer, head]);
      button.append(canvas, all ? `${head}${off ? " off" : ""}` : `head ${head}${off ? ", off" : `, ${share}\u00a0%`}`);
      button.setAttribute("aria-pressed", state.head === head && state.layer === layer);
      button.setAttribute("aria-label", `layer ${layer}, head ${head}: ${share} % of its attention goes to patches${off ? ", switched off" : ""}`);
      button.addEventListener("click", () => setHead(layer, head));
      made.push(button);
    }
  }
  const focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(...made);
  if (focused >= 0) place.children[focused]?.focus();
}

function showCurves() {
  $("definition-text").textContent = DEFINITION_TEXTS[state.definition];
  const choose = (layer) => setLayer(layer);
  lineChart($("rate-chart"), `coding rate R^c (${state.definition})`, series(state.definition), state.layer, choose);
  lineChart($("nonzero-chart"), "non-zero fraction of the code", series("nonzero"), state.layer, choose);
  $("chart-legend").replaceChildren(...series("nonzero").map(({ name, colour, dash }) => {
    const item = document.createElement("li");
    item.append(dashOf(colour, dash), name);
    return item;
  }));
}

function showDetail() {
  const detail = state.detail, place = $("detail"), made = [];
  const add = (name, text, className = "") => made.push(Object.assign(document.createElement(name), { textContent: text, className })) && made.at(-1);
  if (!detail) {
    add("h3", "Details");
    if (state.head || state.coordinate) add("p", "Loading …", "hint asking");
    else add("p", "Click a head, or a column of the token map, for details.", "hint");
    return place.replaceChildren(...made);
  }
  const isHead = detail.kind === "head", kind = isHead ? "heads" : "atoms", number = isHead ? detail.head : detail.coordinate;
  add("h3", `${isHead ? "Head" : "Coordinate"} ${number} of layer ${detail.layer}`);
  if (isHead) {
    const others = detail.coherence.filter((_, i) => i !== number - 1);
    add("p", `The tokens of this picture use ${detail.effective_rank.toFixed(1)} of its ${detail.directions} directions. Its orthonormality gap is ${detail.orthonormality_gap.toFixed(2)}.`);
    made.push(barChart(detail.spectrum, "singular values of the picture's tokens in the subspace", css("--accent")));
    if (others.length) made.push(barChart(detail.coherence, `coherence with each head; ${(others.reduce((a, b) => a + b, 0) / others.length).toFixed(2)} on average with the others`, css("--accent"), number - 1));
    add("p", `Framed in the picture: the ${detail.grouped.length} patches that it groups most strongly.`);
  } else {
    const active = detail.activity.filter((value) => value > 0).length;
    const prefix = isOff(kind, [detail.layer, number]) ? "It is switched off. Otherwise it would be active" : "Active";
    add("p", `${prefix} in ${active} of ${detail.activity.length} tokens; the brightest patches are those where it is largest.`);
    made.push(barChart(detail.column, `column ${number} of the dictionary D, norm ${detail.norm.toFixed(2)}`, css("--accent"), number - 1));
  }
  if (detail.reference.length) {
    add("p", isHead ? "The patches of reference pictures that lie farthest along its leading direction:" : "The patches of reference pictures where it is largest:");
    const crops = add("div", "", "crops");
    for (const { png: source, score, picture } of detail.reference) {
      const image = Object.assign(new Image(), { src: source, alt: `patch of reference picture ${picture + 1}, score ${score.toFixed(2)}`, title: `reference picture ${picture + 1}: ${score.toFixed(2)}` });
      crops.append(image);
    }
  } else add("p", "It is active in no reference picture.", "hint");
  const pair = [detail.layer, number], button = add("button", isOff(kind, pair) ? "Switch on" : `Switch this ${isHead ? "subspace" : "coordinate"} off`);
  button.id = "switch";
  button.addEventListener("click", () => switchOff(kind, pair));
  const focused = document.activeElement?.id === "switch";
  place.replaceChildren(...made);
  if (focused) button.focus();
}

function showOff() {
  const chips = [["heads", "head"], ["atoms", "coordinate"]].flatMap(([kind, word]) => state.off[kind].map((pair) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.textContent = `layer ${pair[0]}, ${word} ${pair[1]} ✕`;
    button.setAttribute("aria-label", `switch layer ${pair[0]}, ${word} ${pair[1]} on`);
    button.addEventListener("click", () => switchOff(kind, pair));
    item.append(button);
    return item;
  }));
  $("off").hidden = chips.length === 0;
  $("off-list").replaceChildren(...chips);
}

function showSamples() {
  const strip = $("samples");
  for (const picture of state.pictures.filter((one) => one.file && ![...strip.children].some((button) => button.picture === one))) {
    strip.append(thumbnail(picture.image.src, "your picture", () => doing(() => choosePicture(picture)), picture));
  }
  for (const button of strip.children) {
    if (button.sample !== undefined) button.picture = state.pictures.find((one) => one.sample === button.sample);
  }
}

function thumbnail(source, label, choose, picture, sample) {
  const button = Object.assign(document.createElement("button"), { picture, sample });
  button.setAttribute("role", "option");
  button.setAttribute("aria-label", label);
  button.append(Object.assign(new Image(), { src: source, alt: "" }));
  button.addEventListener("click", choose);
  return button;
}

// Events

async function openFiles(files) {
  const refused = [];
  for (const file of files) {
    await open({ file });
    if (!$("error").hidden) refused.push(files.length > 1 ? `${file.name}: ${$("error").textContent}` : $("error").textContent);
  }
  if (!refused.length) return;
  $("error").textContent = refused.join(" ");
  $("error").hidden = false;
}

function patchAt(event) {
  const box = $("picture").getBoundingClientRect(), [rows, columns] = state.about.grid;
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns), row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  return 1 + Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1);
}

function cellAt(event) {
  const box = event.target.getBoundingClientRect(), [n, d] = siteOf(currentLook()).shape;
  const within = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
  return [within((event.clientY - box.top) / box.height, n), within((event.clientX - box.left) / box.width, d)];
}

function moveToken(key) {
  const [rows, columns] = state.about.grid, steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const wanted = state.token === 0 ? 1 : state.token + steps[key];
  if (wanted >= 1 && wanted <= rows * columns) setToken(wanted);
}

document.addEventListener("keydown", (event) => {
  if (!state.picture || event.altKey || event.ctrlKey || event.metaKey || !event.key.startsWith("Arrow")) return;
  const target = event.target, sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (target.closest("dialog, textarea, select, input:not([type=range])") || target === $("layer")) return;
  if (target === $("picture")) moveToken(event.key);
  else if (target === $("heat") && sideways) setCoordinate((state.coordinate ?? 0) + sideways);
  else if (target.closest("#sites") && sideways) { setLayer(state.layer, Math.min(Math.max(state.site + sideways, 0), 2)); $("sites").children[state.site].focus(); }
  else if (sideways) setLayer(state.layer + sideways);
  else return;
  event.preventDefault();
});

$("picture").addEventListener("click", (event) => state.picture && setToken(patchAt(event)));
$("heat").addEventListener("click", (event) => state.picture && setCoordinate(cellAt(event)[1] + 1));
$("heat").addEventListener("mousemove", (event) => {
  if (!state.picture) return;
  const [token, i] = cellAt(event), site = siteOf(currentLook()), value = (site.values[token * site.shape[1] + i] * site.scale) / 127;
  $("heat-value").textContent = `token ${token}, coordinate ${i + 1}: ${value.toFixed(2)}`;
});
$("layer").addEventListener("input", (event) => { stop(); setLayer(Number(event.target.value)); });
$("back").addEventListener("click", () => setLayer(state.layer - 1));
$("forward").addEventListener("click", () => setLayer(state.layer + 1));
$("play").addEventListener("click", play);
$("sites").addEventListener("click", (event) => { const button = event.target.closest("button"); if (button) { stop(); setLayer(state.layer, Number(button.dataset.site)); } });
$("class-token").addEventListener("click", () => setToken(0));
$("all-layers").addEventListener("change", showHeads);
$("definition").addEventListener("change", (event) => { state.definition = event.target.value; show(); });
$("compare").addEventListener("change", (event) => doing(async () => {
  Object.assign(state, { compare: event.target.value, other: null });
  show();
  await refresh();
  show();
}));
$("coordinate-form").addEventListener("submit", (event) => { event.preventDefault(); setCoordinate(Number($("coordinate").value)); });
$("reset").addEventListener("click", reset);
$("file").addEventListener("change", (event) => {
  const files = [...event.target.files];
  event.target.value = ""; // so that the same file can be chosen again
  openFiles(files);
});
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  if (state.picture) show();
});
$("save-png").addEventListener("click", () => doing(() => png(state, series)));
$("save-csv").addEventListener("click", () => csv(state));
$("python").addEventListener("click", () => {
  $("python-text").value = python(state);
  $("python-dialog").showModal();
  $("python-text").setSelectionRange(0, 0);
  $("python-text").scrollTop = 0;
});
$("python-copy").addEventListener("click", async () => {
  $("python-text").select();
  await navigator.clipboard?.writeText($("python-text").value).catch(() => document.execCommand("copy"));
  $("python-copy").textContent = "Copied";
  setTimeout(() => { $("python-copy").textContent = "Copy"; }, 1500);
});
$("tour-start").addEventListener("click", () => {
  if (!state.picture) return;
  stop();
  Object.assign(state, { head: null, coordinate: null, detail: null }); // the first step is about the picture itself
  startTour(state, setLayer);
});
document.addEventListener("paste", (event) => openFiles([...event.clipboardData.files]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") openFiles([...event.dataTransfer.files]);
  });
}

async function waitForReference() {
  const reference = await ask("reference").catch(() => ({ samples: 0 }));
  if (!reference.samples) return setTimeout(waitForReference, 1500);
  state.reference = reference;
  if (state.picture && !state.playing) showCurves();
}

history.replaceState(null, "", location.pathname); // without the token, for which a cookie stands from now on
doing(async () => {
  state.about = await ask("about");
  const { name, layers, heads, dim, parameters, note, networks, definitions } = state.about;
  $("about").textContent = `${name}: ${layers} layers, ${heads} heads, ${dim} coordinates, ${(parameters / 1e6).toFixed(parameters < 1e6 ? 2 : 1)} M weights. ${note ?? ""}`;
  $("layer").max = layers;
  $("coordinate").max = dim;
  for (const name of definitions) $("definition").append(new Option(name, name, name === state.definition, name === state.definition));
  for (const name of networks.filter((one) => one !== THIS)) $("compare").append(new Option(name, name));
  await open({ sample: 0 });
  const thumbnails = await ask("thumbnails");
  $("samples").prepend(...thumbnails.map((source, number) => thumbnail(source, `sample ${number + 1}`, () => open({ sample: number }), undefined, number))); // a person may have opened pictures by now
  showSamples();
  show();
  waitForReference();
});
