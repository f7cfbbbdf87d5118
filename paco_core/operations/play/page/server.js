// Requests to the server, and jobs that are watched until they end.
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const POLL_MS = 250;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// The answer's JSON. Throws Refused where the server says no, and something else where it does not answer.
export async function ask(path, body) {
  const options = { method: body === undefined ? "GET" : "POST" };
  if (body instanceof Blob) options.body = body;
  else if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer.detail ?? `the server answered ${response.status}`);
  return answer;
}

export const GONE = "No answer from paco play. Is it still running in the terminal? Trying again …";

// Shows a job's view again and again until it has ended; goes on trying while the server does not answer.
export async function watch(job, show, lost) {
  for (let wait = POLL_MS; ; ) {
    try {
      const view = await ask(`/jobs/${job}`);
      show(view);
      if (!["waiting", "running"].includes(view.state)) return view;
      wait = POLL_MS;
    } catch (error) {
      if (error instanceof Refused) throw error;
      lost(GONE);
      wait = Math.min(wait * 2, 4000);
    }
    await pause(wait);
  }
}
