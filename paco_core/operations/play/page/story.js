// The section Story: characters with images, and what each panel shows.
import { $, make } from "./dom.js";
import { draw, scorePanels } from "./painted.js";
import { PanelTexts } from "./panel_texts.js";
import { takesDrops, thumbs, upload } from "./pictures.js";
import { Choices, Section } from "./section.js";

const MOST = 4; // characters of a story
const MOST_IMAGES = 3; // of a character
const choices = new Choices("story");
let characters = []; // each with its fields, and the names of its pictures
let chooses = null; // the character that the chosen files are for

function read() {
  const rows = characters.map(({ name, pictures }) => ({ name: name.value.trim(), pictures }));
  for (const [place, row] of rows.entries()) {
    if (!row.name) throw new Error(`Write the name of character ${place + 1}, or remove it.`);
    if (!row.pictures.length) throw new Error(`Add an image of ${row.name}.`);
  }
  const theme = $("story-theme").value.trim();
  return ["/story", { characters: rows, panels: panels.read(), theme: theme || null, ...choices.read() }];
}

const section = new Section("story", read, (result, body, ended) =>
  draw(section.found, result, body, ended, { noun: "story", plural: "stories", measured: "agreement with the characters", actions: scorePanels }),
);
const panels = new PanelTexts("story-panels", () => section.clear());

function lay(character) {
  const views = character.pictures.map((picture, place) => ({ picture, title: `${character.name.value || "Character"}, image ${place + 1}` }));
  const remove = (place) => {
    character.pictures.splice(place, 1);
    lay(character);
  };
  character.tray.replaceChildren(...thumbs(views, remove));
  character.choose.hidden = character.pictures.length >= MOST_IMAGES;
}

function put(character, names) {
  const pictures = [...new Set([...character.pictures, ...names])];
  if (pictures.length > MOST_IMAGES) section.fault(`A character has at most ${MOST_IMAGES} images. The rest is left out.`);
  character.pictures = pictures.slice(0, MOST_IMAGES);
  lay(character);
}

async function fill(character, names, files) {
  section.clear();
  put(character, [...names, ...(await upload(files, (text) => section.fault(text)))]);
}

function add() {
  const label = `Name of character ${characters.length + 1}`;
  const name = make("input", { type: "text", maxLength: 100, placeholder: "Name", ariaLabel: label, oninput: () => section.clear() });
  const tray = make("ul.tray", { ariaLabel: `Images of character ${characters.length + 1}` });
  const choose = make("button", { type: "button", textContent: "Add images" });
  const character = { name, tray, choose, pictures: [], item: make("li.drop", {}, name, tray, choose) };
  choose.onclick = () => {
    chooses = character;
    $("story-files").click();
  };
  takesDrops(character.item, (names, files) => fill(character, names, files));
  characters.push(character);
  count();
}

function count() {
  $("characters").replaceChildren(...characters.map((character) => character.item));
  $("more-characters").disabled = characters.length >= MOST;
  $("fewer-characters").disabled = characters.length <= 1;
}

// Pictures that are pasted or dropped elsewhere are of the first character without images, else of the last one.
export function take(names, files) {
  return fill(characters.find((one) => !one.pictures.length) ?? characters.at(-1), names, files);
}

export function offer(about) {
  choices.offer(about.stories);
  section.closed = !about.stories.length;
  section.settle();
  section.form.hidden = section.closed;
  const need = about.stories_need;
  if (section.closed) section.empty("This project has no policy for stories", `${need[0].toUpperCase()}${need.slice(1)}. Then start paco play again.`);
  else section.empty("No stories yet", "Add one to three images of each character, and name the characters in the texts of the panels.");
}

$("more-characters").onclick = () => {
  add();
  characters.at(-1).name.focus();
};
$("fewer-characters").onclick = () => {
  characters.pop();
  count();
};
$("story-files").onchange = () => {
  fill(chooses, [], [...$("story-files").files]);
  $("story-files").value = "";
};
add();
export default section;
