// Canvases: token maps, attention maps, and the picture with the chosen patch.

const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];
const BLUE = [33, 102, 172], ORANGE = [203, 90, 20];

export const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const mix = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);

/** A share of the largest value, 0 … 1. */
export function viridis(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), low = Math.floor(at);
  return mix(VIRIDIS[low], VIRIDIS[Math.min(low + 1, VIRIDIS.length - 1)], at - low);
}

/** −1 … 1: blue below zero, orange above, and for exactly zero the ground. */
export function diverging(share) {
  const ground = dark() ? [29, 33, 37] : [247, 247, 247];
  return mix(ground, share < 0 ? BLUE : ORANGE, Math.min(Math.abs(share), 1) ** 0.6);
}

export function decoded(text, Kind) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

/** Tokens as {values, shape, scale}: those of a site, or something between two sites. */
export function between(one, other, share) {
  if (share <= 0) return one;
  if (share >= 1) return other;
  const scale = Math.max(one.scale, other.scale), values = new Float32Array(one.values.length);
  for (let i = 0; i < values.length; i++) {
    values[i] = ((1 - share) * one.values[i] * one.scale + share * other.values[i] * other.scale) / scale;
  }
  return { values, scale, shape: one.shape, signed: one.signed || other.signed };
}

/** Rows are tokens, columns coordinates; a token and a coordinate are marked. The colours end at `most`. */
export function drawHeat(canvas, tokens, token, coordinate, most, signed) {
  const [n, d] = tokens.shape, share = tokens.scale / most;
  canvas.width = d;
  canvas.height = n;
  canvas.classList.toggle("fine", d > canvas.clientWidth || n > canvas.clientHeight); // dropping columns would hide data
  const context = canvas.getContext("2d"), image = context.createImageData(d, n);
  const ground = dark() ? [29, 33, 37] : [247, 247, 247];
  const table = new Map();
  for (let i = 0; i < n * d; i++) {
    const value = tokens.values[i] * share, step = Math.round(value) || Math.sign(value); // only zero is empty
    let colour = table.get(step);
    if (!colour) {
      colour = signed ? diverging(step / 127) : step === 0 ? ground : viridis(0.15 + (0.85 * step) / 127);
      table.set(step, colour);
    }
    image.data.set([colour[0], colour[1], colour[2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  context.fillStyle = css("--second");
  context.globalAlpha = 0.55;
  if (coordinate) context.fillRect(coordinate - 1, 0, Math.max(1, Math.ceil((1.5 * d) / canvas.clientWidth)), n);
  if (token !== null) {
    context.globalAlpha = 0.8;
    context.fillRect(0, token, Math.max(2, Math.round(d / 60)), 1);
    context.fillRect(d - Math.max(2, Math.round(d / 60)), token, Math.max(2, Math.round(d / 60)), 1);
  }
  context.globalAlpha = 1;
}

export function drawLegend(canvas, signed) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    const share = x / (canvas.width - 1);
    const colour = signed ? diverging(2 * share - 1) : viridis(0.15 + 0.85 * share);
    context.fillStyle = `rgb(${colour.map(Math.round).join()})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}

/** A map of shares (h × w bytes) as small as it is. */
export function drawMap(canvas, map, h, w) {
  canvas.width = w;
  canvas.height = h;
  const context = canvas.getContext("2d"), image = context.createImageData(w, h);
  map.forEach((share, i) => {
    const colour = viridis(share / 255);
    image.data.set([colour[0], colour[1], colour[2], 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

/** The picture; over it a map (h × w, 0 … 255), the chosen patch and the patches that a head groups. */
export function drawPicture(canvas, picture, grid, { map, token, grouped = [] }) {
  const context = canvas.getContext("2d"), [rows, columns] = grid;
  const width = canvas.width / columns, height = canvas.height / rows;
  context.imageSmoothingEnabled = picture.naturalWidth > 100;
  context.globalAlpha = 1;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  if (map) {
    context.fillStyle = "rgb(0 0 0 / 0.35)";
    context.fillRect(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < map.length; i++) {
      context.fillStyle = `rgb(${viridis(map[i] / 255).map(Math.round).join()})`;
      context.globalAlpha = 0.15 + (0.6 * map[i]) / 255;
      context.fillRect((i % columns) * width, Math.floor(i / columns) * height, width, height);
    }
  }
  context.globalAlpha = 1;
  const frame = (row, column, colour, line) => {
    context.lineWidth = line + 2;
    context.strokeStyle = "#000";
    context.strokeRect(column * width, row * height, width, height);
    context.lineWidth = line;
    context.strokeStyle = colour;
    context.strokeRect(column * width, row * height, width, height);
  };
  grouped.forEach(([row, column]) => frame(row, column, "#f0935a", 2));
  if (token) frame(Math.floor((token - 1) / columns), (token - 1) % columns, "#ffffff", 3);
}
