// The list of runs: the views that are saved in this browser, and the number of selected runs.
const KEY = "perdure.views";

function views() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one?.name === "string" && typeof one?.q === "string") : [];
  } catch { return []; }
}

function keep(list) {
  try { localStorage.setItem(KEY, JSON.stringify(list)); } catch { /* a browser may keep nothing */ }
}

function showViews() {
  const place = document.querySelector("[data-views]");
  const query = new URL(location.href).searchParams.get("q") ?? "";
  for (const old of place.querySelectorAll(".mine")) old.remove();
  for (const { name, q } of views()) {
    const item = document.createElement("span");
    item.className = "mine";
    const link = document.createElement("a");
    link.href = `${location.pathname}?${new URLSearchParams({ q })}`;
    link.textContent = name;
    if (q === query) link.setAttribute("aria-current", "true");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "plain";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove the view ${name}`);
    remove.addEventListener("click", () => {
      keep(views().filter((one) => one.name !== name));
      showViews();
    });
    item.append(link, remove);
    place.append(item);
  }
}

function setUpSaving() {
  const button = document.querySelector("[data-save-view]");
  const field = document.getElementById("q");
  const show = () => { button.hidden = !field.value.trim(); };
  field.addEventListener("input", show);
  show();
  button.addEventListener("click", () => {
    const q = field.value.trim();
    const name = prompt("What is this view called?", q)?.trim();
    if (!name) return;
    keep([...views().filter((one) => one.name !== name), { name, q }]);
    showViews();
  });
}

function setUpSelection() {
  const form = document.querySelector("[data-bulk]");
  const told = form?.querySelector("[data-selected]");
  if (!told) return;
  const count = () => {
    const all = form.elements.all.checked;
    const number = form.querySelectorAll("input[name=id]:checked").length;
    told.textContent = all ? "All that match" : number ? `${number} selected` : "Select runs to change them";
    for (const button of form.querySelectorAll("[data-needs-selection]")) button.disabled = !all && !number;
  };
  form.addEventListener("change", count);
  form.addEventListener("perdure:changed", count);
  form.addEventListener("submit", () => {
    // If all matching runs are selected, the ticked boxes do not count.
    for (const box of form.querySelectorAll("input[name=id]")) box.disabled = form.elements.all.checked;
  });
  window.addEventListener("pageshow", () => {
    for (const box of form.querySelectorAll("input[name=id]")) box.disabled = false;
    count();
  });
  count();
}

showViews();
setUpSaving();
setUpSelection();
