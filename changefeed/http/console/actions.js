// Buttons that change something: each shows its statement and asks once.

import { ApiError, post } from "./api.js";
import { h, notice } from "./dom.js";

/** What an error says, where, and what to do. */
export function errorNotice(error) {
  const body = error instanceof ApiError ? error.body : {};
  const every = body.problems ?? [body.error ? body : { error: String(error.message ?? error) }];
  return every.map((one) => h("div", { class: "notice bad", role: "alert" },
    h("p", {}, h("strong", {}, one.code ? `${one.code} ` : ""), one.error),
    one.detail && h("p", {}, one.detail), one.hint && h("p", { class: "hint" }, one.hint)));
}

/** A button for a statement, or nothing where the role does not cover it. */
export function actionButton(title, statement, allowed) {
  return allowed
    ? h("button", { type: "button", class: "action", onclick: () => ask(title, statement) }, title)
    : null;
}

function ask(title, statement) {
  const said = h("div");
  const close = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() },
    "Cancel");
  const run = h("button", { type: "button", class: "primary", onclick: () => send() }, title);
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() },
    h("h2", {}, `${title}?`), h("p", {}, "This statement is sent:"),
    h("pre", { class: "statement" }, statement), said, h("p", { class: "actions" }, close, run));

  async function send() {
    run.disabled = true;
    try {
      const { results } = await post("v1/statements", { statement });
      const notices = results.flatMap((result) => result.notices);
      run.remove();
      close.textContent = "Close";
      close.focus();
      said.replaceChildren(notice("Done.", "good"), ...notices.map((text) => notice(text)));
    } catch (error) {
      run.disabled = false;
      said.replaceChildren(...errorNotice(error));
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}
