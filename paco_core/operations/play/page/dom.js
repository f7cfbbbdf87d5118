// Small helpers: elements, and messages between the parts of the page.
export const $ = (id) => document.getElementById(id);

// make("p.fault", { hidden: true }, "text", child): names after a dot are classes.
export function make(kind, props = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  element.className = classes.join(" ");
  Object.assign(element, props);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Events between the parts: pictures are to go elsewhere ("score", "edit") or are to be seen large ("view").
export const emit = (what, detail) => document.dispatchEvent(new CustomEvent(`paco:${what}`, { detail }));
export const on = (what, act) => document.addEventListener(`paco:${what}`, (event) => act(event.detail));

export const number = (value) => value.toFixed(3);

// A number and a bar; what could not be judged says so, and is never shown as 0.
export function scored(row, judge) {
  if (row.score === null) {
    const text = judge ? `no score${row.cause ? `: ${row.cause}` : ""}` : "";
    return [make("span.score.none", { textContent: text }), null];
  }
  return [make("span.score", { textContent: number(row.score) }), bar(row.score)];
}

export function bar(share) {
  const fill = make("i");
  fill.style.width = `${100 * share}%`;
  return make("div.bar", {}, fill);
}
