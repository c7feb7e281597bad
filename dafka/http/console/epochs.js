// The leader epochs of a log: a drawing with a lane for each leader, and a table that says the same.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { segment } from "./api.js";
import { count, plural } from "./format.js";
import { useView } from "./live.js";
import { Empty, Field, Panel, Waiting } from "./widgets.js";

const SHOWN_MAX = 12; // epochs that are drawn, the latest ones
const NAMES = 96; // the width of the names of lanes
const LANE = 46;
const WIDTH = 560;
const STEP_MIN = 64;
const TAIL = 40; // what is drawn of an epoch that no other one continues, whose end nobody knows

const nameOf = (number, address) => (number == null ? address.slice(0, 8) : `Broker ${number}`);

/** Place epochs: a lane for each leader, and offsets from left to right, never too close to each other. */
export function arrange(epochs, end) {
  const shown = epochs.slice(-SHOWN_MAX);
  const lanes = [...new Set(shown.map((each) => each.leader_address))];
  const offsets = [...new Set([...shown.map((each) => each.start_offset), end])].sort((one, other) => one - other);
  const range = Math.max(1, offsets.at(-1) - offsets[0]);
  const places = new Map();
  let x = NAMES;
  offsets.forEach((offset, index) => {
    if (index) x += Math.max(STEP_MIN, ((offset - offsets[index - 1]) / range) * WIDTH);
    places.set(offset, x);
  });
  if (offsets.length === 1) x += STEP_MIN;
  const byEpoch = new Map(shown.map((each) => [each.epoch, each]));
  const lines = shown.map((each) => {
    const heirs = shown.filter((other) => other.parent_epoch === each.epoch);
    const isLatest = each === shown.at(-1);
    const reach = heirs.length ? Math.max(...heirs.map((other) => places.get(other.start_offset))) : isLatest ? x : places.get(each.start_offset) + TAIL;
    return {
      epoch: each,
      isLatest,
      isAbandoned: !heirs.length && !isLatest,
      y: 24 + lanes.indexOf(each.leader_address) * LANE,
      from: places.get(each.start_offset),
      to: Math.max(reach, places.get(each.start_offset) + 6),
      parent: byEpoch.get(each.parent_epoch),
    };
  });
  return { lines, lanes, places, width: x + 24, height: 24 + lanes.length * LANE + 14, hidden: epochs.length - shown.length };
}

function Line({ line, lines }) {
  const { epoch, y, from, to } = line;
  const parent = lines.find((each) => each.epoch === line.parent);
  const merge = line.isAbandoned && lines.at(-1);
  return html`<g class=${`epoch${line.isLatest ? " latest" : ""}${line.isAbandoned ? " abandoned" : ""}`}>
    ${parent && html`<path class=${epoch.flags.includes("divergent") ? "divergent" : "turn"} d=${`M${from} ${parent.y}L${from} ${y}`} />`}
    <path class="stretch" d=${`M${from} ${y}L${to} ${y}`} />
    ${merge && html`<path class="merge" d=${`M${to} ${y}C${to + 30} ${y} ${merge.from} ${(y + merge.y) / 2} ${Math.max(merge.from + 12, to)} ${merge.y}`} />`}
    <circle cx=${from} cy=${y} r="5" />
    <text x=${from + 9} y=${y - 9} class="detail">epoch ${epoch.epoch}</text>
  </g>`;
}

function Drawing({ epochs, end }) {
  const { lines, lanes, places, width, height, hidden } = arrange(epochs, end);
  const leader = (address) => epochs.find((each) => each.leader_address === address);
  const label = `Drawing of ${plural(lines.length, "epoch")} of ${plural(lanes.length, "leader")}; the table has the same`;
  return html`<div class="epochs scroll" tabindex="0" role="group" aria-label="Drawing of the leader epochs">
    <svg viewBox=${`0 0 ${width} ${height + 18}`} width=${width} height=${height + 18} role="img" aria-label=${label}>
      ${lanes.map((address, index) => html`<g key=${address}>
        <path class="lane" d=${`M${NAMES} ${24 + index * LANE}L${width - 8} ${24 + index * LANE}`} />
        <text x="0" y=${28 + index * LANE}>${nameOf(leader(address).leader, address)}</text>
      </g>`)}
      ${[...places].map(([offset, x]) => html`<g key=${offset}>
        <path class="lane" d=${`M${x} 10L${x} ${height}`} />
        <text x=${x} y=${height + 12} class="detail" text-anchor="middle">${count(offset)}</text>
      </g>`)}
      ${lines.map((line) => html`<${Line} key=${line.epoch.epoch} line=${line} lines=${lines} />`)}
    </svg>
    ${hidden > 0 && html`<p class="muted">${count(hidden)} earlier epochs are in the table only.</p>`}
  </div>`;
}

const FLAGS = { first: ["", "First"], divergent: ["warn", "Divergent"], latest: ["good", "Latest"] };

function Rows({ epochs }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Leader epochs">
    <table>
      <thead>
        <tr>
          <th scope="col">Epoch</th>
          <th scope="col">Leader</th>
          <th scope="col" class="number">Begins at</th>
          <th scope="col">Continues</th>
          <th scope="col" class="wide">Replicas</th>
          <th scope="col">Flags</th>
        </tr>
      </thead>
      <tbody>
        ${epochs.map(
          (each) => html`<tr key=${each.epoch}>
            <th scope="row">${each.epoch}</th>
            <td>${nameOf(each.leader, each.leader_address)}</td>
            <td class="number">${count(each.start_offset)}</td>
            <td>${each.parent_epoch == null ? html`<span class="muted">–</span>` : `Epoch ${each.parent_epoch} of ${nameOf(each.parent_leader, each.parent_leader_address)}, up to ${count(each.start_offset)}`}</td>
            <td class="wide">${each.replicas.join(", ")}</td>
            <td>${each.flags.map((flag) => html`<span key=${flag} class=${`tag ${FLAGS[flag][0]}`}>${FLAGS[flag][1]}</span> `)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** The leader epochs of a topic's logs, one log at a time. */
export function Epochs({ topic }) {
  const view = useView(`topics/${segment(topic.name)}/epochs`, { intervalMs: 2000 });
  const [log, setLog] = useState(0);
  if (!view.data) return html`<${Waiting} view=${view} what="epochs" />`;
  const found = view.data.logs.find((each) => each.log === log)?.epochs ?? [];
  const end = Math.max(topic.logs[log]?.end_offset ?? 0, ...found.map((each) => each.start_offset));
  return html`<${Panel} title="Leader epochs" id="epochs" note="Which broker led the log from which offset on" bare>
    <div class="body">
      <${Field} label="Log">
        ${(attributes) => html`<select ...${attributes} value=${log} onChange=${(event) => setLog(Number(event.target.value))}>
          ${view.data.logs.map((each) => html`<option key=${each.log} value=${each.log}>${each.log} (${plural(each.epochs.length, "epoch")})</option>`)}
        </select>`}
      <//>
    </div>
    ${found.length
      ? html`<${Drawing} epochs=${found} end=${end} /><${Rows} epochs=${found} />`
      : html`<${Empty} title="No leader epochs are known">A log gets its first one when a broker begins to lead it.<//>`}
  <//>`;
}
