// Painted pictures: one row a seed, the policy and who was chosen beside it.
import { bar, emit, make, number, scored } from "./dom.js";
import { button } from "./pictures.js";

// The painters that a request will have, before the server says so.
export function expected(body) {
  const names = [...new Set([body.beside, body.policy])].filter(Boolean);
  return names.map((name) => ({ name, trained: name !== "base" }));
}

// A button below a picture: score its panels with each other.
export function scorePanels(row, theme, judge) {
  if (!judge) return [];
  const why = make("button.quiet", { type: "button", textContent: "Score its panels" });
  why.onclick = () => emit("score", { pictures: row.panels, theme, anew: true });
  return [why];
}

// actions(row): buttons below a picture; noun and plural: what a picture is called; measured: what its score is.
export function draw(found, result, body, ended, { noun, plural = `${noun}s`, measured, actions }) {
  const painters = result?.painters ?? expected(body);
  const rows = result?.pictures ?? [];
  const judge = result?.judge ?? true;
  if (ended && !rows.length) return found.replaceChildren();
  const seeds = Array.from({ length: body.seeds }, (_, seed) => {
    const figures = painters.map((painter) => {
      const row = rows.find((one) => one.seed === seed && one.by === painter.name);
      return row ? figure(row, painter, result, { noun, judge, actions }) : ended ? null : waits(painter, result);
    });
    if (!figures.some(Boolean)) return null;
    return make("div.seed", {}, ...originals(result?.references ?? body.pictures), ...figures);
  });
  const note = result?.cut ? `The prompt is ${result.cut.tokens} tokens longer than this model reads. Not read: “${result.cut.lost}”` : "";
  found.replaceChildren(
    ...[means(rows, painters, judge, [noun, plural], measured), note && make("p.hint", { textContent: note })].filter(Boolean),
    make("div.sets", {}, ...seeds.filter(Boolean)),
  );
}

// Of an edit, the picture that was edited, and the other references.
function originals(names) {
  return (names ?? []).map((picture, place) => {
    const textContent = place ? `reference ${place + 1}` : "original";
    const seen = make("div.panels", {}, button("", [{ picture, title: `The ${textContent}` }], 0));
    return make("figure.original", {}, seen, make("figcaption", {}, make("span.name", { textContent })));
  });
}

function means(rows, painters, judge, nouns, measured) {
  if (!rows.length) return null;
  const title = judge ? `Mean ${measured}` : "Not scored: there is no reward model yet";
  const lines = judge ? painters.map((painter) => mean(rows.filter((row) => row.by === painter.name), painter, nouns)) : [];
  return make("div.means", {}, make("h2", { textContent: title }), ...lines);
}

// Of those that could be judged, and it says of how many.
function mean(rows, painter, [noun, plural]) {
  const known = rows.map((row) => row.score).filter((score) => score !== null);
  const count = known.length === rows.length ? `${known.length}` : `${known.length} of ${rows.length}`;
  const name = make("span", { textContent: painter.name });
  const line = make(`div.who${painter.trained ? ".trained" : ""}`, {}, name);
  if (!known.length) line.append(make("span"), make("span.score.none", { textContent: rows.length ? "no score" : "…" }));
  else {
    const value = known.reduce((sum, score) => sum + score, 0) / known.length;
    const text = make("span", {}, make("span.score", { textContent: number(value) }), make("span.seed-name", { textContent: `  ${count} ${rows.length === 1 ? noun : plural}` }));
    line.append(bar(value), text);
  }
  return line;
}

function figure(row, painter, result, { noun, judge, actions }) {
  const what = `${painter.name}, ${noun} ${row.seed + 1}`;
  const theme = result.theme;
  const whole = { picture: row.picture, title: what, theme };
  const parts = row.panels.map((picture, place) => ({ picture, title: `${what}, panel ${place + 1}`, theme }));
  const pictures = parts.length ? [...parts, whole] : [whole];
  const cells = (parts.length ? parts : [whole]).map((_, index) => cell(button("", pictures, index), row.agreements?.[index], judge));
  const panels = make("div.panels", {}, ...cells);
  panels.style.setProperty("--columns", painter.story ? parts.length : parts.length ? result.columns : 1);
  const [text, share] = scored(row, judge);
  const name = make("span.name", {}, painter.name, make("span.seed-name", { textContent: ` ${noun} ${row.seed + 1}` }));
  const caption = make("figcaption", {}, name, text, share, make("div.row", {}, ...actions(row, theme, judge)));
  return make(`figure${painter.trained ? ".trained" : ""}${painter.story ? ".strip" : ""}`, {}, panels, caption);
}

// A panel of a story with its characters: below it, how well it agrees with the images of each that its text names.
function cell(panel, agreements, judge) {
  if (!agreements) return panel;
  const lines = agreements.map((one) => make("div.agreement", {}, make("span.name", { textContent: one.character, title: one.character }), ...scored(one, judge)));
  return make("div.cell", {}, panel, ...lines);
}

// A place as large as what will stand there: a picture, or the panels of a story.
function waits(painter, result) {
  const [rows, columns] = (result?.layout ?? "1x1").split("x").map(Number);
  const seen = result?.pictures[0];
  const ratio = seen ? seen.width / seen.height : columns / rows;
  const cells = Array.from({ length: painter.story ? rows * columns : 1 }, () => make("div.waits"));
  const panels = make("div.panels", {}, ...cells);
  panels.style.setProperty("--columns", cells.length);
  panels.style.setProperty("--ratio", painter.story ? (ratio * rows) / columns : ratio);
  return make(`figure${painter.story ? ".strip" : ""}`, {}, panels, make("figcaption", {}, make("span.name", { textContent: painter.name })));
}
