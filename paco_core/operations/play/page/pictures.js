// Pictures on the page: shown, dragged, uploaded, and looked at in large.
import { $, on, make, emit } from "./dom.js";
import { ask } from "./server.js";

const KIND = "text/x-paco-picture"; // what is dragged within the page
const MOST_BYTES = 32 * 2 ** 20; // as the server has it
const address = (name) => `/pictures/${name}.png`;

// A picture of the server's. Small ones keep their pixels, however large they are shown.
export function shown(name, alt) {
  const image = make("img", { alt, draggable: true });
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 260);
  image.onerror = () => (image.alt = "no longer kept");
  image.ondragstart = (event) => event.dataTransfer.setData(KIND, name);
  image.src = address(name);
  return image;
}

// A picture that a click shows in large, among its neighbours.
export function button(kind, pictures, index) {
  const { picture, title } = pictures[index];
  const made = make(`button.bare${kind}`, { type: "button", title: `${title}: larger` }, shown(picture, title));
  made.onclick = () => emit("view", { pictures, index });
  return made;
}

// Small pictures in a list, each with a button that removes it; letter(place) is shown on it.
export function thumbs(pictures, remove, letter = null) {
  return pictures.map(({ title }, place) => {
    const away = make("button.away", { type: "button", textContent: "×", ariaLabel: `Remove ${title}` });
    away.onclick = () => remove(place);
    const mark = letter && make("span.letter", { textContent: letter(place) });
    return make("li", {}, button(".thumb", pictures, place), mark, away);
  });
}

// Files to pictures of the server's, one after the other; faults are said, and do not stop the others.
export async function upload(files, say) {
  const names = [];
  for (const file of files) {
    try {
      if (file.size > MOST_BYTES) throw new Error(`larger than ${MOST_BYTES / 2 ** 20} MB`);
      names.push((await ask("/pictures", file)).picture);
    } catch (error) {
      say(`${file.name || "The image"} was not added: ${error.message.replace("this image: ", "")}`);
    }
  }
  return names;
}

// Lets pictures be dropped on an element; take gets files, or the names of pictures of this page.
export function takesDrops(element, take) {
  let depth = 0; // enter and leave come for each child, too
  const over = (change) => {
    depth = Math.max(0, depth + change);
    element.classList.toggle("over", depth > 0);
  };
  element.addEventListener("dragenter", () => over(1));
  element.addEventListener("dragleave", () => over(-1));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    over(-depth);
    const name = event.dataTransfer.getData(KIND);
    if (name) take([name], []);
    else if (event.dataTransfer.files.length) take([], [...event.dataTransfer.files]);
  });
}

// The large view.
let seen = { pictures: [], index: 0 };

function look(by) {
  const { pictures } = seen;
  seen.index = (seen.index + by + pictures.length) % pictures.length;
  const { picture, title } = pictures[seen.index];
  $("viewer").querySelector(".stage").replaceChildren(shown(picture, title));
  $("viewer-title").textContent = title;
  $("viewer-save").href = address(picture);
  $("viewer-save").download = `${title.replaceAll(/[^\w]+/g, "-")}.png`;
  for (const id of ["viewer-before", "viewer-after"]) $(id).hidden = pictures.length < 2;
}

function send(where) {
  const { picture, theme } = seen.pictures[seen.index];
  $("viewer").close();
  emit(where, { pictures: [picture], theme });
}

on("view", (asked) => {
  seen = { ...asked };
  look(0);
  $("viewer").showModal();
  $("viewer-close").focus();
});
$("viewer-before").onclick = () => look(-1);
$("viewer-after").onclick = () => look(1);
$("viewer-score").onclick = () => send("score");
$("viewer-edit").onclick = () => send("edit");
$("viewer-close").onclick = () => $("viewer").close();
$("viewer").onclick = (event) => event.target === $("viewer") && $("viewer").close();
$("viewer").onkeydown = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = { ArrowLeft: () => look(-1), ArrowRight: () => look(1), s: () => send("score"), e: () => send("edit") };
  const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
};
