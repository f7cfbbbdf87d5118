// The page: its sections, the keys, and pictures that are pasted or dropped anywhere.
import { $, on } from "./dom.js";
import edit, * as editing from "./edit.js";
import paint, * as painting from "./paint.js";
import { takesDrops } from "./pictures.js";
import score, * as scoring from "./score.js";
import { GONE, Refused, ask } from "./server.js";
import story, * as telling from "./story.js";

const sections = { paint, score, edit, story };
const names = Object.keys(sections);
let open = "paint";

function turn(name) {
  open = name;
  for (const one of names) {
    $(one).hidden = one !== name;
    $(`tab-${one}`).setAttribute("aria-selected", one === name);
  }
  history.replaceState(null, "", `#${name}`);
}

function notice(text, urgent = false) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
  $("notice").classList.toggle("urgent", urgent);
}

// Pictures go to Edit or Story when it is open, else to Score; those of Paint and Story that are let go there stay.
function take(names, files) {
  if (names.length && ["paint", "story"].includes(open)) return;
  if (open === "paint") turn("score");
  ({ edit: editing, story: telling }[open] ?? scoring).take(names, files);
}

for (const name of names) $(`tab-${name}`).onclick = () => turn(name);
on("score", () => turn("score"));
on("edit", () => turn("edit"));
takesDrops($("tab-score"), (pictures, files) => (turn("score"), scoring.take(pictures, files)));
takesDrops($("tab-edit"), (pictures, files) => (turn("edit"), editing.take(pictures, files)));
document.addEventListener("dragover", (event) => event.preventDefault()); // or the browser would open what is dropped
takesDrops($("tab-story"), (pictures, files) => (turn("story"), telling.take(pictures, files)));
takesDrops(document.body, take);
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  take([], files);
});

function explain() {
  $("howto").showModal();
  $("howto").scrollTop = 0; // the button at its end has the focus
}
$("help").onclick = explain;
$("howto-close").onclick = () => $("howto").close();

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) sections[open].start();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("textarea, select, input[type=text]");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing) return;
  if (["1", "2", "3", "4"].includes(event.key)) turn(names[Number(event.key) - 1]);
  else if (event.key === "?") explain();
  else return;
  event.preventDefault();
});

async function begin() {
  for (;;) {
    try {
      const about = await ask("/about");
      $("who").textContent = `paco play · ${about.project}`;
      for (const part of [painting, scoring, editing, telling]) part.offer(about);
      const untrained = ![...about.sets, ...about.edits].some((one) => one.trained);
      const faults = [
        untrained && "No policy is trained yet. Only the model before training generates images.",
        !about.judge && "There is no reward model yet. Images have no scores.",
      ];
      notice(faults.filter(Boolean).join(" "));
      break;
    } catch (error) {
      notice(error instanceof Refused ? `This page cannot begin: ${error.message}` : GONE, true);
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
  for (const section of Object.values(sections)) section.resume();
}

turn(names.includes(location.hash.slice(1)) ? location.hash.slice(1) : "paint");
begin();
