// The cluster: its brokers, who votes, which logs have too few replicas or move, and draining brokers.
import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { request } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { useView } from "../live.js";
import { href } from "../router.js";
import { Ago, Confirm, Head, Panel, Tiles, Waiting, announce, useTask } from "../widgets.js";

const CHANGES = 25;
const CHANGES_MAX = 1000;

function State({ broker }) {
  if (!broker.is_alive) return html`<span class="tag bad">Not heard</span>`;
  if (broker.is_drained) return html`<span class="tag warn">Drained</span>`;
  if (broker.is_draining) return html`<span class="tag warn">Draining</span>`;
  return html`<span class="tag good">Alive</span>`;
}

function Actions({ broker, onDrain, onChange }) {
  const undrain = useTask(
    () => request("POST", `brokers/${broker.number}/undrain`),
    () => {
      announce(`Broker ${broker.number} takes logs again.`);
      onChange();
    },
  );
  if (!broker.is_alive) return null;
  if (!broker.is_draining) return html`<button class="small" onClick=${onDrain} aria-label=${`Drain broker ${broker.number}`}>Drain</button>`;
  return html`<button class="small" onClick=${undrain.run} disabled=${undrain.busy} aria-label=${`Stop draining broker ${broker.number}`}>Stop draining</button>
    ${undrain.error && html`<div class="bad" role="alert">${undrain.error}</div>`}`;
}

function Row({ broker, isController, isVoter, onDrain, onChange }) {
  const lacking = broker.under_replicated_logs;
  return html`<tr>
    <th scope="row">
      ${broker.number}${broker.is_self && html` <span class="tag">this broker</span>`}
      ${isController && html` <span class="tag">controller</span>`}${isVoter && html` <span class="tag">voter</span>`}
    </th>
    <td><${State} broker=${broker} /></td>
    <td>${broker.rack || html`<span class="muted">–</span>`}</td>
    <td class="mono break wide">${[broker.kafka_listener, broker.http_url].filter(Boolean).map((each) => html`<div key=${each}>${each}</div>`)}</td>
    <td class="number">${broker.free_bytes ? bytes(broker.free_bytes) : "–"}</td>
    <td class="number">${count(broker.logs_led)}</td>
    <td class="number">${count(broker.replicas)}</td>
    <td class="number">${lacking == null ? "–" : lacking ? html`<span class="warn">${count(lacking)}</span>` : "0"}</td>
    <td><${Actions} broker=${broker} onDrain=${onDrain} onChange=${onChange} /></td>
  </tr>`;
}

/** The logs that need attention, each with the reason; nothing if there are none. */
function Logs({ title, id, total, logs, hasLeaders }) {
  if (!total) return null;
  const numbers = (found) => (found?.length ? found.join(", ") : "–");
  return html`<${Panel} title=${title} id=${id} note=${total > logs.length ? `${count(logs.length)} of ${count(total)}` : count(total)} bare>
    <div class="scroll" tabindex="0" role="group" aria-label=${title}>
      <table>
        <thead>
          <tr>
            <th scope="col">Topic</th>
            <th scope="col" class="number">Log</th>
            ${hasLeaders && html`<th scope="col" class="number">Leader</th>`}
            <th scope="col">Replicas</th>
            <th scope="col">${hasLeaders ? "In sync" : "Ordered"}</th>
            <th scope="col">Reason</th>
          </tr>
        </thead>
        <tbody>
          ${logs.map(
            (each) => html`<tr key=${`${each.topic} ${each.log}`}>
              <th scope="row" class="mono break">${each.topic.startsWith("$") ? each.topic : html`<a href=${href(["topics", each.topic])}>${each.topic}</a>`}</th>
              <td class="number">${each.log}</td>
              ${hasLeaders && html`<td class="number">${each.leader ?? "–"}</td>`}
              <td>${numbers(each.replicas)}</td>
              <td>${numbers(hasLeaders ? each.in_sync : each.ordered)}</td>
              <td>${each.reason}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

/** The last changes that were made to the cluster, the newest first. Earlier ones are loaded on demand. */
function Changes() {
  const [limit, setLimit] = useState(CHANGES);
  const view = useView(`cluster/log?limit=${limit}`, { intervalMs: 5000 });
  if (!view.data) return html`<${Waiting} view=${view} what="the last changes" />`;
  const changes = [...view.data.changes].reverse();
  return html`<${Panel} title="Last changes of the cluster" id="changes" bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Last changes of the cluster">
      <table>
        <thead>
          <tr>
            <th scope="col" class="number">Offset</th>
            <th scope="col">When</th>
            <th scope="col">Ordered by</th>
            <th scope="col">Change</th>
          </tr>
        </thead>
        <tbody>
          ${changes.map(
            (each) => html`<tr key=${each.offset}>
              <th scope="row" class="number">${count(each.offset)}</th>
              <td><${Ago} ms=${each.ordered_at} /></td>
              <td class="break">${each.ordered_by}</td>
              <td class="break">${each.description}${!each.is_done && html` <span class="tag warn">Refused</span> ${each.reason}`}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${view.data.next_before != null &&
    limit < CHANGES_MAX &&
    html`<div class="body"><button onClick=${() => setLimit(Math.min(CHANGES_MAX, limit * 4))}>Show more changes</button></div>`}
  <//>`;
}

export function BrokersPage() {
  const view = useView("cluster", { intervalMs: 2000 });
  const [draining, setDraining] = useState(null);
  if (!view.data) return html`<${Head} title="Brokers" /><${Waiting} view=${view} what="the brokers" />`;
  const { brokers, voters, controller, log_count: logs, leaderless_logs: leaderless, under_replicated_logs: lacking } = view.data;
  const dead = brokers.filter((each) => !each.is_alive).length;
  const heard = voters.filter((each) => each.is_heard).length;
  const items = [
    ["Controller", controller == null ? "none" : `broker ${controller}`, controller == null ? "nothing can be changed" : ""],
    ["Voters heard", `${count(heard)} of ${count(voters.length)}`, `changes need ${count(view.data.voters_needed)}`],
    ["Feature level", count(view.data.feature_level), view.data.feature_level < view.data.feature_level_max ? `${count(view.data.feature_level_max)} is possible` : ""],
    ["Brokers", count(brokers.length), dead ? `${count(dead)} not heard` : "all alive"],
    ["Logs", count(logs), "with internal ones"],
    ["Without a leader", count(leaderless)],
    ["Too few in sync", count(lacking)],
  ];
  const close = (changed) => {
    setDraining(null);
    if (changed) view.reload();
  };
  return html`<${Head} title="Brokers" sub=${`Cluster ${view.data.cluster_id}`} />
    <${Tiles} label="Figures of the cluster" items=${items} />
    <${Panel} title="Brokers of the cluster" id="brokers" bare>
      <div class="scroll" tabindex="0" role="group" aria-label="Brokers of the cluster">
        <table>
          <thead>
            <tr>
              <th scope="col">Broker</th>
              <th scope="col">State</th>
              <th scope="col">Rack</th>
              <th scope="col" class="wide">Where</th>
              <th scope="col" class="number">Free</th>
              <th scope="col" class="number">Logs led</th>
              <th scope="col" class="number">Replicas</th>
              <th scope="col" class="number">Too few in sync</th>
              <th scope="col">Action</th>
            </tr>
          </thead>
          <tbody>
            ${brokers.map((each) => html`<${Row} key=${each.address} broker=${each} isController=${each.number === controller} isVoter=${voters.some((voter) => voter.address === each.address)} onDrain=${() => setDraining(each)} onChange=${() => view.reload()} />`)}
          </tbody>
        </table>
      </div>
    <//>
    <${Logs} title="Logs with too few replicas in sync" id="lacking" total=${lacking} logs=${view.data.under_replicated} hasLeaders />
    <${Logs} title="Logs that move" id="moves" total=${view.data.move_count} logs=${view.data.moves} />
    <${Changes} />
    ${draining &&
    html`<${Confirm} title=${`Drain broker ${draining.number}?`} verb="Drain the broker" done=${`Broker ${draining.number} is being drained.`}
        action=${() => request("POST", `brokers/${draining.number}/drain`)} onClose=${close}>
      It hands the ${plural(draining.logs_led, "log")} that it leads to other brokers, and gets no further ones. Clients go on working. This can be taken back.
    <//>`}`;
}
