// The first page: what is wrong, how much happens, and which nodes there are.
import { html, useEffect, useState } from "../vendor/htm-preact-3.1.1.js";
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { brief, bytes, count, duration, plural } from "../format.js";
import { useHistory, useView } from "../live.js";
import { Network } from "../network.js";
import { Ago, Empty, Head, Notice, Panel, Tiles, Waiting } from "../widgets.js";

const perSecond = (value) => (value == null ? "–" : `${brief(value)}/s`);

function Problems({ problems }) {
  if (!problems.length) return html`<${Notice} kind="good">Nothing is wrong, as far as this broker sees.<//>`;
  return html`<${Notice} kind="warn">
    <strong>${plural(problems.length, "thing")} need${problems.length === 1 ? "s" : ""} attention</strong>
    <ul>${problems.map((text) => html`<li key=${text}>${text}</li>`)}</ul>
  <//>`;
}

function tiles(overview) {
  const { counts, rates, storage } = overview;
  const stored = storage && [["Storage in use", bytes(storage.stored_bytes), storage.free_bytes == null ? "in memory" : `${bytes(storage.free_bytes)} free`]];
  return [
    ["Records in", perSecond(rates?.records_in_per_s)],
    ["Records out", perSecond(rates?.records_out_per_s)],
    ["Topics", count(counts.topics), plural(counts.logs, "log")],
    ["Groups", count(counts.groups)],
    ["Clients", count(counts.clients), `and ${plural(counts.peers, "node")}`],
    ...(stored ?? []),
  ];
}

/** Return the rates of the last minutes: those that the broker has noted before, and those since. */
function useRates(view) {
  const [before, setBefore] = useState([]);
  useEffect(() => {
    get("overview?history=true").then((found) => setBefore(found.history), () => {});
  }, []);
  const rates = view.data?.rates ?? null;
  const since = useHistory(rates, rates?.time, "rates").map((each) => each.value);
  return [...before.filter((each) => !since.length || each.time < since[0].time), ...since];
}

function charts(history) {
  const times = history.map((each) => each.time);
  const line = (name, field, index) => ({ name, index, values: history.map((each) => each[field]) });
  return html`<div class="grid">
    <${Panel} title="Records a second" id="records-chart">
      <${Chart} label="Records a second" times=${times} formatValue=${brief}
        series=${[line("In", "records_in_per_s", 1), line("Out", "records_out_per_s", 2)]} />
    <//>
    <${Panel} title="Bytes a second" id="bytes-chart">
      <${Chart} label="Bytes a second" times=${times} formatValue=${bytes}
        series=${[line("In", "bytes_in_per_s", 1), line("Out", "bytes_out_per_s", 2)]} />
    <//>
  </div>`;
}

const STATES = { up: ["good", "Up"], unconnected: ["warn", "Not connected"], silent: ["bad", "Silent"] };

function NodeRow({ node, names }) {
  const [kind, text] = STATES[node.state];
  return html`<tr>
    <th scope="row">
      <span class="mono break" title=${node.address}>${node.endpoint.replace(/^tcp:\/\//, "")}</span>
      ${node.is_self && html` <span class="tag">this broker</span>`}
    </th>
    <td>${node.roles.join(", ") || html`<span class="muted">not shown yet</span>`}</td>
    <td><span class=${`tag ${kind}`}>${text}</span></td>
    <td class="wide">${names(node)}</td>
    <td class="number wide"><${Ago} ms=${node.last_seen} /></td>
  </tr>`;
}

function Nodes() {
  const view = useView("nodes", { intervalMs: 3000 });
  if (!view.data) {
    return html`<${Panel} title="Nodes" id="nodes"><${Waiting} view=${view} what="nodes" bare /><//>`;
  }
  const { nodes, towers, connections, note, is_complete: isComplete } = view.data;
  const byAddress = new Map(nodes.map((node) => [node.address, node]));
  const short = (address) => byAddress.get(address)?.endpoint.replace(/^tcp:\/\//, "") ?? address.slice(0, 8);
  const names = (node) => {
    const stored = connections.filter((each) => each.from === node.address && each.kind === "stored");
    if (!stored.length) return html`<span class="muted">–</span>`;
    return stored.map((each) => html`<div key=${each.to}>${short(each.to)}${each.lag ? html` <span class="warn">${plural(each.lag, "record")} behind</span>` : ""}</div>`);
  };
  const heard = towers.filter((tower) => tower.is_heard).length;
  const sub = !isComplete ? "Looking for further nodes" : towers.length ? `${plural(nodes.length, "node")}, ${heard} of ${plural(towers.length, "tower")} heard` : plural(nodes.length, "node");
  return html`<${Panel} title="Nodes" id="nodes" note=${sub} bare>
    ${note && html`<p class="note muted">${note}</p>`}
    ${nodes.length
      ? html`<${Network} nodes=${nodes} connections=${connections} />
          <div class="scroll" tabindex="0" role="group" aria-label="Nodes">
            <table>
              <thead>
                <tr>
                  <th scope="col">Node</th>
                  <th scope="col">Roles</th>
                  <th scope="col">State</th>
                  <th scope="col" class="wide">Its records are stored by</th>
                  <th scope="col" class="number wide">Last seen</th>
                </tr>
              </thead>
              <tbody>${nodes.map((node) => html`<${NodeRow} key=${node.address} node=${node} names=${names} />`)}</tbody>
            </table>
          </div>`
      : html`<${Empty} title="No other nodes">Nodes appear here when a tower introduces them.<//>`}
  <//>`;
}

export function Overview({ session }) {
  const view = useView("overview", { intervalMs: 1000 });
  const history = useRates(view);
  if (!view.data) return html`<${Head} title="Overview" /><${Waiting} view=${view} what="the overview" />`;
  const { broker, problems, time } = view.data;
  const sub = html`<span class="mono break">${broker.endpoint.replace(/^tcp:\/\//, "")}</span>, dafka ${broker.version}, up ${duration(time - broker.started_at)}`;
  return html`<${Head} title="Overview" sub=${sub} />
    ${problems && html`<${Problems} problems=${problems} />`}
    <${Tiles} label="Key figures" items=${tiles(view.data)} />
    ${charts(history)}
    ${session.is_administrator && html`<${Nodes} />`}`;
}
