// The parts that all sections share: a form that becomes a job, its progress, and what it found.
import { $, make } from "./dom.js";
import { Refused, ask, watch } from "./server.js";

function left(seconds) {
  if (seconds < 1.5) return "nearly done";
  return seconds < 90 ? `about ${Math.round(seconds)} s left` : `about ${Math.round(seconds / 60)} min left`;
}

export class Section {
  // read() gives [path, body], or throws an Error that says what is missing; draw(result, body, ended) shows it.
  constructor(name, read, draw) {
    Object.assign(this, { name, read, draw, job: null, closed: true }); // until the page knows what there is
    this.form = $(name).querySelector("form");
    this.found = $(name).querySelector(".found");
    this.state = this.form.querySelector(".state");
    this.form.querySelector("button.main").disabled = true;
    const bar = make("div.track.unknown", {}, make("i"));
    this.found.replaceChildren(make("div.empty", { role: "status" }, make("b", { textContent: "One moment" }), "The page asks what this project has trained.", bar));
    this.form.onsubmit = (event) => {
      event.preventDefault();
      this.start();
    };
  }

  get busy() {
    return this.job !== null;
  }

  clear() {
    if (this.state.querySelector(".fault")) this.state.replaceChildren();
  }

  fault(text) {
    this.state.replaceChildren(make("p.fault", { role: "alert", textContent: text }));
  }

  empty(title, text) {
    this.found.replaceChildren(make("div.empty", {}, make("b", { textContent: title }), text));
  }

  async start() {
    if (this.busy || this.closed) return;
    let asked;
    try {
      asked = this.read();
    } catch (error) {
      return this.fault(error.message);
    }
    const [path, body] = asked;
    this.job = "asked"; // until it has a name
    this.settle();
    try {
      const { job } = await ask(path, body);
      await this.follow(job, body);
    } catch (error) {
      this.job = null;
      this.settle();
      const text = error instanceof Refused ? `Not accepted: ${error.message}` : "No answer from paco play. Is it still running in the terminal?";
      this.fault(text);
    }
  }

  // Watch a job to its end, also one that was begun before the page was loaded again.
  async follow(job, body) {
    this.job = job;
    this.keep({ job, body });
    this.settle();
    this.draw(null, body, false);
    try {
      const view = await watch(job, (now) => this.show(now, body), (text) => this.fault(text));
      this.job = null;
      this.show(view, body);
    } catch (error) {
      this.job = null;
      this.draw(null, body, true);
      this.fault(error.message);
      this.keep(null);
    }
    this.settle();
    document.title = "paco play";
  }

  // The job of this tab, so that a reload finds it again.
  keep(value) {
    try {
      if (value === undefined) return JSON.parse(sessionStorage.getItem(`paco:${this.name}`));
      sessionStorage.setItem(`paco:${this.name}`, JSON.stringify(value));
    } catch {
      return null; // a browser that keeps nothing still works
    }
  }

  async resume() {
    const kept = this.keep();
    if (!kept?.job) return;
    try {
      await ask(`/jobs/${kept.job}`);
    } catch {
      return this.keep(null);
    }
    await this.follow(kept.job, kept.body);
  }

  show(view, body) {
    const ended = !["waiting", "running"].includes(view.state);
    if (view.result || ended) this.draw(view.result, body, ended);
    if (view.state === "failed") return this.fault(`It did not work: ${view.error}`);
    if (view.state === "cancelled") return this.state.replaceChildren(make("p", { textContent: "Cancelled." }));
    if (ended) return this.state.replaceChildren();
    this.progress(view);
  }

  progress(view) {
    let text = view.doing ? `${view.doing[0].toUpperCase()}${view.doing.slice(1)} …` : "Begins …";
    if (view.state === "waiting") text = view.ahead ? `Waits for ${view.ahead === 1 ? "another request" : `${view.ahead} requests`} …` : "Begins …";
    if (view.seconds_left !== null) text += ` ${left(view.seconds_left)}`;
    if (view.cancelling) text = "Cancelling …";
    if (!this.state.querySelector(".track")) {
      const cancel = make("button", { type: "button", textContent: "Cancel" });
      cancel.onclick = () => ask(`/jobs/${this.job}/cancel`, {}).catch((error) => this.fault(error.message));
      const track = make("div.track", { role: "progressbar", ariaLabel: "Progress", ariaValueMin: 0, ariaValueMax: 100 }, make("i"));
      this.state.replaceChildren(track, make("div.row", {}, make("p.doing", { role: "status" }), cancel));
    }
    const share = view.total ? Math.round((100 * view.done) / view.total) : null;
    const track = this.state.querySelector(".track");
    track.classList.toggle("unknown", share === null);
    track.querySelector("i").style.width = share === null ? "" : `${share}%`;
    track.ariaValueNow = share;
    this.state.querySelector("p").textContent = text;
    this.state.querySelector("button").disabled = view.cancelling;
    document.title = share === null ? "… paco play" : `${share}% paco play`;
  }

  settle() {
    this.form.querySelector("button.main").disabled = this.busy || this.closed === true;
    this.found.setAttribute("aria-busy", this.busy);
    if (this.job === "asked") this.state.replaceChildren();
  }
}

// The choices that painting and editing share: a policy, its sizes, and who stands beside it.
export class Choices {
  // unsized: what no chosen size is called, where the server can choose one; else the largest is the first choice.
  constructor(section, unsized = null) {
    this.unsized = unsized;
    [this.policy, this.seeds, this.size, this.beside] = ["policy", "seeds", "size", "beside"].map((part) => $(`${section}-${part}`));
    this.policy.onchange = () => this.follow();
  }

  offer(painters) {
    this.painters = painters;
    this.policy.replaceChildren(...painters.map((one) => new Option(one.name, one.name)));
    this.policy.disabled = this.size.disabled = !painters.length;
    this.follow();
  }

  get painter() {
    return this.painters[this.policy.selectedIndex];
  }

  follow() {
    const { sizes = [], trained = false } = this.painter ?? {};
    const free = this.unsized === null ? [] : [new Option(this.unsized, "")];
    this.size.replaceChildren(...free, ...sizes.map((side) => new Option(`${side} px`, side)));
    this.size.selectedIndex = free.length ? 0 : sizes.length - 1;
    // Beside a trained policy: the model before training first, then other versions and recipes.
    const others = this.painters.filter((one) => one !== this.painter).sort((one, other) => one.trained - other.trained);
    const options = others.map((one) => new Option(one.trained ? one.name : "base, before training", one.name));
    this.beside.replaceChildren(...options, new Option("nothing", ""));
    this.beside.selectedIndex = trained ? 0 : options.length;
    this.beside.disabled = !options.length;
  }

  read() {
    if (!this.painter) throw new Error("No policy of this project does this: params.yaml has no such recipe.");
    return {
      policy: this.painter.name,
      seeds: Number(this.seeds.value),
      size: Number(this.size.value) || null,
      beside: this.beside.value || null,
    };
  }
}
