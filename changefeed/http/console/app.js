// The frame: who is there, which page is shown.

import { ApiError, get, loggedIn, login } from "./api.js";
import { errorNotice } from "./actions.js";
import { h, notice } from "./dom.js";
import { feed } from "./feed.js";
import { editor } from "./editor.js";
import { feeds } from "./feeds.js";
import { audit, nodes, slo, sources } from "./state.js";

// The path, the title, what shows it, and what one must be allowed to.
const PAGES = [
  ["feeds", "Feeds", feeds],
  ["sources", "Sources", sources],
  ["nodes", "Nodes", nodes],
  ["slo", "SLO", slo],
  ["audit", "Audit", audit, "GET /v1/audit"],
  ["statements", "Statements", editor],
];

const main = document.getElementById("main");
const top_ = document.getElementById("top");
const connection = document.getElementById("connection");
let session = null, leave = new AbortController();

const rights = (path) => session.may.includes(path);

function frame(page) {
  const links = PAGES.filter(([, , , needs]) => !needs || rights(needs))
    .map(([path, title]) => h("a", {
      href: `#/${path}`, "aria-current": path === page ? "page" : null }, title));
  const who = session.user ? `${session.user} (${session.role})` : "no login";
  top_.replaceChildren(h("a", { class: "brand", href: "#/feeds" }, "changefeed"),
    h("nav", { "aria-label": "Pages" }, links),
    h("span", { class: "who", title: `${session.state}, changefeed ${session.version}` }, who,
      loggedIn() && h("button", { type: "button", onclick: () => { login(null); start(); } }, "Log out")));
}

function ask(error) {
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password",
    required: true });
  const form = h("form", { class: "login", onsubmit: (event) => {
    event.preventDefault();
    login(token.value.trim());
    start();
  } }, h("h1", {}, "Log in"), error && notice(error, "bad"),
  h("label", { for: "token" }, "Token of a user (CREATE USER shows it)"), token,
  h("button", { class: "primary" }, "Log in"),
  h("p", { class: "quiet" }, "The token stays in this tab until it is closed."));
  top_.replaceChildren(h("span", { class: "brand" }, "changefeed"));
  main.replaceChildren(form);
  token.focus();
}

/** What is said where the node does not answer, or refuses. */
function fail(error) {
  connection.textContent = error && !(error instanceof ApiError && error.status < 500)
    ? `The node does not answer (${error.message}); trying again …` : "";
  if (!(error instanceof ApiError) || error.status >= 500) return;
  if (error.status === 401) {
    login(null);
    ask("The token has ended. Log in again.");
  } else main.append(...errorNotice(error));
}

function show() {
  leave.abort();
  leave = new AbortController();
  const [page, name] = location.hash.slice(2).split("/").map(decodeURIComponent);
  const found = PAGES.find(([path]) => path === page) ?? PAGES[0];
  frame(found[0]);
  document.title = `${name || found[1]} · changefeed`;
  const view = found[0] === "feeds" && name ? feed : found[2];
  Promise.resolve(view(main, { name, signal: leave.signal, fail, rights, session })).catch(
    (error) => { if (error.name !== "AbortError") fail(error); });
}

async function start() {
  leave.abort();
  try {
    session = await get("v1/session");
  } catch (error) {
    if (error.status === 401) {
      const wrong = loggedIn() ? "No user has this token, or it has ended." : "";
      login(null);
      ask(wrong);
    } else main.replaceChildren(...errorNotice(error));
    return;
  }
  show();
}

addEventListener("hashchange", () => {
  if (!session) return;
  show();
  main.focus();
  scrollTo(0, 0);
});
start();
