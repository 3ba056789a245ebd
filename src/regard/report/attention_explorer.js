// The attention explorer of the report: choose image, layer, head and patch, and see where that patch looks.
// No library, no server. How the weights are stored is said in regard/explain/attention_store.py.
const items = JSON.parse(document.getElementById("explorer-data").textContent);
const part = (name) => document.getElementById("explorer-" + name);
const ASKS = "#D55E00", READ = "#FFFFFF";

// What is chosen: numbers, but for the head, which may be "mean". Tokens count prefixes first. To begin with,
// the last layer: offer() brings numbers that are too large into range.
const chosen = { item: 0, layer: Infinity, head: "mean", query: 0, slice: 0, read: null };
let current = null;  // the chosen item, with its picture and weights unpacked

async function unpack(item) {
  if (item.weights) return item;
  const places = ([planes, rows, columns]) => planes * rows * columns;
  // Of each layer: grid, cell, and the token in each slot of each window. Without windows all tokens are in one.
  const all = Array.from({ length: item.prefix.length + places(item.grid) }, (_, token) => token);
  const whole = { grid: item.grid, cell: [1, ...item.cell], windows: [all], whole: true };
  item.views = item.layers ? JSON.parse(item.layers) : item.heads.map(() => ({ ...whole }));
  let rows = 0, first = 0;
  item.views.forEach((view, layer) => {
    view.tokens = item.prefix.length + places(view.grid);
    view.slots = view.windows[0].length;
    view.perHead = view.windows.length * view.slots;
    view.slotOf = new Int32Array(view.tokens);
    view.windows.flat().forEach((token, slot) => { if (token >= 0) view.slotOf[token] = slot; });
    view.row = rows;
    view.first = first;
    rows += item.heads[layer] * view.perHead;
    first += item.heads[layer] * view.perHead * view.slots;
  });
  await inflate(item, rows);
  item.image = new Image();
  item.image.src = item.picture;
  await item.image.decode();
  return item;
}

// The chosen layer: its grid, its cells and its windows.
const view = () => current.views[chosen.layer];

// The weights of the chosen query to every token of the layer, zero outside of its window: one head's, or the mean.
function weights() {
  const { heads, largest, weights } = current, { tokens, slots, slotOf, windows, perHead, row, first } = view();
  const mean = chosen.head === "mean";
  const from = mean ? 0 : chosen.head, count = mean ? heads[chosen.layer] : 1;
  const sum = new Float64Array(tokens), slot = slotOf[chosen.query], keys = windows[Math.floor(slot / slots)];
  for (let head = from; head < from + count; head++) {
    const at = head * perHead + slot;
    keys.forEach((token, key) => {
      if (token >= 0) sum[token] += largest[row + at] * weights[first + at * slots + key] / 255 / count;
    });
  }
  return sum;
}

// Where a placed token stands: [plane, row, column].
function place(token) {
  const [, rows, columns] = view().grid, at = token - current.prefix.length;
  return [Math.floor(at / (rows * columns)), Math.floor(at / columns) % rows, at % columns];
}

function tokenAt([plane, row, column]) {
  const [, rows, columns] = view().grid;
  return current.prefix.length + (plane * rows + row) * columns + column;
}

function nameOf(token) {
  if (token < current.prefix.length) return current.prefix[token] + " token";
  const [plane, row, column] = place(token);
  return (view().grid[0] > 1 ? "slice " + plane + ", " : "") + "row " + row + ", column " + column;
}

function frame(context, token, scale, stroke, dashes) {
  if (token === null || token < current.prefix.length || place(token)[0] !== chosen.slice) return;
  const [, row, column] = place(token), [, height, width] = view().cell.map((side) => side * scale);
  const right = Math.min(column * width + width, context.canvas.width);
  const bottom = Math.min(row * height + height, context.canvas.height);
  for (const [ink, line, pattern] of [["#000000", 6, []], [stroke, 3, dashes]]) {
    context.strokeStyle = ink;
    context.lineWidth = line;
    context.setLineDash(pattern);
    context.strokeRect(column * width + 3, row * height + 3, right - column * width - 6, bottom - row * height - 6);
  }
}

function draw() {
  const [height, width] = current.size, scale = Math.max(1, Math.ceil(480 / Math.max(height, width)));
  const row = weights(), placed = row.slice(current.prefix.length), top = Math.max(...placed);
  for (const canvas of [part("input"), part("map")]) {
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    // The picture may be finer than the network's input; the first layer's slices stand one below the other.
    const planes = current.grid[0], deep = view().cell[0] / current.views[0].cell[0];
    const plane = Math.min(planes - 1, Math.floor((chosen.slice + 0.5) * deep));
    const wide = current.image.naturalWidth, high = current.image.naturalHeight / planes;
    context.imageSmoothingEnabled = canvas.width < 3 * wide;
    context.drawImage(current.image, 0, plane * high, wide, high, 0, 0, canvas.width, canvas.height);
    if (canvas.id === "explorer-map") {
      const [, rows, columns] = view().grid, [, high, wide] = view().cell.map((side) => side * scale);
      for (let at = 0; at < rows * columns; at++) {
        const share = top > 0 ? placed[chosen.slice * rows * columns + at] / top : 0;
        context.fillStyle = "rgba(" + colour(share) + ",0.8)";
        context.fillRect((at % columns) * wide, Math.floor(at / columns) * high, wide, high);
      }
      frame(context, chosen.read, scale, READ, [6, 4]);
    }
    frame(context, chosen.query, scale, ASKS, []);
  }
  part("at").textContent = chosen.slice + " of 0 to " + (view().grid[0] - 1);
  part("top").textContent = percent(top);
  part("says").textContent = say(row);
  for (const button of part("prefix").children) {
    button.setAttribute("aria-pressed", Number(button.value) === chosen.query);
  }
}

function say(row) {
  const best = row.indexOf(Math.max(...row)), read = chosen.read === null ? best : chosen.read;
  const head = chosen.head === "mean" ? "mean over heads" : "head " + chosen.head;
  const where = "layer " + chosen.layer + ", " + head + (view().whole ? "" : ", within its window");
  const rest = current.prefix.map((name, token) => name + " token " + percent(row[token]));
  const keys = view().windows[Math.floor(view().slotOf[chosen.query] / view().slots)];
  if (keys.includes(-1)) rest.push("padding " + percent(Math.max(0, 1 - row.reduce((a, b) => a + b, 0))));
  return "From " + nameOf(chosen.query) + " (" + where + "): " + percent(row[read]) +
    " to " + nameOf(read) + (chosen.read === null ? ", more than to any other" : "") + "." +
    (rest.length ? " Beside the picture: " + rest.join(", ") + "." : "");
}

// After another image or layer: what can be chosen there, keeping what was chosen if it exists.
function offer() {
  chosen.layer = Math.min(chosen.layer, current.heads.length - 1);
  fill(part("layer"), numbers(current.heads.length), chosen.layer);
  fill(part("head"), [["mean", "mean over heads"], ...numbers(current.heads[chosen.layer])], chosen.head);
  chosen.head = part("head").value === "mean" ? "mean" : Number(part("head").value);
  chosen.slice = Math.min(chosen.slice, view().grid[0] - 1);
  part("slices").hidden = view().grid[0] === 1;
  part("slice").max = view().grid[0] - 1;
  part("slice").value = chosen.slice;
  part("prefix").replaceChildren(...current.prefix.map((name, token) => {
    const button = document.createElement("button");
    button.type = "button";
    button.value = token;
    button.textContent = "ask from the " + name + " token";
    button.onclick = () => { chosen.query = token; draw(); };
    return button;
  }));
  if (chosen.query >= view().tokens) chosen.query = 0;
  if (chosen.read !== null && chosen.read >= view().tokens) chosen.read = null;
}

// Another layer: its tokens may be larger or smaller, so what was chosen becomes the token at the same place.
function chooseLayer(layer) {
  const before = view(), after = current.views[layer];
  const scale = (axis) => before.cell[axis] / after.cell[axis];
  const carry = (at, axis) => Math.min(after.grid[axis] - 1, Math.floor((at + 0.5) * scale(axis)));
  const placed = (token) => token !== null && token >= current.prefix.length;
  const query = placed(chosen.query) ? place(chosen.query).map(carry) : null;
  const read = placed(chosen.read) ? place(chosen.read).map(carry) : null;
  chosen.slice = carry(chosen.slice, 0);
  chosen.layer = layer;
  if (query) chosen.query = tokenAt(query);
  if (read) chosen.read = tokenAt(read);
}

async function show(number) {
  const unpacked = await openItem(number);
  if (!unpacked) return;
  current = unpacked;
  offer();
  draw();
}

function under(event) {
  const box = event.target.getBoundingClientRect(), [, rows, columns] = view().grid, [, high, wide] = view().cell;
  const y = (event.clientY - box.top) / box.height * current.size[0] / high;
  const x = (event.clientX - box.left) / box.width * current.size[1] / wide;
  const inside = (value, count) => Math.max(0, Math.min(count - 1, Math.floor(value)));
  return tokenAt([chosen.slice, inside(y, rows), inside(x, columns)]);
}

const STEPS = { ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0], ArrowLeft: [0, 0, -1], ArrowRight: [0, 0, 1],
                PageUp: [-1, 0, 0], PageDown: [1, 0, 0] };

function move(event) {
  const step = STEPS[event.key], which = event.shiftKey ? "read" : "query";
  if (!step || !current) return;
  event.preventDefault();
  const placed = chosen[which] !== null && chosen[which] >= current.prefix.length;
  const from = placed ? place(chosen[which]) : [chosen.slice, 0, 0];
  const to = placed ? from.map((at, n) => Math.max(0, Math.min(view().grid[n] - 1, at + step[n]))) : from;
  chosen[which] = tokenAt(to);
  chosen.slice = to[0];
  part("slice").value = chosen.slice;
  draw();
}

for (const canvas of [part("input"), part("map")]) {
  canvas.onclick = (event) => { if (current) { chosen.query = under(event); draw(); } };
  canvas.onpointermove = (event) => { if (current) { chosen.read = under(event); draw(); } };
  canvas.onpointerleave = () => { if (current) { chosen.read = null; draw(); } };
  canvas.onkeydown = move;
}
part("image").onchange = (event) => show(Number(event.target.value));
part("layer").onchange = (event) => { chooseLayer(Number(event.target.value)); offer(); draw(); };
part("head").onchange = (event) => {
  chosen.head = event.target.value === "mean" ? "mean" : Number(event.target.value);
  draw();
};
part("slice").oninput = (event) => { chosen.slice = Number(event.target.value); draw(); };
fill(part("image"), items.map((item, n) => [n, item.name]), 0);
document.getElementById("explorer").hidden = false;
show(0);
