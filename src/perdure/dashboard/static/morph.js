// Updates a region of the page to its new content, and leaves everything else alone. The focus stays, typed text stays,
// open parts stay open, and the page does not scroll.

// Attributes that the reader changes. The server never sets them.
const READERS = new Set(["open", "data-sent"]);

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset?.key ?? (node.id || null) : null;
}

function isSame(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && key(old) === key(wanted);
}

function isBlank(node) {
  return node?.nodeType === Node.TEXT_NODE && !node.nodeValue.trim();
}

function attributes(old, wanted) {
  const kept = new Set([...READERS, ...(old.dataset?.keep ?? "").split(" ")]);
  for (const { name, value } of wanted.attributes) {
    if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!kept.has(name) && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
}

function one(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  // The page itself shows times, and the reader types the texts of fields. Neither is updated here.
  if (old.nodeName === "TIME" && old.dateTime === wanted.dateTime) return;
  if (old.nodeName === "text" && old.dataset.clock && old.dataset.clock === wanted.dataset.clock) return;
  if (old.isEqualNode(wanted)) return;
  attributes(old, wanted);
  if (old.nodeName !== "TEXTAREA") children(old, wanted);
}

// Remove the nodes from `at` up to `target`, unless one of them has a key. Return whether they were removed.
function clear(at, target) {
  const stale = [];
  let node = at;
  while (node && node !== target) {
    if (key(node) !== null) return false;
    stale.push(node);
    node = node.nextSibling;
  }
  if (!node) return false;
  for (const old of stale) old.remove();
  return true;
}

function findAhead(at, wanted) {
  let node = at;
  while (node && key(node) === null) {
    if (isSame(node, wanted)) return node;
    node = node.nextSibling;
  }
  return null;
}

function count(node) {
  let number = 0;
  for (; node; node = node.nextSibling) number++;
  return number;
}

function children(old, wanted) {
  const list = [...wanted.childNodes];
  const wantedKeys = new Set(list.map(key).filter((name) => name !== null));
  const byKey = new Map();
  // Remove old nodes first. Then the other nodes do not need to move, and keep the focus.
  for (const child of [...old.childNodes]) {
    const name = key(child);
    if (name === null) continue;
    if (wantedKeys.has(name)) byKey.set(name, child);
    else child.remove();
  }
  let at = old.firstChild;
  list.forEach((child, number) => {
    const name = key(child);
    let known = name !== null ? byKey.get(name) : null;
    if (known && !isSame(known, child)) known = null;
    if (name === null && at) {
      if (isSame(at, child)) known = at;
      else if (count(at) > list.length - number) known = findAhead(at, child);
    }
    if (!known) {
      const added = document.importNode(child, true);
      if (name !== null && added.classList) added.classList.add("fresh");
      old.insertBefore(added, at);
      return;
    }
    if (known === at || clear(at, known)) at = known.nextSibling;
    else if (old.moveBefore) old.moveBefore(known, at);
    else old.insertBefore(known, at);
    one(known, child);
  });
  while (at) {
    const next = at.nextSibling;
    old.removeChild(at);
    at = next;
  }
}

// Update the region. Blanks at its ends come from the template and do not count.
export function morph(region, wanted) {
  for (const root of [region, wanted]) {
    while (isBlank(root.firstChild)) root.firstChild.remove();
    while (isBlank(root.lastChild)) root.lastChild.remove();
  }
  children(region, wanted);
}
