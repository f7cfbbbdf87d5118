// The section Score: pictures, compared two by two.
import { Section } from "./section.js";
import { $, bar, on, make, number, scored } from "./dom.js";
import { upload, button, takesDrops, thumbs } from "./pictures.js";

const MOST = 8;
const letter = (place) => String.fromCharCode(65 + place);
let tray = []; // names of the pictures

function put(names) {
  section.state.replaceChildren();
  if (tray.length + names.length > MOST) section.fault(`At most ${MOST} images are compared. The rest is left out.`);
  tray = [...tray, ...names].slice(0, MOST);
  lay();
}

function lay() {
  const pictures = tray.map((picture, place) => ({ picture, title: `Image ${letter(place)}` }));
  const remove = (place) => {
    tray.splice(place, 1);
    lay();
  };
  $("tray").replaceChildren(...thumbs(pictures, remove, letter));
  $("empty-tray").hidden = !tray.length;
}

function read() {
  if (tray.length < 2) throw new Error("Add at least two images.");
  const theme = $("score-theme").value.trim();
  return ["/score", { pictures: tray, theme: theme || null, reasons: $("score-reasons").checked }];
}

function draw(result, body, ended) {
  const pictures = body.pictures.map((picture, place) => ({ picture, title: `Image ${letter(place)}` }));
  const pairs = result?.pairs ?? [];
  if (!pairs.length) return ended ? section.found.replaceChildren() : section.empty("Scoring", "Pairs appear here as they are compared.");
  const head = make("div.means", {}, make("h2", { textContent: pairs.length === 1 ? "Consistency" : "Mean consistency" }));
  const every = (pictures.length * (pictures.length - 1)) / 2; // there are fewer where it was cancelled
  if (pairs.length === every && result.mean === null && ended) head.append(make("span.score.none", { textContent: "some pairs have no score" }));
  else if (result.mean !== null) {
    const share = bar(result.mean);
    share.classList.add("main");
    head.append(make("span", { textContent: pairs.length === 1 ? "1 pair" : `${pairs.length} pairs` }), share, make("span.score", { textContent: number(result.mean) }));
  }
  section.found.replaceChildren(head, make("div.pairs", {}, ...pairs.map((row) => pair(row, pictures))));
}

function pair(row, pictures) {
  const thumbs = [row.first, row.second].map((place) => {
    const made = button(".thumb", pictures, place);
    made.append(make("span.letter", { textContent: letter(place) }));
    return made;
  });
  const [text, share] = scored(row, true);
  share?.classList.add("main");
  return make("article.pair", {}, ...thumbs, make("div.said", {}, text, share), make("p", { textContent: row.reasons ?? "" }));
}

const section = new Section("score", read, draw);

export async function take(names, files) {
  put(names);
  const uploaded = await upload(files, (text) => section.fault(text));
  if (uploaded.length) {
    const fault = section.state.querySelector(".fault");
    put(uploaded);
    if (fault && !section.state.firstChild) section.state.replaceChildren(fault);
  }
}

export function offer(about) {
  section.closed = !about.judge;
  section.settle();
  if (about.judge) section.empty("No scores yet", "Add two to eight images, or drag panels here from Generate. The reward model scores each pair and gives reasons.");
  else section.empty("There is no reward model yet", "To train it, run: dvc repro reward_merged. Then load this page again.");
}

on("score", ({ pictures, theme, anew }) => {
  if (anew) tray = [];
  if (theme) $("score-theme").value = theme;
  put(pictures);
  if (anew && !section.busy && !section.closed) section.start();
});
$("score-choose").onclick = () => $("score-files").click();
$("score-files").onchange = () => {
  take([], [...$("score-files").files]);
  $("score-files").value = "";
};
$("empty-tray").onclick = () => {
  tray = [];
  lay();
};
takesDrops($("score-drop"), take);
export default section;
