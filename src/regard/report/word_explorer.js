// The word explorer of a translation's report: choose attention, layer, head and word, and see where that word looks.
// No library, no server. How the weights are stored is said in regard/explain/word_attention.py.
const items = JSON.parse(document.getElementById("words-data").textContent);
const part = (name) => document.getElementById("words-" + name);
const ROW = 26, LONG = 22;  // pixels of a word's height, as in style.css; letters of a word in the matrix
const KINDS = {
  encoder: { name: "encoder self-attention", sides: ["source", "source"],
             asks: "a word of the source", seen: "looks at the source", from: "From" },
  decoder: { name: "decoder self-attention", sides: ["target", "read"],
             asks: "to write", seen: "looks at what it wrote", from: "To write" },
  cross: { name: "cross-attention", sides: ["target", "source"],
           asks: "to write", seen: "looks at the source", from: "To write" },
  rollout: { name: "rollout to the source", sides: ["target", "source"],
             asks: "to write", seen: "goes back to the source", from: "To write" },
};

// What is chosen. A word is [column, number], column 0 asking and 1 being looked at; `held` stays when nothing is
// pointed at. A cell of the matrix is [query, key].
const chosen = { item: 0, kind: "cross", layer: Infinity, head: "mean", held: null, pointed: null, cell: null };
let current = null;  // the chosen item, with its weights unpacked
let shown = null;    // what stands there now: labels of both columns, weights, the largest of these

async function unpack(item) {
  if (item.weights) return item;
  let rows = 0, count = 0;
  item.parts = {};
  for (const [kind, shape] of Object.entries(item.kinds)) {
    const height = shape[0] * shape[1] * shape[2];
    item.parts[kind] = { shape, row: rows, at: count };
    rows += height;
    count += height * shape[3];
  }
  await inflate(item, rows);
  return item;
}

// The chosen weights, a list of rows: one head's, or the mean over the layer's heads; of tokens, or of words, where
// what goes to a word is what goes to all its tokens, on average from them.
function read() {
  const { shape, row, at } = current.parts[chosen.kind], [, heads, queries, keys] = shape;
  const [asks, seen] = KINDS[chosen.kind].sides.map((side) => current.sentences[side]);
  const parts = part("parts").checked, mean = chosen.head === "mean";
  const rowOf = (query) => (parts ? query : asks.groups[query]), columnOf = (key) => (parts ? key : seen.groups[key]);
  const labels = [asks, seen].map((side) => (parts ? side.tokens : side.words));
  const sizes = labels[0].map((_, n) => (parts ? 1 : asks.groups.filter((group) => group === n).length));
  const weights = labels[0].map(() => new Float64Array(labels[1].length));
  const from = mean ? 0 : chosen.head, count = mean ? heads : 1;
  for (let head = from; head < from + count; head++) {
    for (let query = 0; query < queries; query++) {
      const line = (chosen.layer * heads + head) * queries + query, to = weights[rowOf(query)];
      const unit = current.largest[row + line] / 255 / count / sizes[rowOf(query)];
      for (let key = 0; key < keys; key++) to[columnOf(key)] += unit * current.weights[at + line * keys + key];
    }
  }
  return { labels, weights, top: Math.max(...weights.map((line) => Math.max(...line))) };
}

const short = (text) => ([...text].length > LONG ? [...text].slice(0, LONG - 1).join("") + "…" : text);

function nameOf(column, number) {
  const labels = shown.labels[column], label = labels[number];
  const twice = labels.indexOf(label) !== labels.lastIndexOf(label);
  return "“" + label + "”" + (twice ? " (number " + (number + 1) + ")" : "");
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const columns = () => [part("asks"), part("seen")];
const word = () => chosen.pointed || chosen.held;

// Words and matrix anew, after another sentence, kind, layer, head or way of parting.
function lay() {
  shown = read();
  chosen.pointed = chosen.cell = null;
  if (chosen.held && chosen.held[1] >= shown.labels[chosen.held[0]].length) chosen.held = null;
  part("asks-name").textContent = KINDS[chosen.kind].asks;
  part("seen-name").textContent = KINDS[chosen.kind].seen;
  columns().forEach((box, column) => box.replaceChildren(...shown.labels[column].map((label, number) => {
    const button = document.createElement("button"), weight = document.createElement("small");
    button.type = "button";
    button.dir = "auto";
    button.tabIndex = number === (chosen.held && chosen.held[0] === column ? chosen.held[1] : 0) ? 0 : -1;
    button.append(...(column ? [label, " ", weight] : [weight, " ", label]));
    button.title = label;
    button.onfocus = button.onclick = () => hold(column, number);
    button.onpointerenter = () => { chosen.pointed = [column, number]; draw(); };
    button.onpointerleave = () => { chosen.pointed = null; draw(); };
    button.onkeydown = move;
    return button;
  })));
  layMatrix();
  draw();
}

function layMatrix() {
  const [asks, seen] = shown.labels, side = Math.max(asks.length, seen.length) <= 20 ? 22 : 15;
  const longest = (labels) => 8 + 8 * Math.max(...labels.map((label) => [...short(label)].length));
  const left = longest(asks), top = longest(seen), matrix = part("matrix");
  const width = left + side * seen.length + 2, height = top + side * asks.length + 2;
  matrix.setAttribute("viewBox", [0, 0, width, height].join(" "));
  matrix.style.width = width + "px";
  matrix.replaceChildren(
    ...asks.map((label, row) => svg("text", { x: left - 5, y: top + (row + 0.5) * side, "text-anchor": "end",
                                              "dominant-baseline": "central" }, short(label))),
    ...seen.map((label, column) => svg("text", { x: 5, y: 0, "dominant-baseline": "central", transform:
      "translate(" + (left + (column + 0.5) * side) + " " + top + ") rotate(-90)" }, short(label))),
    ...shown.weights.flatMap((line, row) => Array.from(line, (weight, column) => {
      const fill = "rgb(" + colour(shown.top > 0 ? weight / shown.top : 0) + ")";
      const x = left + column * side, y = top + row * side;
      const cell = svg("rect", { x, y, width: side, height: side, fill, "shape-rendering": "crispEdges" });
      cell.onpointerenter = () => { chosen.cell = [row, column]; draw(); };
      cell.onpointerleave = () => { chosen.cell = null; draw(); };
      cell.onclick = () => { columns()[0].children[row].focus(); };
      return cell;
    })),
    svg("rect", { id: "words-frame", fill: "none", "stroke-width": 2.5 }),
  );
  matrix.place = (row, column, rows, across) =>
    ({ x: left + column * side, y: top + row * side, width: across * side, height: rows * side });
  part("top").textContent = percent(shown.top);
}

// Lines, strengths and what is read out, for the word or cell that is pointed at or held.
function draw() {
  const { labels, weights, top } = shown, now = chosen.cell ? [0, chosen.cell[0]] : word();
  const line = now && (now[0] ? weights.map((row) => row[now[1]]) : Array.from(weights[now[1]]));
  const largest = line ? Math.max(...line) : top;
  const lines = part("lines"), height = ROW * Math.max(...labels.map((side) => side.length));
  lines.setAttribute("viewBox", "0 0 100 " + height);
  lines.style.height = height + "px";
  const made = [];
  weights.forEach((row, query) => row.forEach((weight, key) => {
    const share = largest > 0 ? weight / largest : 0;
    if (share < 0.02 || (now && now[1] !== (now[0] ? key : query))) return;
    made.push(svg("line", { x1: 0, y1: (query + 0.5) * ROW, x2: 100, y2: (key + 0.5) * ROW, "stroke-opacity": share,
                            "stroke-width": 0.5 + 3.5 * share, "vector-effect": "non-scaling-stroke" }));
  }));
  lines.replaceChildren(...made);
  columns().forEach((box, column) => [...box.children].forEach((button, number) => {
    const itself = now && now[0] === column && now[1] === number, other = now && now[0] !== column;
    const share = other && largest > 0 ? line[number] / largest : 0;
    button.style.backgroundColor = share > 0.02 ? "rgba(0, 114, 178, " + (0.55 * share).toFixed(3) + ")" : "";
    button.querySelector("small").textContent = other && share > 0.02 ? percent(line[number]) : "";
    button.setAttribute("aria-pressed", Boolean(itself));
  }));
  const frame = document.getElementById("words-frame"), place = part("matrix").place;
  frame.style.display = now ? "" : "none";
  const box = chosen.cell ? place(...chosen.cell, 1, 1)
    : now && (now[0] ? place(0, now[1], labels[0].length, 1) : place(now[1], 0, 1, labels[1].length));
  for (const [key, value] of Object.entries(box || {})) frame.setAttribute(key, value);
  part("says").textContent = say(now, line);
}

function say(now, line) {
  const kind = KINDS[chosen.kind], [layers, heads] = current.kinds[chosen.kind];
  const where = kind.name + (layers > 1 ? ", layer " + chosen.layer : "") +
    (heads > 1 ? (chosen.head === "mean" ? ", mean over heads" : ", head " + chosen.head) : "");
  if (!now) return "All words (" + where + "): choose one to see its weights.";
  if (chosen.cell) {
    const [query, key] = chosen.cell;
    return kind.from + " " + nameOf(0, query) + " (" + where + "): " + percent(line[key]) + " to " +
      nameOf(1, key) + ".";
  }
  const best = line.map((weight, number) => [weight, number]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  if (now[0]) {
    return nameOf(1, now[1]) + " (" + where + ") gets " + best.filter(([weight]) => weight > 0)
      .map(([weight, number]) => percent(weight) + " from " + nameOf(0, number)).join(", ") + ".";
  }
  return kind.from + " " + nameOf(0, now[1]) + " (" + where + "): " +
    best.filter(([weight]) => weight > 0).map(([weight, number]) => percent(weight) + " to " + nameOf(1, number))
      .join(", ") + ".";
}

function hold(column, number) {
  chosen.held = [column, number];
  chosen.pointed = null;
  [...columns()[column].children].forEach((button, at) => { button.tabIndex = at === number ? 0 : -1; });
  draw();
}

function move(event) {
  const [column, number] = chosen.held || [0, 0], last = shown.labels[column].length - 1;
  const other = Math.min(number, shown.labels[1 - column].length - 1);
  const to = { ArrowUp: [column, Math.max(0, number - 1)], ArrowDown: [column, Math.min(last, number + 1)],
               ArrowLeft: column ? [0, other] : null, ArrowRight: column ? null : [1, other],
               Home: [column, 0], End: [column, last] }[event.key];
  if (event.key === "Escape") {
    chosen.held = chosen.pointed = null;
    draw();
  }
  if (!to) return;
  event.preventDefault();
  columns()[to[0]].children[to[1]].focus();
}

// After another sentence or kind: what can be chosen there, keeping what was chosen if it exists.
function offer() {
  chosen.kind = fill(part("kind"), Object.keys(current.kinds).map((kind) => [kind, KINDS[kind].name]), chosen.kind);
  const [layers, heads] = current.kinds[chosen.kind];
  chosen.layer = Math.min(chosen.layer, layers - 1);
  fill(part("layer"), numbers(layers), chosen.layer);
  const head = fill(part("head"), [["mean", "mean over heads"], ...numbers(heads)], chosen.head);
  chosen.head = head === "mean" ? head : Number(head);
  part("layers").hidden = layers === 1;
  part("heads").hidden = heads === 1;
  part("verdict").textContent = current.verdict || "";
  part("verdict").hidden = !current.verdict;
  lay();
}

async function show(number) {
  const unpacked = await openItem(number);
  if (!unpacked) return;
  current = unpacked;
  chosen.held = null;
  offer();
}

part("sentence").onchange = (event) => show(Number(event.target.value));
part("kind").onchange = (event) => {
  chosen.kind = event.target.value;
  chosen.layer = Infinity;
  chosen.held = null;
  offer();
};
part("layer").onchange = (event) => { chosen.layer = Number(event.target.value); lay(); };
part("head").onchange = (event) => {
  chosen.head = event.target.value === "mean" ? "mean" : Number(event.target.value);
  lay();
};
part("parts").onchange = () => { chosen.held = null; lay(); };
fill(part("sentence"), items.map((item, n) => [n, item.name]), 0);
document.getElementById("words").hidden = false;
show(0);
