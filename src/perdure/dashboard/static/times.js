// Times, shown in the reader's own time zone, and as how long ago they were.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

export function span(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  for (let at = 0; at < UNITS.length; at++) {
    const [size, unit] = UNITS[at];
    if (seconds < size) continue;
    const count = Math.floor(seconds / size);
    const [smaller, smallUnit] = UNITS[at + 1] ?? [1, ""];
    const more = smallUnit && count < 10 ? Math.floor((seconds % size) / smaller) : 0;
    return more ? `${count} ${unit} ${more} ${smallUnit}` : `${count} ${unit}`;
  }
  return "";
}

function told(when) {
  const seconds = (Date.now() - when) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

function clock(when) {
  const day = `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())}`;
  const time = `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
  return { day, time, ms: pad(when.getMilliseconds(), 3) };
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function tellTimes(root) {
  for (const element of root.querySelectorAll("time[data-ago]")) {
    const when = new Date(element.dateTime);
    const { day, time } = clock(when);
    const full = `${day} ${time}`;
    if (element.title !== full) element.title = full;
    say(element, told(when));
  }
  for (const element of root.querySelectorAll("time[data-at]")) {
    const { day, time, ms } = clock(new Date(element.dateTime));
    const isToday = day === clock(new Date()).day;
    say(element, isToday ? `${time}.${ms}` : `${day} ${time}`);
    if (element.title !== `${day} ${time}.${ms}`) element.title = `${day} ${time}.${ms}`;
  }
  for (const element of root.querySelectorAll("text[data-clock]")) {
    const { day, time } = clock(new Date(element.dataset.clock));
    say(element, element.textContent.includes("-") ? `${day.slice(5)} ${time.slice(0, 5)}` : time.slice(0, 5));
  }
}
