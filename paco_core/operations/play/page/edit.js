// The section Edit: a picture, and what to change.
import { Choices, Section } from "./section.js";
import { $, on, make, emit } from "./dom.js";
import { draw } from "./painted.js";
import { upload, shown, takesDrops } from "./pictures.js";

const choices = new Choices("edit", "auto");
let picture = null; // its name

function lay(name) {
  picture = name;
  const button = $("edit-picture");
  button.hidden = false;
  button.title = "larger";
  button.replaceChildren(shown(name, "The picture to edit"));
  button.onclick = () => emit("view", { pictures: [{ picture: name, title: "The picture to edit" }], index: 0 });
  section.state.replaceChildren();
}

function read() {
  if (!picture) throw new Error("Add a picture first.");
  const instruction = $("instruction").value.trim();
  if (!instruction) throw new Error("Write what to change.");
  return ["/edit", { picture, instruction, ...choices.read() }];
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
  const [name] = names.length ? names : await upload(files.slice(0, 1), (text) => section.fault(text));
  if (name) lay(name);
}

export function offer(about) {
  choices.offer(about.edits);
  section.closed = !about.edits.length;
  section.settle();
  if (section.closed) return section.empty("No policy edits here", "policies.recipes in params.yaml has no recipe of an editing family.");
  section.empty("Nothing edited yet", "Add a picture and write what to change, or try an example.");
  const buttons = about.edit_examples.map((one) => {
    const button = make("button", { type: "button" }, shown(one.picture, ""), one.instruction);
    button.onclick = () => {
      lay(one.picture);
      $("instruction").value = one.instruction;
    };
    return button;
  });
  $("edit-examples").append(...buttons);
  $("edit-examples").hidden = !buttons.length;
}

on("edit", ({ pictures: [name] }) => lay(name));
$("edit-choose").onclick = () => $("edit-files").click();
$("edit-files").onchange = () => {
  take([], [...$("edit-files").files]);
  $("edit-files").value = "";
};
takesDrops($("edit-drop"), take);
export default section;
