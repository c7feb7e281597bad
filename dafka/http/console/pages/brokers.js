// The brokers: where they are, what they lead and keep, and draining them.
import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { request } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { useView } from "../live.js";
import { Confirm, Head, Panel, Tiles, Waiting, announce, useTask } from "../widgets.js";

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

function Row({ broker, onDrain, onChange }) {
  const lacking = broker.under_replicated_logs;
  return html`<tr>
    <th scope="row">
      ${broker.number}${broker.is_self && html` <span class="tag">this broker</span>`}
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

export function BrokersPage() {
  const view = useView("brokers", { intervalMs: 2000 });
  const [draining, setDraining] = useState(null);
  if (!view.data) return html`<${Head} title="Brokers" /><${Waiting} view=${view} what="the brokers" />`;
  const { brokers, log_count: logs, leaderless_logs: leaderless } = view.data;
  const dead = brokers.filter((each) => !each.is_alive).length;
  const lacking = brokers.reduce((total, each) => total + (each.under_replicated_logs ?? 0), 0);
  const items = [
    ["Brokers", count(brokers.length), dead ? `${count(dead)} not heard` : "all alive"],
    ["Logs", count(logs), "with internal ones"],
    ["Without a leader", count(leaderless)],
    ["Too few replicas", count(lacking)],
  ];
  const close = (changed) => {
    setDraining(null);
    if (changed) view.reload();
  };
  return html`<${Head} title="Brokers" sub=${plural(brokers.length, "broker")} />
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
              <th scope="col" class="number">Lacking</th>
              <th scope="col">Action</th>
            </tr>
          </thead>
          <tbody>
            ${brokers.map((each) => html`<${Row} key=${each.address} broker=${each} onDrain=${() => setDraining(each)} onChange=${() => view.reload()} />`)}
          </tbody>
        </table>
      </div>
    <//>
    ${draining &&
    html`<${Confirm} title=${`Drain broker ${draining.number}?`} verb="Drain the broker" done=${`Broker ${draining.number} is being drained.`}
        action=${() => request("POST", `brokers/${draining.number}/drain`)} onClose=${close}>
      It hands the ${plural(draining.logs_led, "log")} that it leads to other brokers, and gets no further ones. Clients go on working. This can be taken back.
    <//>`}`;
}
