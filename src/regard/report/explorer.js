// What the explorers of a report share: weights unpacked, colours, and the contents of menus.
// How the weights are stored is said in regard/explain/attention_store.py.
const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129],
                 [92, 200, 99], [170, 220, 50], [253, 231, 37]];

// A share of the largest weight, as "r,g,b".
function colour(share) {
  const at = Math.min(share, 1) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((from, n) => Math.round(from + (at - low) * (VIRIDIS[low + 1][n] - from))).join(",");
}

// What base64 of zlib holds.
async function unzipped(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Gives an item the largest weight of each of its `rows`, and all weights as shares of 255 of these.
async function inflate(item, rows) {
  const plain = await unzipped(item.data), view = new DataView(plain);
  item.largest = Float32Array.from({ length: rows }, (_, row) => view.getFloat32(4 * row, true));
  item.weights = new Uint8Array(plain, 4 * rows);
}

// The item of this number, unpacked; nothing if that fails, or if the reader has chosen another meanwhile.
async function openItem(number) {
  chosen.item = number;
  try {
    const unpacked = await unpack(items[number]);
    return chosen.item === number ? unpacked : null;
  } catch (error) {
    part("says").textContent = "This browser cannot unpack the data (" + error + "); a newer one can.";
    return null;
  }
}

const percent = (weight) => (100 * weight).toFixed(2) + "\u00a0%";

const numbers = (count) => Array.from({ length: count }, (_, n) => [n, String(n)]);

// The options of a menu, [value, text], and what is chosen: `value`, or the first where it is not among them.
function fill(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => new Option(text, key)));
  select.value = options.some(([key]) => String(key) === String(value)) ? value : options[0][0];
  return select.value;
}

