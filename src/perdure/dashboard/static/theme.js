// Loaded before the page is drawn. Otherwise the page would flash in the other theme.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("perdure.theme"); } catch { /* a browser may keep nothing */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
