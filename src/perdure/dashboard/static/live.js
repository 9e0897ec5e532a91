// Keeps an open page up to date. The page requests its own address as a stream of events, and gets the regions that
// have changed. A hidden page sends no requests. It goes on when it is visible again.
import { morph } from "./morph.js";
import { tellTimes } from "./times.js";

const WORDS = { idle: "not connected", on: "up to date", off: "connection lost, trying again" };

function show(state) {
  const shown = document.querySelector("[data-live-state]");
  if (!shown || shown.dataset.liveState === state) return;
  shown.dataset.liveState = state;
  shown.title = WORDS[state];
  shown.firstElementChild.textContent = WORDS[state];
}

function receive(name, html) {
  const region = [...document.querySelectorAll("[data-live]")].find((one) => one.dataset.live === name);
  if (!region) return;
  const wanted = document.createElement("template");
  wanted.innerHTML = html;
  morph(region, wanted.content);
  tellTimes(region);
  region.dispatchEvent(new CustomEvent("perdure:changed", { bubbles: true }));
}

export function follow() {
  let seen = document.body.dataset.seen;
  if (seen === undefined) return;
  let source = null;

  const open = () => {
    if (source || document.hidden) return;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("seen", seen);
    source = new EventSource(address);
    source.addEventListener("open", () => show("on"));
    source.addEventListener("error", () => show("off"));
    source.addEventListener("region", (event) => {
      const { name, html } = JSON.parse(event.data);
      receive(name, html);
      if (event.lastEventId) seen = event.lastEventId;
    });
  };
  const close = () => {
    source?.close();
    source = null;
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
}
