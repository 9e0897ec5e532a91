// The script of every page: the theme, times, dialogs, and updates.
import { follow } from "./live.js";
import { tellTimes } from "./times.js";

const THEMES = ["system", "light", "dark"];
const NAMES = { system: "as the system", light: "light", dark: "dark" };
const SIGNS = { system: "◑", light: "☀", dark: "☾" };

function keep(key, value) {
  try { localStorage.setItem(key, value); } catch { /* a browser may keep nothing */ }
}

function setUpTheme() {
  const button = document.querySelector("[data-theme-switch]");
  if (!button) return;
  const now = () => document.documentElement.dataset.theme || "system";
  const show = () => {
    button.setAttribute("aria-label", `Theme: ${NAMES[now()]}`);
    button.title = `Theme: ${NAMES[now()]}`;
    button.firstElementChild.textContent = SIGNS[now()];
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    keep("perdure.theme", next);
    show();
  });
  show();
}

// A button with data-opens shows the dialog with that id. A button with data-closes closes the dialog around it.
function setUpDialogs() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens)?.showModal();
    const closer = event.target.closest("[data-closes]");
    if (closer) closer.closest("dialog")?.close();
    const copier = event.target.closest("[data-copies]");
    if (copier) navigator.clipboard?.writeText(copier.dataset.copies);
  });
}

// The key `/` goes to the search field. A form can be sent only once.
function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  // After the browser's back button, forms can be sent again.
  window.addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sent;
  });
}

// The message about the last change is shown once. After a reload, it must not be shown again.
function forgetWhatWasSaid() {
  const here = new URL(location.href);
  if (!here.searchParams.has("said")) return;
  here.searchParams.delete("said");
  history.replaceState(null, "", here);
}

setUpTheme();
setUpDialogs();
setUpKeys();
forgetWhatWasSaid();
tellTimes(document);
setInterval(() => tellTimes(document), 1000);
follow();
