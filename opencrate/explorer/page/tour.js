// The tour: five steps that explain compression, sparsification and the objective on the open picture.

const $ = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(0)} %`;

function steps({ about, picture, now }) {
  const { curves, prediction, sites } = now ?? picture.look, [n, d] = sites[0].shape, last = about.layers;
  const rate = curves.unit, fall = 1 - rate[last - 1] / rate[0], zero = curves.nonzero;
  const best = prediction[0], few = zero.indexOf(Math.min(...zero)) + 1;
  return [
    { layer: 1, site: 0, lit: "picture", title: "A picture becomes tokens",
      text: `It is cut into ${about.grid[0]} × ${about.grid[1]} patches. Each becomes a token, a row of ${d} numbers, and a class token joins them: ${n} rows in the map. The layers work on these rows.` },
    { layer: Math.min(2, last), site: 1, lit: "heads", title: "Compression",
      text: `Each of the ${about.heads} heads has a learned subspace. Tokens that are similar in it attend to each other. The step was derived to move them closer, so that they can be coded with fewer bits; whether it does, opencrate audit measures. The bright patches are those that the chosen token attends to most.` },
    { layer: Math.min(2, last), site: 2, lit: "heat", title: "Sparsification",
      text: `Then each token is written as a sparse code in a learned dictionary. Empty places are exactly zero. After this layer ${percent(zero[Math.min(2, last) - 1])} of the entries are not zero; after layer ${few}, which has the fewest, ${percent(zero[few - 1])}.` },
    { layer: last, site: 2, lit: "rate-chart", title: "One objective, layer by layer",
      text: `Both steps are derived from one objective, sparse rate reduction: together the tokens should span a large space, but be compact in the subspaces (a low R^c) and sparse. For this picture R^c, with every projection at unit length, goes from ${rate[0].toFixed(0)} at the first layer to ${rate[last - 1].toFixed(0)} at the last (${fall > 0 ? "−" : "+"}${percent(Math.abs(fall))}). Each layer is measured with its own subspaces.` },
    { layer: last, site: 2, lit: "prediction", title: "The prediction",
      text: best ? `From the last layer the network predicts “${best.name}” (${percent(best.probability)}). Click a head and switch it off, or compare with the untrained network to see in the curves what training has changed.` : "This network has no classifier, but its tokens can be compared with those of the untrained network." },
  ];
}

/** Ends the tour, if it is running. */
export let endTour = () => {};

export function startTour(state, setLayer) {
  const box = $("tour"), before = document.activeElement;
  let at = 0, all = steps(state);
  const light = (on) => {
    document.querySelectorAll(".lit").forEach((one) => one.classList.remove("lit"));
    if (!on) return;
    const place = $(all[at].lit);
    place.classList.add("lit");
    place.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  const end = () => { endTour = () => {}; box.hidden = true; light(false); document.removeEventListener("keydown", onKey); before?.focus(); };
  const show = () => {
    all = steps(state); // for the picture that is open now
    setLayer(all[at].layer, all[at].site);
    $("tour-count").textContent = `${at + 1} of ${all.length}`;
    $("tour-title").textContent = all[at].title;
    $("tour-text").textContent = all[at].text;
    $("tour-back").disabled = at === 0;
    $("tour-next").textContent = at === all.length - 1 ? "Done" : "Next";
    box.hidden = false;
    light(true);
    $("tour-title").focus({ preventScroll: true });
  };
  const onKey = (event) => { if (event.key === "Escape") end(); };
  $("tour-back").onclick = () => { at -= 1; show(); };
  $("tour-next").onclick = () => { at += 1; at === all.length ? end() : show(); };
  $("tour-end").onclick = end;
  document.addEventListener("keydown", onKey);
  endTour = end;
  show();
}
