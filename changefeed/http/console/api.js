// The node's API, as docs/http.md has it. The token stays in this tab and is in no address.

const STORED = "changefeed-token";
let token = sessionStorage.getItem(STORED);
const known = new Map(); // path -> the ETag and body that were seen last

/** What an answer that is an error says. */
export class ApiError extends Error {
  constructor(body, status) {
    super(body.error ?? `HTTP ${status}`);
    Object.assign(this, { status, body, code: body.code, hint: body.hint, detail: body.detail });
  }
}

export function login(given) {
  token = given || null;
  known.clear();
  if (token) sessionStorage.setItem(STORED, token);
  else sessionStorage.removeItem(STORED);
}
export const loggedIn = () => token !== null;

async function ask(path, { method = "GET", headers = {}, body, signal } = {}) {
  const asked = { ...headers };
  if (token) asked.Authorization = `Bearer ${token}`;
  if (body !== undefined) asked["Content-Type"] = "application/json";
  // Without credentials a browser never opens its own login for an answer 401.
  const answer = await fetch(path, {
    method, signal, headers: asked, credentials: "omit", cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok || answer.status === 304) return answer;
  throw new ApiError(await answer.json().catch(() => ({})), answer.status);
}

/** A resource; one that has not changed is not sent again. */
export async function get(path, signal) {
  const seen = known.get(path);
  const answer = await ask(path, { signal, headers: seen ? { "If-None-Match": seen.tag } : {} });
  if (answer.status === 304) return seen.body;
  const body = await answer.json();
  known.set(path, { tag: answer.headers.get("ETag"), body });
  return body;
}

export const post = async (path, body, signal) =>
  (await ask(path, { method: "POST", body, signal })).json();

/** The path of a feed or of something of it. */
export const feedPath = (name, rest = "") => `v1/feeds/${encodeURIComponent(name)}${rest}`;

async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

/** Statements, answered line by line: `result`, `row`, `error`, `session`. */
export async function* run(statement, session, signal) {
  const headers = { Accept: "application/x-ndjson" };
  const body = { statement, session, display: true };
  const answer = await ask("v1/statements", { method: "POST", headers, body, signal });
  for await (const line of lines(answer)) if (line) yield JSON.parse(line);
}

/** Each state of a resource as it changes, by server-sent events; throws where those end. */
async function* events(path, signal, last) {
  const headers = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
  let name = "", data = "", id = "";
  for await (const line of lines(await ask(path, { headers, signal }))) {
    const [, field, value] = /^(\w*):? ?(.*)$/.exec(line) ?? [];
    if (field === "event") name = value;
    else if (field === "data") data = value;
    else if (field === "id") id = value;
    else if (!line && data) {
      if (name === "error") throw new ApiError(JSON.parse(data), JSON.parse(data).status);
      yield { id, body: JSON.parse(data) };
      data = "";
    }
  }
}

/** Calls `show` with each state until the signal; comes back after the node was away. */
export async function watch(path, signal, show, fail) {
  let last = "";
  for (let wait = 1; !signal.aborted; wait = Math.min(2 * wait, 15)) {
    try {
      for await (const event of events(path, signal, last)) {
        if (signal.aborted) return;
        [last, wait] = [event.id, 1];
        fail(null);
        await show(event.body);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500) {
        fail(error);
        return;
      }
      fail(error);
    }
    await new Promise((done) => setTimeout(done, 1000 * wait));
  }
}
