// A drawing of the nodes: who introduces whom, and whose records are stored where.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { count } from "./format.js";

const SHOWN_MAX = 12;
const COLUMNS = ["producer", "store", "consumer"];
const BOX = { width: 172, height: 40, gap: 12 };
const SPACE = 92;

/** Return the column of a node: producers left, stores in the middle, consumers and the others right. */
function columnOf(node) {
  if (node.roles.includes("store") || node.roles.includes("broker")) return "store";
  return node.roles.includes("producer") ? "producer" : "consumer";
}

/** Place nodes in columns, and return their boxes by address with the size of the drawing. */
export function arrange(nodes) {
  const columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
  for (const node of nodes) columns[columnOf(node)].push(node);
  const rows = Math.max(1, ...COLUMNS.map((name) => Math.min(SHOWN_MAX, columns[name].length)));
  const height = rows * (BOX.height + BOX.gap) - BOX.gap;
  const used = COLUMNS.filter((name) => columns[name].length);
  const boxes = new Map();
  used.forEach((name, index) => {
    const shown = columns[name].slice(0, SHOWN_MAX);
    const top = (height - (shown.length * (BOX.height + BOX.gap) - BOX.gap)) / 2;
    shown.forEach((node, row) => {
      boxes.set(node.address, { node, x: index * (BOX.width + SPACE), y: top + row * (BOX.height + BOX.gap), column: name });
    });
  });
  const width = Math.max(1, used.length) * (BOX.width + SPACE) - SPACE;
  return { boxes, width, height, hidden: nodes.length - boxes.size };
}

function Edge({ from, to, lag }) {
  const forward = from.x < to.x;
  const [startX, endX] = forward ? [from.x + BOX.width, to.x] : [from.x, to.x + BOX.width];
  const [startY, endY] = [from.y + BOX.height / 2, to.y + BOX.height / 2];
  const bend = from.x === to.x ? SPACE * 0.7 : (endX - startX) / 2;
  const path =
    from.x === to.x
      ? `M${from.x + BOX.width} ${startY}C${from.x + BOX.width + bend} ${startY} ${from.x + BOX.width + bend} ${endY} ${from.x + BOX.width} ${endY}`
      : `M${startX} ${startY}C${startX + bend} ${startY} ${endX - bend} ${endY} ${endX} ${endY}`;
  return html`<path class=${lag ? "edge behind" : "edge"} d=${path} />`;
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function Box({ box }) {
  const { node, x, y } = box;
  const kind = node.state === "up" ? "" : node.state === "silent" ? " gone" : " unsure";
  return html`<g class=${`node${kind}${node.is_self ? " self" : ""}`} transform=${`translate(${x} ${y})`}>
    <rect width=${BOX.width} height=${BOX.height} rx="6" />
    <circle cx="14" cy=${BOX.height / 2} r="4" />
    <text x="26" y="17">${cut(node.is_self ? "this broker" : node.roles.join(", ") || "node", 22)}</text>
    <text x="26" y="31" class="detail">${cut(node.endpoint.replace(/^tcp:\/\//, ""), 22)}</text>
  </g>`;
}

/** The drawing. The table beside it says the same to users who do not see it. */
export function Network({ nodes, connections }) {
  const { boxes, width, height, hidden } = arrange(nodes);
  const edges = connections.filter(({ from, to }) => boxes.has(from) && boxes.has(to));
  const label = `Drawing of ${count(nodes.length)} nodes and ${count(edges.length)} connections; the table has the same`;
  return html`<div class="network scroll" tabindex="0" role="group" aria-label="Drawing of the nodes">
    <svg viewBox=${`-2 -2 ${width + 4} ${height + 4}`} width=${width + 4} height=${height + 4} role="img" aria-label=${label}>
      ${edges.map((each) => html`<${Edge} key=${`${each.from} ${each.to}`} from=${boxes.get(each.from)} to=${boxes.get(each.to)} lag=${each.lag} />`)}
      ${[...boxes.values()].map((box) => html`<${Box} key=${box.node.address} box=${box} />`)}
    </svg>
    ${hidden > 0 && html`<p class="muted">${count(hidden)} further nodes are in the table only.</p>`}
  </div>`;
}
