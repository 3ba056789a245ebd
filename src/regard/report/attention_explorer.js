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
  item.places = item.grid[0] * item.grid[1] * item.grid[2];
  item.tokens = item.prefix.length + item.places;
  item.first = item.heads.map((_, layer) => item.heads.slice(0, layer).reduce((a, b) => a + b, 0));
  const rows = item.tokens * item.heads.reduce((a, b) => a + b, 0);
  await inflate(item, rows);
  item.image = new Image();
  item.image.src = item.picture;
  await item.image.decode();
  return item;
}

// The weights of the chosen query to every token: one head's, or the mean over the layer's heads.
function weights() {
  const { first, heads, tokens, largest, weights } = current;
  const mean = chosen.head === "mean";
  const from = mean ? 0 : chosen.head, count = mean ? heads[chosen.layer] : 1;
  const sum = new Float64Array(tokens);
  for (let head = from; head < from + count; head++) {
    const row = (first[chosen.layer] + head) * tokens + chosen.query;
    for (let key = 0; key < tokens; key++) sum[key] += largest[row] * weights[row * tokens + key] / 255 / count;
  }
  return sum;
}

// Where a placed token stands: [plane, row, column].
function place(token) {
  const [, rows, columns] = current.grid, at = token - current.prefix.length;
  return [Math.floor(at / (rows * columns)), Math.floor(at / columns) % rows, at % columns];
}

function tokenAt([plane, row, column]) {
  const [, rows, columns] = current.grid;
  return current.prefix.length + (plane * rows + row) * columns + column;
}

function nameOf(token) {
  if (token < current.prefix.length) return current.prefix[token] + " token";
  const [plane, row, column] = place(token);
  return (current.grid[0] > 1 ? "slice " + plane + ", " : "") + "row " + row + ", column " + column;
}

function frame(context, token, scale, stroke, dashes) {
  if (token === null || token < current.prefix.length || place(token)[0] !== chosen.slice) return;
  const [, row, column] = place(token), [height, width] = current.cell.map((side) => side * scale);
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
    // The picture may be finer than the network's input; the slices of a volume stand one below the other.
    const wide = current.image.naturalWidth, high = current.image.naturalHeight / current.grid[0];
    context.imageSmoothingEnabled = canvas.width < 3 * wide;
    context.drawImage(current.image, 0, chosen.slice * high, wide, high, 0, 0, canvas.width, canvas.height);
    if (canvas.id === "explorer-map") {
      const [, rows, columns] = current.grid, [high, wide] = current.cell.map((side) => side * scale);
      for (let at = 0; at < rows * columns; at++) {
        const share = top > 0 ? placed[chosen.slice * rows * columns + at] / top : 0;
        context.fillStyle = "rgba(" + colour(share) + ",0.8)";
        context.fillRect((at % columns) * wide, Math.floor(at / columns) * high, wide, high);
      }
      frame(context, chosen.read, scale, READ, [6, 4]);
    }
    frame(context, chosen.query, scale, ASKS, []);
  }
  part("at").textContent = chosen.slice + " of 0 to " + (current.grid[0] - 1);
  part("top").textContent = percent(top);
  part("says").textContent = say(row);
  for (const button of part("prefix").children) {
    button.setAttribute("aria-pressed", Number(button.value) === chosen.query);
  }
}

function say(row) {
  const best = row.indexOf(Math.max(...row)), read = chosen.read === null ? best : chosen.read;
  const head = chosen.head === "mean" ? "mean over heads" : "head " + chosen.head;
  const rest = current.prefix.map((name, token) => name + " token " + percent(row[token])).join(", ");
  return "From " + nameOf(chosen.query) + " (layer " + chosen.layer + ", " + head + "): " + percent(row[read]) +
    " to " + nameOf(read) + (chosen.read === null ? ", more than to any other" : "") + "." +
    (rest ? " Beside the picture: " + rest + "." : "");
}

// After another image or layer: what can be chosen there, keeping what was chosen if it exists.
function offer() {
  chosen.layer = Math.min(chosen.layer, current.heads.length - 1);
  fill(part("layer"), numbers(current.heads.length), chosen.layer);
  fill(part("head"), [["mean", "mean over heads"], ...numbers(current.heads[chosen.layer])], chosen.head);
  chosen.head = part("head").value === "mean" ? "mean" : Number(part("head").value);
  chosen.slice = Math.min(chosen.slice, current.grid[0] - 1);
  part("slices").hidden = current.grid[0] === 1;
  part("slice").max = current.grid[0] - 1;
  part("slice").value = chosen.slice;
  part("prefix").replaceChildren(...current.prefix.map((name, token) => {
    const button = document.createElement("button");
    button.type = "button";
    button.value = token;
    button.textContent = "ask from the " + name + " token";
    button.onclick = () => { chosen.query = token; draw(); };
    return button;
  }));
  if (chosen.query >= current.tokens) chosen.query = 0;
  if (chosen.read !== null && chosen.read >= current.tokens) chosen.read = null;
}

async function show(number) {
  const unpacked = await openItem(number);
  if (!unpacked) return;
  current = unpacked;
  offer();
  draw();
}

function under(event) {
  const box = event.target.getBoundingClientRect(), [, rows, columns] = current.grid;
  const y = (event.clientY - box.top) / box.height * current.size[0] / current.cell[0];
  const x = (event.clientX - box.left) / box.width * current.size[1] / current.cell[1];
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
  const to = placed ? from.map((at, n) => Math.max(0, Math.min(current.grid[n] - 1, at + step[n]))) : from;
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
part("layer").onchange = (event) => { chosen.layer = Number(event.target.value); offer(); draw(); };
part("head").onchange = (event) => {
  chosen.head = event.target.value === "mean" ? "mean" : Number(event.target.value);
  draw();
};
part("slice").oninput = (event) => { chosen.slice = Number(event.target.value); draw(); };
fill(part("image"), items.map((item, n) => [n, item.name]), 0);
document.getElementById("explorer").hidden = false;
show(0);
