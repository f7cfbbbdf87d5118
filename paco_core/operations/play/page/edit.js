// The section Edit: a picture, further ones that the instruction takes something from, and what to change.
import { Choices, Section } from "./section.js";
import { $, on, make, emit } from "./dom.js";
import { draw } from "./painted.js";
import { upload, shown, takesDrops } from "./pictures.js";

const choices = new Choices("edit", "auto");
let pictures = []; // names; the one to edit first

function lay(names) {
  pictures = names;
  const views = names.map((picture, place) => ({ picture, title: place ? `Reference ${place + 1}` : "Image to edit" }));
  const button = $("edit-picture");
  button.hidden = false;
  button.title = "larger";
  button.replaceChildren(...views.map(({ picture, title }) => shown(picture, title)));
  button.onclick = () => emit("view", { pictures: views, index: 0 });
  section.state.replaceChildren();
}

function read() {
  if (!pictures.length) throw new Error("Add an image first.");
  const instruction = $("instruction").value.trim();
  if (!instruction) throw new Error("Write what to change.");
  return ["/edit", { pictures, instruction, ...choices.read() }];
}

function actions(row) {
  const again = make("button.quiet", { type: "button", textContent: "Edit this one" });
  again.onclick = () => emit("edit", { pictures: [row.picture] });
  return [again];
}

const section = new Section("edit", read, (result, body, ended) =>
  draw(section.found, result, body, ended, { noun: "edit", measured: "editing reward", actions }),
);

export async function take(names, files) {
  const found = names.length ? names : await upload(files, (text) => section.fault(text));
  if (found.length) lay(found);
}

export function offer(about) {
  choices.offer(about.edits);
  section.closed = !about.edits.length;
  section.settle();
  if (section.closed) return section.empty("No policy edits here", "policies.recipes in params.yaml has no recipe of an editing family.");
  section.empty("Nothing edited yet", "Add an image and write an instruction, or choose an example.");
  const buttons = about.edit_examples.map((one) => {
    const button = make("button", { type: "button" }, ...one.pictures.map((name) => shown(name, "")), one.instruction);
    button.onclick = () => {
      lay(one.pictures);
      $("instruction").value = one.instruction;
    };
    return button;
  });
  $("edit-examples").append(...buttons);
  $("edit-examples").hidden = !buttons.length;
}

on("edit", ({ pictures: names }) => lay(names));
$("edit-choose").onclick = () => $("edit-files").click();
$("edit-files").onchange = () => {
  take([], [...$("edit-files").files]);
  $("edit-files").value = "";
};
takesDrops($("edit-drop"), take);
export default section;
