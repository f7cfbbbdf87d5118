// The section Generate: a theme and what each panel shows.
import { Choices, Section } from "./section.js";
import { $, make } from "./dom.js";
import { draw, scorePanels } from "./painted.js";
import { PanelTexts } from "./panel_texts.js";

const choices = new Choices("paint");
let usual = null; // numbers of panels that the project's prompts have, where they are known

// Every grid that so many panels fill; "usual" leaves it to the server.
function layouts(count) {
  const grids = Array.from({ length: count }, (_, n) => n + 1).filter((rows) => count % rows === 0);
  const kept = $("paint-layout").value;
  const options = grids.map((rows) => make("option", { textContent: `${rows}x${count / rows}` }));
  $("paint-layout").replaceChildren(make("option", { value: "", textContent: "default" }), ...options);
  if ([...$("paint-layout").options].some((option) => option.value === kept)) $("paint-layout").value = kept;
}

function counted(count) {
  layouts(count);
  $("panel-hint").textContent = usual && !usual.includes(count) ? `The models of this project were trained on sets of ${usual.join(" or ")} panels. Sets of other sizes are worse.` : "";
}

function read() {
  const theme = $("theme").value.trim();
  if (!theme) throw new Error("Write a theme: what all panels are about.");
  return ["/paint", { theme, panels: panels.read(), layout: $("paint-layout").value || null, ...choices.read() }];
}

const section = new Section("paint", read, (result, body, ended) =>
  draw(section.found, result, body, ended, { noun: "set", measured: "consistency", actions: scorePanels }),
);
const panels = new PanelTexts("panels", () => section.clear(), counted);

function example({ theme, panels: texts }) {
  $("theme").value = theme;
  panels.write(texts);
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

export default section;
