// The texts of panels: one field per panel, and buttons that add and remove a field.
import { $, make } from "./dom.js";

const LEAST = 2;
const MOST = 8;

export class PanelTexts {
  // id: of the list; its buttons are more-ID and fewer-ID. clear() removes an error message; counted(n) is called with the number of panels.
  constructor(id, clear, counted = () => {}) {
    Object.assign(this, { list: $(id), more: $(`more-${id}`), fewer: $(`fewer-${id}`), clear, counted });
    this.more.onclick = () => {
      this.write([...this.texts, ""]);
      this.list.lastElementChild.querySelector("textarea").focus();
    };
    this.fewer.onclick = () => this.write(this.texts.slice(0, -1));
    this.write(["", "", "", ""]);
  }

  get texts() {
    return [...this.list.querySelectorAll("textarea")].map((field) => field.value);
  }

  write(texts) {
    const fields = texts.map((value, place) => {
      const field = make("textarea", { rows: 1, value, maxLength: 1000, ariaLabel: `Panel ${place + 1}`, placeholder: "What this panel shows" });
      field.oninput = this.clear;
      return make("li", {}, `${place + 1}`, field);
    });
    this.list.replaceChildren(...fields);
    this.more.disabled = texts.length >= MOST;
    this.fewer.disabled = texts.length <= LEAST;
    this.counted(texts.length);
  }

  read() {
    const written = this.texts.map((text) => text.trim());
    if (written.some((text) => !text)) throw new Error("Write what each panel shows, or remove panels.");
    return written;
  }
}
