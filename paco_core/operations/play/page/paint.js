// The section Paint: a theme and what each panel shows.
import { Choices, Section } from "./section.js";
import { $, make, emit } from "./dom.js";
import { draw } from "./painted.js";

const LEAST = 2;
const MOST = 8;
const choices = new Choices("paint");
let usual = null; // numbers of panels that the project's prompts have, where they are known

// Every grid that so many panels fill; "usual" leaves it to the server.
function layouts(count) {
  const grids = Array.from({ length: count }, (_, n) => n + 1).filter((rows) => count % rows === 0);
  const kept = $("paint-layout").value;
  const options = grids.map((rows) => make("option", { textContent: `${rows}x${count / rows}` }));
  $("paint-layout").replaceChildren(make("option", { value: "", textContent: "usual" }), ...options);
  if ([...$("paint-layout").options].some((option) => option.value === kept)) $("paint-layout").value = kept;
}

function panels(texts) {
  layouts(texts.length);
  const fields = texts.map((value, place) => {
    const field = make("textarea", { rows: 1, value, maxLength: 1000, ariaLabel: `Panel ${place + 1}`, placeholder: "What this panel shows" });
    field.oninput = () => section.state.querySelector(".fault") && section.state.replaceChildren();
    return make("li", {}, `${place + 1}`, field);
  });
  $("panels").replaceChildren(...fields);
  $("more-panels").disabled = texts.length >= MOST;
  $("fewer-panels").disabled = texts.length <= LEAST;
  $("panel-hint").textContent = usual && !usual.includes(texts.length) ? `The models of this project know sets of ${usual.join(" or ")} panels; others come out worse.` : "";
}

const texts = () => [...$("panels").querySelectorAll("textarea")].map((field) => field.value);

function read() {
  const theme = $("theme").value.trim();
  const written = texts().map((text) => text.trim());
  if (!theme) throw new Error("Write a theme: what all panels are about.");
  if (written.some((text) => !text)) throw new Error("Write what each panel shows, or remove panels.");
  return ["/paint", { theme, panels: written, layout: $("paint-layout").value || null, ...choices.read() }];
}

function actions(row, theme, judge) {
  if (!judge) return [];
  const why = make("button.quiet", { type: "button", textContent: "Score its panels" });
  why.onclick = () => emit("score", { pictures: row.panels, theme, anew: true });
  return [why];
}

const section = new Section("paint", read, (result, body, ended) =>
  draw(section.found, result, body, ended, { noun: "set", measured: "consistency", actions }),
);

function example({ theme, panels: texts }) {
  $("theme").value = theme;
  panels(texts);
}

export function offer(about) {
  usual = about.usual_panels;
  choices.offer(about.sets);
  section.closed = !about.sets.length;
  section.settle();
  section.empty("No images yet", "Write a theme and a text for each panel, or choose an example. Then generate.");
  const buttons = about.set_examples.map((one) => {
    const button = make("button", { type: "button", textContent: one.name, title: one.theme });
    button.onclick = () => example(one);
    return button;
  });
  $("set-examples").append(...buttons);
  $("set-examples").hidden = !buttons.length;
}

$("more-panels").onclick = () => {
  panels([...texts(), ""]);
  $("panels").lastElementChild.querySelector("textarea").focus();
};
$("fewer-panels").onclick = () => panels(texts().slice(0, -1));
panels(["", "", "", ""]);
export default section;
