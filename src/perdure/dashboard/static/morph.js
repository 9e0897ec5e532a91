// Makes what is on the page like what it should be, and touches nothing else: what has the focus keeps it, what somebody
// types stays, what was opened stays open, and nothing scrolls.

// What belongs to the reader, not to the server.
const READERS = new Set(["open", "data-sent"]);

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset?.key ?? (node.id || null) : null;
}

function isSame(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && key(old) === key(wanted);
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
  // Times are told by the page itself; the texts of fields are the reader's.
  if (old.nodeName === "TIME" && old.dateTime === wanted.dateTime) return;
  if (old.nodeName === "text" && old.dataset.clock && old.dataset.clock === wanted.dataset.clock) return;
  if (old.isEqualNode(wanted)) return;
  attributes(old, wanted);
  if (old.nodeName !== "TEXTAREA") morph(old, wanted);
}

export function morph(old, wanted) {
  const byKey = new Map();
  for (const child of old.childNodes) {
    const name = key(child);
    if (name !== null) byKey.set(name, child);
  }
  const wantedKeys = new Set([...wanted.childNodes].map(key).filter((name) => name !== null));
  // What goes, goes first: what stays then need not be moved, and keeps the focus.
  for (const [name, child] of byKey) if (!wantedKeys.has(name)) child.remove();
  let at = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const name = key(child);
    const known = name !== null ? byKey.get(name) : null;
    if (known && isSame(known, child)) {
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      one(known, child);
      byKey.delete(name);
    } else if (name === null && at && isSame(at, child)) {
      const next = at.nextSibling;
      one(at, child);
      at = next;
    } else {
      const added = document.importNode(child, true);
      if (name !== null && added.classList) added.classList.add("fresh");
      old.insertBefore(added, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    old.removeChild(at);
    at = next;
  }
}
