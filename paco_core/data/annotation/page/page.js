// One annotator's page. The server holds the truth: this file shows a view of it, collects a ranking and
// sends it until the server has confirmed. An unconfirmed answer also survives a reload, in localStorage.
const base = location.pathname.replace(/\/$/, "");
const pendingKey = `paco:${base}`;
const $ = (id) => document.getElementById(id);
const ordinals = ["1st", "2nd", "3rd"];
const INCOMPLETE = "Nothing is stored yet";
const ordinal = (n) => ordinals[n] ?? `${n + 1}th`;

let view = null; // what the server said last
let ranking = []; // places chosen so far, best first
let filled = null; // the last of them, where it took its place by itself
let busy = false; // an answer is on its way
let looked = 0; // seconds this instance was in sight
let since = null; // when it came into sight, null while the tab is hidden

// A browser that keeps nothing (cookies blocked) still works, but an unconfirmed answer ends with the page.
function keep(value) {
  try {
    if (value === undefined) return JSON.parse(localStorage.getItem(pendingKey));
    return value ? localStorage.setItem(pendingKey, JSON.stringify(value)) : localStorage.removeItem(pendingKey);
  } catch {
    return null;
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const picture = (instance, name) => `${base}/pictures/${instance}/${name}.png`;

function clock(visible) {
  if (since !== null) looked += (performance.now() - since) / 1000;
  since = visible ? performance.now() : null;
}

async function ask(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(base + path, options);
  const answer = await response.json().catch(() => ({}));
  return { status: response.status, answer };
}

// Sends until the server has taken it: an answer is named by instance and revision, so twice is once.
async function send(path, body) {
  busy = true;
  keep({ path, body });
  draw();
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    const { status, answer } = await ask(path, body).catch(() => ({ status: 0, answer: {} }));
    if (status && status < 500) {
      keep(null);
      busy = false;
      if (status === 200) return show(answer, "");
      const told = status === 409 ? "Already answered in another window." : `Not accepted: ${answer.detail ?? status}`;
      return load(told);
    }
    say(status ? `Not stored (${answer.detail ?? status}). Trying again …` : "No answer from the server. Your choice is kept here and sent again …", true);
    await pause(wait);
  }
}

async function load(message = "") {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    const { status, answer } = await ask("/view").catch(() => ({ status: 0, answer: {} }));
    if (status === 200) return show(answer, message);
    if (status === 404) return location.reload();
    say("No answer from the server. Trying again …", true);
    await pause(wait);
  }
}

function show(next, message) {
  const changed = next.instance !== view?.instance || next.revision !== view?.revision;
  view = next;
  if (changed) {
    ranking = [...next.ranking];
    filled = null;
    build();
    looked = 0;
    since = null;
    clock(!document.hidden);
  }
  say(message || (next.skipped_before ? "You skipped this one before." : ""), Boolean(message));
  draw();
  const first = next.prompt === null ? ["reference"] : [];
  if (next.ahead) for (const name of [...first, ...Array(next.candidates_ahead).keys()]) new Image().src = picture(next.ahead, name);
}

function build() {
  $("work").hidden = $("actions").hidden = !view.instance;
  $("end").hidden = Boolean(view.instance);
  if (!view.instance) {
    $("told").textContent = `Your ${view.done} answers are stored. You can close this page; undo still works.`;
    return;
  }
  const ofPrompt = view.prompt !== null;
  document.body.classList.toggle("prompts", ofPrompt);
  $("reference").hidden = ofPrompt;
  document.body.classList.toggle("characters", view.characters.length > 0);
  $("prompt").hidden = !ofPrompt && !view.caption;
  $("prompt").textContent = view.prompt ?? view.caption;
  const reference = $("reference").querySelector("img");
  watch(reference);
  if (!ofPrompt) reference.src = picture(view.instance, "reference");
  $("most").textContent = view.candidates;
  $("candidates").replaceChildren(
    ...Array.from({ length: view.candidates }, (_, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "candidate";
      button.innerHTML = `<img alt=""><kbd>${place + 1}</kbd><span class="rank"></span>`;
      const image = button.querySelector("img");
      watch(image);
      image.src = picture(view.instance, place);
      button.onclick = () => choose(place);
      return button;
    }),
  );
  fit();
}

// The number of columns in which the candidates of a prompt are largest, if all of them fit into the window.
function fit() {
  if (!view?.instance || view.prompt === null) return;
  const work = $("work"), padding = getComputedStyle(work), count = view.candidates;
  const gap = parseFloat(getComputedStyle($("candidates")).rowGap);
  const width = work.clientWidth - parseFloat(padding.paddingLeft) - parseFloat(padding.paddingRight);
  const top = $("candidates").getBoundingClientRect().top + scrollY;
  const height = innerHeight - top - $("actions").offsetHeight - parseFloat(padding.paddingBottom);
  let columns = 1, side = 0;
  for (let tried = 1; tried <= count; tried++) {
    const rows = Math.ceil(count / tried);
    const fitting = Math.min((width - gap * (tried - 1)) / tried, (height - gap * (rows - 1)) / rows);
    if (fitting > side) [columns, side] = [tried, fitting];
  }
  work.style.setProperty("--columns", columns);
  work.style.setProperty("--fitting", `${Math.floor(Math.max(side, 120))}px`);
}

// Small pictures keep their pixels; one that cannot be shown is told, for it must not be ranked.
function watch(image) {
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 160);
  image.onerror = () => say("A picture cannot be shown. Skip this one, and tell whoever runs the study.", true);
}

function question() {
  if (view.characters.length) return `Which shows ${view.characters.join(" and ")} best, in a new picture?`;
  return view.prompt === null ? "Which goes best with the reference?" : "Which image is best?";
}

function draw() {
  if (!view) return;
  $("who").textContent = view.annotator;
  $("count").textContent = `${view.done} of ${view.total}` + (view.skipped ? `, ${view.skipped} skipped` : "");
  $("bar").style.width = `${view.total ? (100 * view.done) / view.total : 100}%`;
  const track = $("bar").parentElement;
  track.setAttribute("aria-valuemax", view.total);
  track.setAttribute("aria-valuenow", view.done);
  $("undo").disabled = busy || !view.last;
  const left = view.candidates - ranking.length;
  $("question").textContent =
    left === view.candidates ? question() : left ? "And of the others?" : "From best to worst: is this right?";
  $("back").disabled = busy || !ranking.length;
  $("confirm").disabled = busy || left > 0;
  $("skip").disabled = $("cannot_tell").disabled = busy;
  [...$("candidates").children].forEach((button, place) => {
    const rank = ranking.indexOf(place);
    button.classList.toggle("chosen", rank >= 0);
    button.querySelector(".rank").textContent = rank >= 0 ? ordinal(rank) : "";
    button.setAttribute("aria-label", `Candidate ${place + 1}` + (rank >= 0 ? `, ranked ${ordinal(rank)}` : ", not ranked yet"));
    button.setAttribute("aria-pressed", rank >= 0);
  });
}

function say(text, urgent = false) {
  $("status").textContent = text;
  $("status").classList.toggle("urgent", urgent);
}

// The last candidate has no choice left: it takes its place by itself, and goes again with the one before. Who names
// it all the same says what stands there already.
function choose(place) {
  if (busy || !view?.instance || place >= view.candidates) return;
  const full = ranking.length === view.candidates;
  const named = place === filled;
  filled = null;
  if (named) return draw();
  if (ranking.includes(place)) {
    if (full && view.candidates > 1) ranking.pop();
    ranking = ranking.filter((chosen) => chosen !== place);
  } else ranking.push(place);
  if (ranking.length === view.candidates - 1 && !full) {
    filled = [...Array(view.candidates).keys()].find((n) => !ranking.includes(n));
    ranking.push(filled);
  }
  if ($("status").textContent.startsWith(INCOMPLETE)) say("");
  draw();
}

function back() {
  if (busy || !ranking.length) return;
  if (ranking.length === view.candidates && view.candidates > 1) ranking.pop();
  ranking.pop();
  filled = null;
  draw();
}

function say_so(verdict) {
  if (busy || !view?.instance) return;
  if (verdict === "ranked" && ranking.length < view.candidates) {
    return say(`${INCOMPLETE}: ${ranking.length} of ${view.candidates} candidates are ranked.`, true);
  }
  clock(!document.hidden);
  send("/answers", {
    instance: view.instance,
    revision: view.revision,
    verdict,
    ranking: verdict === "ranked" ? ranking : [],
    seconds: Math.round(looked * 10) / 10,
  });
}

function undo() {
  if (!busy && view?.last) send("/undo", view.last);
}

function resize() {
  const large = document.body.classList.toggle("large");
  $("larger").setAttribute("aria-pressed", large);
}

function explain() {
  $("howto").showModal();
  $("howto").scrollTop = 0; // the button at its end has the focus
}

$("confirm").onclick = () => say_so("ranked");
$("skip").onclick = () => say_so("skipped");
$("cannot_tell").onclick = () => say_so("cannot_tell");
$("back").onclick = back;
$("undo").onclick = undo;
$("reference").querySelector("img").onclick = resize;
$("larger").onclick = resize;
$("help").onclick = explain;
$("close").onclick = () => $("howto").close();

// Enter presses the button that has the focus. One in a dialog that was just closed keeps the focus until the
// page is next drawn, and must not swallow the key.
const takesEnter = (element) =>
  element.tagName === "BUTTON" && !element.classList.contains("candidate") && element.checkVisibility();

addEventListener("resize", fit);
document.addEventListener("visibilitychange", () => clock(!document.hidden));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || $("howto").open) return;
  const key = event.key.toLowerCase();
  const acts = {
    enter: () => say_so("ranked"), t: () => say_so("cannot_tell"), s: () => say_so("skipped"), u: undo, backspace: back,
    "?": explain, z: resize,
  };
  if (/^[1-9]$/.test(key)) choose(Number(key) - 1);
  else if (key === "enter" && takesEnter(event.target)) return;
  else if (acts[key]) acts[key]();
  else return;
  event.preventDefault();
});

const pending = keep();
if (pending) send(pending.path, pending.body);
else load();
