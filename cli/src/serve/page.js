// The page of `wheellock serve`. Names come from anybody: they become text and nothing else.
"use strict";

const ROWS = 300;
const LONGEST = 80;
const byId = (id) => document.getElementById(id);

// What turns the direction of text, or is not seen. text.rs has the same letters.
const HARMFUL =
  /[\p{Cc}\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const escaped = (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`;
const shown = (text) => text.replace(HARMFUL, escaped);

function cut(text, most) {
  // Twice as many units as letters suffice, and a name may have 64 KiB.
  const letters = [...text.slice(0, 2 * most + 2)];
  return letters.length > most ? `${shown(letters.slice(0, most).join(""))}…` : shown(text);
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function time(ms) {
  if (ms === null) return "";
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => seconds >= length);
  const [[length, unit], next] = [parts[first], parts[first + 1]];
  const rest = next ? ` ${Math.floor((seconds % length) / next[0])} ${next[1]}` : "";
  return `${Math.floor(seconds / length)} ${unit}${rest}`;
}

const count = (number, one, many) => `${number} ${number === 1 ? one : many}`;

// --- What is known ---

const state = { entries: [], scan: null, takenAt: 0, refresh: 5000, key: "name", down: false, most: ROWS };

// A lock with what the table sorts and searches by. Unknown is null, and comes last.
function entry(lock) {
  const made = { lock, name: lock.name, kind: lock.kind ?? "", age: null, isSeen: false, left: null };
  lock.holders.forEach((holder, place) => {
    const age = holder.held_for_ms ?? lock.seen_for_ms[place] ?? 0;
    if (made.age === null || age > made.age) {
      made.age = age;
      made.isSeen = holder.held_for_ms === null;
    }
    made.left = Math.max(made.left ?? 0, holder.remaining_ms ?? Infinity);
  });
  const first = lock.holders[0];
  const others = lock.holder_count - 1;
  if (first) made.holder = (first.label ?? first.owner) + (others > 0 ? ` and ${count(others, "other", "others")}` : "");
  else if (lock.kind === "expirable-semaphore") made.holder = `${lock.number} free`;
  else if (lock.number !== null) made.holder = `value ${lock.number}`;
  else made.holder = "";
  made.waiters = lock.waiters.elsewhere;
  const people = [...lock.holders, ...lock.waiters.queue];
  const texts = [lock.name, made.kind, ...people.flatMap((one) => [one.owner, one.kind, one.label ?? ""])];
  made.text = texts.join("\n").toLowerCase();
  return made;
}

function compare(left, right) {
  const [one, other] = [left[state.key], right[state.key]];
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "number" ? one - other || 0 : one < other ? -1 : one > other ? 1 : 0;
  return (state.down ? -order : order) || (left.name < right.name ? -1 : 1);
}

// --- The table ---

const rows = new Map();

function newRow() {
  const row = element("tr");
  const details = element("details");
  const summary = element("summary");
  const name = element("bdi");
  name.dir = "auto";
  summary.append(name);
  details.append(summary);
  const first = element("td");
  first.append(details);
  const kind = element("td");
  const holder = element("td");
  const holderName = element("bdi");
  holderName.dir = "auto";
  holder.append(holderName);
  const [age, left, waiters] = [0, 1, 2].map(() => element("td", "", "number"));
  row.append(first, kind, holder, age, left, waiters);
  const made = { row, details, summary, name, kind, holderName, age, left, waiters, entry: null };
  details.addEventListener("toggle", () => fillDetails(made));
  return made;
}

function setText(at, text) {
  // What is the same stays as it is, also what a user has selected in it.
  if (at.textContent !== text) at.textContent = text;
}

function fillRow(row, one) {
  row.entry = one;
  setText(row.name, cut(one.name, LONGEST));
  setText(row.kind, one.kind);
  setText(row.holderName, cut(one.holder, LONGEST));
  setText(row.age, one.age === null ? "" : (one.isSeen ? "≥ " : "") + time(one.age));
  setText(row.left, one.left === Infinity ? "never" : time(one.left));
  row.left.classList.toggle("alarm", one.left === Infinity);
  setText(row.waiters, one.waiters === null ? "not known" : String(one.waiters));
  fillDetails(row);
}

function fillDetails(row) {
  if (!row.details.open) {
    row.details.querySelector("dl")?.remove();
    row.filled = null;
    return;
  }
  const { lock } = row.entry;
  const lines = [["Name", shown(lock.name), "whole"]];
  lock.holders.forEach((holder, place) => lines.push(["Holder", holderLine(holder, lock.seen_for_ms[place])]));
  const unlisted = lock.holder_count - lock.holders.length;
  if (unlisted > 0) lines.push(["Holders", `${unlisted} more`]);
  lock.waiters.queue.forEach((waiter, place) => lines.push([`Waiter ${place + 1}`, waiterLine(waiter)]));
  const text = JSON.stringify(lines);
  if (row.filled === text) return;
  row.filled = text;
  const list = element("dl");
  for (const [term, description, className] of lines) {
    const data = element("dd", description, className);
    data.dir = "auto";
    // So that a long name can be scrolled by keyboard.
    if (className && description.length > 500) data.tabIndex = 0;
    list.append(element("dt", term), data);
  }
  row.details.querySelector("dl")?.remove();
  row.details.append(list);
}

const label = (one) => shown(one.label ? `${one.label} (${one.owner})` : one.owner);

function holderLine(holder, seenFor) {
  const parts = [`${holder.kind} ${label(holder)}`];
  if (holder.shared) parts.push("shared");
  parts.push(holder.held_for_ms === null ? `seen for ${time(seenFor)}` : `for ${time(holder.held_for_ms)}`);
  if (holder.watched !== null) parts.push(holder.watched ? "renewed" : "not renewed");
  if (holder.may_be_cached) parts.push("perhaps cached");
  parts.push(holder.remaining_ms === null ? "without an end" : `${time(holder.remaining_ms)} left`);
  return parts.join(", ");
}

const waiterLine = (waiter) =>
  `${waiter.kind} ${label(waiter)}${waiter.waits_for_ms === null ? "" : `, for ${time(waiter.waits_for_ms)}`}`;

function render() {
  const query = byId("search").value.toLowerCase();
  const matches = state.entries.filter((one) =>
    one.text.includes(query)
    && (!byId("waited").checked || one.waiters > 0)
    && (!byId("endless").checked || one.left === Infinity));
  matches.sort(compare);
  const listed = matches.slice(0, state.most);
  const wanted = listed.map((one) => {
    const row = rows.get(one.name) ?? newRow();
    rows.set(one.name, row);
    fillRow(row, one);
    return row.row;
  });
  const names = new Set(listed.map((one) => one.name));
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  const body = byId("rows");
  // Rows that stay in their places keep the focus. Otherwise the focus is given back.
  const isSame = wanted.length === body.children.length && wanted.every((row, place) => row === body.children[place]);
  if (!isSame) {
    const focused = document.activeElement;
    body.replaceChildren(...wanted);
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }
  byId("more").hidden = matches.length <= listed.length;
  const left = state.scan?.left_out ?? 0;
  setText(byId("found"), [
    listed.length < matches.length
      ? `${listed.length} of ${count(matches.length, "lock", "locks")}`
      : count(matches.length, "lock", "locks"),
    left > 0 ? `${count(left, "further lock is", "further locks are")} left out: give a --pattern` : "",
    state.scan?.unreadable > 0 ? `${count(state.scan.unreadable, "key is", "keys are")} not readable` : "",
  ].filter(Boolean).join("; "));
  for (const button of document.querySelectorAll("th button")) {
    const isKey = button.dataset.key === state.key;
    if (isKey) button.parentElement.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else button.parentElement.removeAttribute("aria-sort");
  }
}

// --- The picture: nodes and edges, wherever they come from ---

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(graph) {
  const [width, box, height, gap, top] = [900, 330, 28, 14, 8];
  const places = new Map();
  const columns = [[], []];
  graph.nodes.forEach((node, place) => columns[node.kind === "lock" ? 1 : 0].push(place));
  columns[1].forEach((node, place) => places.set(node, place));
  // Clients stand beside the middle of their locks, so that fewer arrows cross.
  const middle = (client) => {
    const locks = graph.edges.flatMap(({ from, to }) => (from === client ? [to] : to === client ? [from] : []));
    return locks.reduce((sum, lock) => sum + places.get(lock), 0) / (locks.length || 1);
  };
  const middles = new Map(columns[0].map((client) => [client, middle(client)]));
  columns[0].sort((one, other) => middles.get(one) - middles.get(other));
  columns[0].forEach((node, place) => places.set(node, place));
  const tallest = Math.max(columns[0].length, columns[1].length);
  const lengthOf = (node) => columns[graph.nodes[node].kind === "lock" ? 1 : 0].length;
  const y = (node) => top + (places.get(node) + (tallest - lengthOf(node)) / 2) * (height + gap);
  const picture = byId("graph");
  picture.setAttribute("viewBox", `0 0 ${width} ${2 * top + tallest * (height + gap)}`);
  const head = svg("marker", { id: "head", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" });
  head.append(svg("path", { d: "M0 0L8 4L0 8Z" }));
  const definitions = svg("defs", {});
  definitions.append(head);
  const edges = graph.edges.map(({ from, to, kind, cycle }) => {
    const isFromLock = graph.nodes[from].kind === "lock";
    const [start, end] = isFromLock ? [width - box, box] : [box, width - box];
    // Two arrows between the same nodes do not lie on each other.
    const shift = height / 2 + (isFromLock ? -5 : 5);
    const [y1, y2, half] = [y(from) + shift, y(to) + shift, width / 2];
    const d = `M${start} ${y1}C${half} ${y1} ${half} ${y2} ${end} ${y2}`;
    return svg("path", { d, class: `${kind}${cycle ? " cycle" : ""}`, "marker-end": "url(#head)" });
  });
  const nodes = graph.nodes.map((node, place) => {
    const group = svg("g", { class: node.kind });
    const x = node.kind === "lock" ? width - box : 1;
    group.append(
      svg("title", {}, shown(node.text)),
      svg("rect", { x, y: y(place), width: box - 1, height, rx: node.kind === "lock" ? 3 : 14 }),
      svg("text", { x: x + box / 2, y: y(place) + 18, "text-anchor": "middle" }, cut(node.text, 44)),
    );
    return group;
  });
  picture.replaceChildren(definitions, ...edges, ...nodes);
}

function renderGraph(graph) {
  const locks = graph.nodes.filter((node) => node.kind === "lock").length;
  byId("figure").hidden = locks === 0;
  setText(byId("graph-text"), locks === 0
    ? "Nobody waits."
    : `${count(locks, "lock is", "locks are")} waited for${graph.left_out > 0 ? `, and ${graph.left_out} more` : ""}`
      + graph.deadlocks.map((cycle) => `. Deadlock: ${shown(cycle)}`).join("") + ".");
  if (locks > 0) draw(graph);
}

// --- The refresh ---

// Without the token that a user may have written into the address: `fetch` refuses such addresses.
const API = new URL("api", location.origin + location.pathname);

let isPaused = false;
let timer = 0;

function showAge() {
  if (!state.scan) return;
  const age = performance.now() - state.takenAt;
  const at = new Date(Date.now() - age).toLocaleTimeString();
  const took = state.scan.took_ms;
  setText(byId("age"), `as of ${at}; the scan took ${took < 1000 ? `${took} ms` : time(took)}${isPaused ? "; paused" : ""}`);
}

function showError(text) {
  const error = byId("error");
  const since = state.scan ? ` What is shown is of ${new Date(Date.now() - performance.now() + state.takenAt).toLocaleTimeString()}.` : "";
  setText(error, text === null ? "" : `${cut(text, 1000)}.${since}`);
  error.hidden = text === null;
}

async function load() {
  clearTimeout(timer);
  try {
    const response = await fetch(API, { cache: "no-store", signal: AbortSignal.timeout(25000) });
    if (!(response.headers.get("content-type") ?? "").startsWith("application/json")) {
      throw new Error(`the answer was ${response.status}`);
    }
    const answer = await response.json();
    state.refresh = answer.refresh_ms;
    if (answer.scan) {
      state.scan = answer.scan;
      state.takenAt = performance.now() - answer.age_ms;
      state.entries = answer.scan.locks.map(entry);
      const { holders, waiters, endless } = answer.scan;
      setText(byId("totals"), [
        count(holders, "holder", "holders"),
        count(waiters, "waiter", "waiters"),
        `${count(endless, "lock", "locks")} without an end`,
      ].join(", "));
      render();
      renderGraph(answer.scan.graph);
    }
    showError(answer.error);
  } catch (error) {
    showError(`No answer from wheellock: ${error.message}`);
  }
  showAge();
  schedule();
}

function schedule() {
  clearTimeout(timer);
  // A page that nobody sees asks for nothing.
  // A timer of more than 24 days fires at once.
  if (!isPaused && !document.hidden) timer = setTimeout(load, Math.min(Math.max(1000, state.refresh), 86400000));
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused) load();
});

byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  showAge();
  if (isPaused) clearTimeout(timer);
  else load();
});

// --- What a user does ---

function search() {
  state.most = ROWS;
  render();
}

for (const id of ["search", "waited", "endless"]) byId(id).addEventListener("input", search);

byId("more").addEventListener("click", () => {
  state.most += ROWS;
  render();
});

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const { key } = button.dataset;
    // Of numbers the largest come first.
    state.down = state.key === key ? !state.down : ["age", "left", "waiters"].includes(key);
    state.key = key;
    render();
  });
}

// The summaries of the rows, and where among them the focus moves.
function moveFocus(key, from) {
  const summaries = [...byId("rows").querySelectorAll("summary")];
  const here = summaries.indexOf(from);
  const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: summaries.length - 1 }[key];
  if (to === -1) byId("search").focus();
  else summaries[to]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const { target, key } = event;
  const field = byId("search");
  if (key === "/" && target !== field) {
    field.focus();
    field.select();
  } else if (key === "Escape" && (target === field || target.matches("summary"))) {
    field.value = "";
    search();
    field.focus();
  } else if (key === "ArrowDown" && target === field) {
    moveFocus(key, null);
  } else if (target.matches("summary") && ["ArrowDown", "ArrowUp", "Home", "End"].includes(key)) {
    moveFocus(key, target);
  } else {
    return;
  }
  event.preventDefault();
});

load();
