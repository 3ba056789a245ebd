// The volume explorer of the report: three planes through an explained scan, its map on them, and the mask's outline.
// No library, no server. How volumes are stored is said in regard/explain/volume_store.py.
const items = JSON.parse(document.getElementById("volumes-data").textContent);
const part = (name) => document.getElementById("volumes-" + name);
const CROSS = "#56B4E9", OUTLINE = "#D55E00";

// Axes are right, anterior, superior, all drawn backwards: the patient's right and front are on the left, the top is up.
const PLANES = {
  axial: { across: 0, down: 1, through: 2, ends: "RLAP" },
  coronal: { across: 0, down: 2, through: 1, ends: "RLSI" },
  sagittal: { across: 1, down: 2, through: 0, ends: "APSI" },
};
const AXES = ["right", "anterior", "superior"];

const chosen = { item: 0, method: 0, scan: 0, at: [0, 0, 0] };
let current = null;  // the chosen item, with its volumes unpacked

async function unpack(item) {
  if (item.volumes) return item;
  const plain = new Uint8Array(await unzipped(item.data)), count = item.size[0] * item.size[1] * item.size[2];
  const volume = (n) => plain.subarray(n * count, (n + 1) * count);
  item.volumes = item.scans.map((_, n) => volume(n));
  item.maps = item.methods.map((_, n) => volume(item.scans.length + n));
  item.inside = item.mask ? volume(item.scans.length + item.methods.length) : null;
  // The length of a voxel's edges on the screen: millimetres, where they are known.
  item.edges = item.to_mm ? [0, 1, 2].map((n) => Math.hypot(...item.to_mm.slice(0, 3).map((row) => row[n]))) : [1, 1, 1];
  return item;
}

const indexOf = ([right, front, top]) => (right * current.size[1] + front) * current.size[2] + top;
const mapValue = (index) => {
  const { least, most } = current.methods[chosen.method];
  return least + (most - least) * current.maps[chosen.method][index] / 255;
};

// The voxel in a plane's picture at (x, y), counted from its upper left corner.
function voxelAt(plane, x, y) {
  const { across, down } = PLANES[plane], at = [...chosen.at];
  at[across] = current.size[across] - 1 - x;
  at[down] = current.size[down] - 1 - y;
  return at;
}

function paint(plane) {
  const { across, down, through, ends } = PLANES[plane], canvas = part(plane), context = canvas.getContext("2d");
  const width = current.size[across], height = current.size[down];
  const scale = 420 / Math.max(...current.size.map((side, axis) => side * current.edges[axis]));
  canvas.width = Math.round(width * current.edges[across] * scale);
  canvas.height = Math.round(height * current.edges[down] * scale);
  const grey = new ImageData(width, height), colours = new ImageData(width, height);
  const opacity = Number(part("opacity").value) / 100;
  for (let y = 0, n = 0; y < height; y++) {
    for (let x = 0; x < width; x++, n += 4) {
      const index = indexOf(voxelAt(plane, x, y)), share = current.maps[chosen.method][index];
      grey.data.fill(current.volumes[chosen.scan][index], n, n + 3);
      grey.data[n + 3] = 255;
      colours.data.set(PALETTE[share], n);
      colours.data[n + 3] = Math.round(opacity * (64 + 191 * share / 255));  // more of the scan where the map says little
    }
  }
  lay(context, grey, true);
  if (opacity > 0) lay(context, colours, false);
  if (current.inside && part("mask").checked) outline(context, plane);
  const x = (width - 1 - chosen.at[across] + 0.5) / width * canvas.width;
  const y = (height - 1 - chosen.at[down] + 0.5) / height * canvas.height;
  cross(context, x, y);
  if (current.to_mm) letters(context, ends);
  part(plane + "-slice").max = current.size[through] - 1;
  part(plane + "-slice").value = chosen.at[through];
  part(plane + "-at").textContent = chosen.at[through] + " of 0 to " + (current.size[through] - 1);
}

const PALETTE = Array.from({ length: 256 }, (_, n) => colour(n / 255).split(",").map(Number));

function lay(context, pixels, smooth) {
  const small = document.createElement("canvas");
  small.width = pixels.width;
  small.height = pixels.height;
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = smooth;
  context.drawImage(small, 0, 0, context.canvas.width, context.canvas.height);
}

// A line along the edges between voxels inside and outside of the mask.
function outline(context, plane) {
  const { across, down } = PLANES[plane], width = current.size[across], height = current.size[down];
  const wide = context.canvas.width / width, high = context.canvas.height / height;
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && current.inside[indexOf(voxelAt(plane, x, y))] > 0;
  context.beginPath();
  for (let y = 0; y <= height; y++) {
    for (let x = 0; x <= width; x++) {
      if (inside(x, y) !== inside(x - 1, y)) { context.moveTo(x * wide, y * high); context.lineTo(x * wide, (y + 1) * high); }
      if (inside(x, y) !== inside(x, y - 1)) { context.moveTo(x * wide, y * high); context.lineTo((x + 1) * wide, y * high); }
    }
  }
  stroke(context, OUTLINE, 2);
}

function cross(context, x, y) {
  const { width, height } = context.canvas, gap = 10;
  context.beginPath();
  for (const [fromX, fromY, toX, toY] of [[0, y, x - gap, y], [x + gap, y, width, y], [x, 0, x, y - gap], [x, y + gap, x, height]]) {
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
  }
  stroke(context, CROSS, 1);
}

function stroke(context, ink, width) {
  for (const [style, line] of [["rgba(0,0,0,0.6)", width + 1.5], [ink, width]]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.stroke();
  }
}

// Which side of the patient each edge shows: left, right, upper, lower.
function letters(context, ends) {
  const { width, height } = context.canvas;
  const places = [[12, height / 2], [width - 12, height / 2], [width / 2, 13], [width / 2, height - 12]];
  context.font = "600 15px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 4;
  context.strokeStyle = "#000000";
  context.fillStyle = "#FFFFFF";
  places.forEach(([x, y], n) => { context.strokeText(ends[n], x, y); context.fillText(ends[n], x, y); });
}

function draw() {
  for (const plane in PLANES) paint(plane);
  const { least, most } = current.methods[chosen.method];
  part("least").textContent = least.toFixed(2);
  part("most").textContent = most.toFixed(2);
  part("verdict").textContent = current.methods[chosen.method].name + " for " + current.target + ": " +
    current.methods[chosen.method].verdict;
  part("says").textContent = say();
}

function say() {
  const index = indexOf(chosen.at), place = chosen.at.map((at, axis) => AXES[axis] + " " + at).join(", ");
  const mm = current.to_mm ? " (" + current.to_mm.slice(0, 3).map((row, axis) => "xyz"[axis] + " " +
    (row[0] * chosen.at[0] + row[1] * chosen.at[1] + row[2] * chosen.at[2] + row[3]).toFixed(1)).join(", ") + " mm)" : "";
  const mask = current.inside ? "; " + (current.inside[index] ? "inside" : "outside of") + " the mask" : "";
  return "Voxel " + place + mm + ": " + current.scans[chosen.scan] + " " +
    (current.volumes[chosen.scan][index] / 255).toFixed(3) + ", map " + mapValue(index).toFixed(3) + " times the average" +
    mask + ".";
}

// Where the map is largest: the middle of the block of equal values that begins at its first largest one.
function peak() {
  const map = current.maps[chosen.method], first = map.indexOf(map.reduce((a, b) => Math.max(a, b), 0));
  const [, front, up] = current.size, corner = [Math.floor(first / (front * up)), Math.floor(first / up) % front, first % up];
  return corner.map((start, axis) => {
    let stop = start;
    const equal = (at) => map[indexOf(corner.map((value, other) => other === axis ? at : value))] === map[first];
    while (stop < current.size[axis] && equal(stop)) stop += 1;
    return start + Math.floor((stop - start) / 2);
  });
}

async function show(number) {
  const unpacked = await openItem(number);
  if (!unpacked) return;
  current = unpacked;
  chosen.method = Number(fill(part("method"), current.methods.map(({ name }, n) => [n, name]), chosen.method));
  chosen.scan = Number(fill(part("scan"), current.scans.map((name, n) => [n, name]), chosen.scan));
  part("scans").hidden = current.scans.length === 1;
  part("masks").hidden = !current.inside;
  part("size").textContent = current.about;
  chosen.at = peak();
  draw();
}

function moveTo(at) {
  chosen.at = at.map((value, axis) => Math.max(0, Math.min(current.size[axis] - 1, value)));
  draw();
}

for (const plane in PLANES) {
  const { across, down, through } = PLANES[plane], canvas = part(plane);
  const follow = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / box.width * current.size[across]);
    const y = Math.floor((event.clientY - box.top) / box.height * current.size[down]);
    moveTo(voxelAt(plane, x, y));
  };
  canvas.onpointerdown = (event) => { if (current) follow(event); };
  canvas.onpointermove = (event) => { if (current && event.buttons) follow(event); };
  canvas.onkeydown = (event) => {
    const steps = { ArrowLeft: [across, 1], ArrowRight: [across, -1], ArrowUp: [down, 1], ArrowDown: [down, -1],
                    PageUp: [through, 1], PageDown: [through, -1] };
    if (!steps[event.key] || !current) return;
    event.preventDefault();
    const at = [...chosen.at], [axis, by] = steps[event.key];
    at[axis] += by;
    moveTo(at);
  };
  part(plane + "-slice").oninput = (event) => {
    const at = [...chosen.at];
    at[through] = Number(event.target.value);
    moveTo(at);
  };
}
part("subject").onchange = (event) => show(Number(event.target.value));
part("method").onchange = (event) => { chosen.method = Number(event.target.value); draw(); };
part("scan").onchange = (event) => { chosen.scan = Number(event.target.value); draw(); };
part("opacity").oninput = draw;
part("mask").onchange = draw;
part("peak").onclick = () => moveTo(peak());
fill(part("subject"), items.map((item, n) => [n, item.name]), 0);
document.getElementById("volumes").hidden = false;
show(0);
